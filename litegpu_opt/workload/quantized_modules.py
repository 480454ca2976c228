"""Which parts of a model a quantisation converts: module names against the patterns of its lists.

A pattern is one of

- a name, or a part of one between dots: `lm_head`, `model.layers.3.mlp`, `gate`; it stands for the
  module and everything below it;
- a glob, in which `*` also matches dots: `model.layers.*.self_attn`, `*router*`;
- a regular expression after `re:` that matches from the start of a name: `re:.*mlp.gate$`.

These are the dialects of `modules_to_not_convert` in transformers, `exclude_modules` in ModelOpt,
`ignore` and `targets` in compressed-tensors (where a plain name is only the module itself). What wraps the stack of layers (`model.language_model.`) makes
no difference. A pattern has to match something known, and a part has to be converted as a whole:
else a `UserError` quotes the pattern, because bytes would be counted wrongly.
"""

import fnmatch
import itertools
import math
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import UserError
from .config_file import ConfigFile
from .formats import Format


LONGEST_PATTERN = 300
MOST_PATTERNS = 1_000
"""Globs and regular expressions in a list; plain names are not bounded."""
MOST_LAYERS = 1_000
LONGEST_NAME = 64
MOST_CHOICES, MOST_WAYS = 2_000, 200_000
"""Bounds on the ways to match a name: by choices in a regular expression, and with repetitions."""

_WRAPPER = re.compile(
    r"(model\.language_model|language_model\.model|model\.decoder|language_model|transformer"
    r"|backbone|model)\.(?=(layers|h|blocks|lm_head)\b)"
)
_STACK = re.compile(r"(layers|h|blocks)\.")
_OTHER_STACKS = (
    *("model.language_model.layers.", "language_model.model.layers.", "layers."),
    *("model.decoder.layers.", "transformer.h."),
)
_LAYER = re.compile(r"\blayers\.(\d+)")
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)((?:\..*)?)")
_NO_PART = re.compile(
    "norm|bias|vision|visual|image|audio|multi_?modal|projector|patch|embed|rotary|mtp|eagle"
    "|indexer|eh_proj|shared_head|shared_expert_gate|sinks",
    re.IGNORECASE,
)
"""Modules that are no matrices of a part, or of which no method here converts any."""

Spellings = tuple[tuple[str, ...], ...]
"""The same matrices, by the names that different models give them."""


def _under(module: str, *lists: str) -> Spellings:
    return tuple(tuple(f"{module}.{name}" for name in names.split()) for names in lists)


_GROUPED = (
    *_under("self_attn", "q_proj k_proj v_proj o_proj", "q_proj k_proj v_proj out_proj"),
    *_under("self_attn", "qkv_proj o_proj"),
    *_under("self_attention", "query_key_value dense"),
    *_under("attn", "c_attn c_proj"),
)
_LATENT = _under("self_attn", "q_proj kv_a_proj_with_mqa kv_b_proj o_proj")
_LATENT_QUERIES = _under("self_attn", "q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj o_proj")
_DENSE = (
    *_under("mlp", "gate_proj up_proj down_proj", "gate_up_proj down_proj"),
    *_under("mlp", "c_fc c_proj", "dense_h_to_4h dense_4h_to_h"),
    *_under("feed_forward", "gate_proj up_proj down_proj"),
    ("fc1", "fc2"),
)
_SHARED = (
    *_under("mlp.shared_experts", "gate_proj up_proj down_proj"),
    *_under("mlp.shared_expert", "gate_proj up_proj down_proj"),
    *_under("block_sparse_moe.shared_experts", "gate_proj up_proj down_proj"),
    *_under("feed_forward.shared_expert", "gate_proj up_proj down_proj"),
)
_ROUTER = (("mlp.gate",), ("mlp.router",), ("block_sparse_moe.gate",), ("feed_forward.router",))


def _experts(indices: Iterable[int]) -> Spellings:
    indices = tuple(indices)
    each = (
        *_under("mlp.experts.#", "gate_proj up_proj down_proj"),
        *_under("block_sparse_moe.experts.#", "w1 w2 w3"),
    )
    return (
        *(tuple(n.replace("#", str(i)) for n in names for i in indices) for names in each),
        *_under("mlp.experts", "gate_up_proj down_proj"),
        *_under("block_sparse_moe.experts", "gate_up_proj down_proj"),
        *_under("feed_forward.experts", "gate_up_proj down_proj"),
    )


_ALL_KINDS = (*_GROUPED, *_LATENT, *_LATENT_QUERIES, *_DENSE, *_SHARED, *_ROUTER, *_experts([0]))
_ANY_MODEL = (*(f"model.layers.0.{name}" for names in _ALL_KINDS for name in names), "lm_head")
"""Modules of all known kinds of layers: a list may name what a model does not have."""


# --- patterns -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pattern:
    """One entry of a list in a file."""

    text: str
    config: ConfigFile
    key: str
    """Where the list is, for errors."""
    regex: re.Pattern[str] | None = None
    """`None`: a plain name."""

    def error(self, what: str, allowed: str = "") -> UserError:
        """A `UserError` that quotes this pattern."""
        shown = self.text if len(self.text) <= 80 else f"{self.text[:77]}..."
        return self.config.error(self.key, f"{shown!r} {what}", allowed)

    def matches(self, name: str) -> bool:
        """Whether the pattern matches a module, or one that holds it."""
        if self.regex is None:
            return _canonical(self.text) in _runs(name)
        if not self.text.startswith("re:"):
            return self.regex.match(name) is not None
        stacks = () if self.text.startswith("re:.*") else _OTHER_STACKS
        return any(map(self.regex.match, _spelt(name, stacks)))


def parse_pattern(text: str, config: ConfigFile, key: str) -> Pattern:
    """Understand one pattern.

    **Raises:** `UserError` for a regular expression that is invalid or could take forever.
    """
    if not 1 <= len(text) <= LONGEST_PATTERN:
        raise config.error(key, f"a name of {len(text)} letters", f"1 to {LONGEST_PATTERN}")
    pattern = Pattern(text, config, key)
    if text.startswith("re:"):
        source = re.sub(r"(?<!\\)\.\*\$?$", "", text[3:])  # would match anything
        if _takes_long(source):
            raise pattern.error("could take too long to match: use fewer repetitions")
    elif any(letter in text for letter in "*?["):
        glob = _canonical(text)
        source = f"{fnmatch.translate(glob)}|{fnmatch.translate(glob + '.*')}"
    else:
        return pattern
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return Pattern(text, config, key, re.compile(source))
    except (re.error, Warning, OverflowError, RecursionError) as error:
        raise pattern.error(f"is not a regular expression: {error}") from None


def _takes_long(source: str) -> bool:
    """Whether there are too many ways to match a name of n letters.

    An upper bound is C(n + k, k) for k repetitions, times the product of all other choices; a
    repetition of digits alone ends after four. Repeated groups and inline flags are not bounded.
    """
    repetitions, choices, alternatives, previous = 0, 1, [1], ""
    for token in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?[a-zA-Z-]|.", source, re.DOTALL):
        if token in ("(", "(?P"):
            alternatives.append(1)
        elif token == "|":
            alternatives[-1] += 1
        elif token == ")" and len(alternatives) > 1:
            choices *= alternatives.pop()
        elif token.startswith("(?") or (token in ("*", "+", "{") and previous == ")"):
            return True
        elif token in ("*", "+", "{") and previous in ("\\d", "[0-9]"):
            choices *= 4
        elif token in ("*", "+", "{"):
            repetitions += 1
        elif token == "?" and previous not in ("(", "*", "+", "?", "}"):
            choices *= 2
        previous = token
    choices *= alternatives[0]
    ways = choices * math.comb(LONGEST_NAME + repetitions, repetitions)
    return choices > MOST_CHOICES or ways > MOST_WAYS


def _canonical(text: str) -> str:
    """A name as `model.layers.N...`, whatever wraps the layers."""
    bare = text
    if wrapper := _WRAPPER.match(text):
        bare = text[wrapper.end() :]
    return _STACK.sub("model.layers.", bare, count=1) if _STACK.match(bare) else bare


def _runs(name: str) -> set[str]:
    """All parts of a name between dots: of `a.b.c` also `a`, `b`, `c`, `a.b` and `b.c`."""
    words = name.split(".")
    ends = itertools.combinations(range(len(words) + 1), 2)
    return {".".join(words[start:end]) for start, end in ends}


def _spelt(name: str, stacks: Iterable[str]) -> list[str]:
    """Names that a regular expression may have been written for; experts may be one module."""
    names = [name]
    if ".experts." in name:
        names.append(name[: name.index(".experts.") + len(".experts")])
    inside = [n.removeprefix("model.layers.") for n in names if n.startswith("model.layers.")]
    return names + [stack + rest for stack in stacks for rest in inside]


# --- modules of a model -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Slot:
    """Matrices of one layer that belong to one part."""

    part: str
    spellings: Spellings


def _slots(model: ConfigFile) -> list[_Slot]:
    """The linear modules of a model; of the experts the first two and the last.

    A file without a number of layers has one: its family refuses it.
    """
    fields = model.fields
    layers = model.optional_count("num_hidden_layers", most=MOST_LAYERS) or 1
    last = (model.optional_count("num_local_experts") or 2) - 1
    shared = _any_positive(model, "shared") or str(model.model_type).startswith("llama4")
    attention = _GROUPED
    if fields.get("kv_lora_rank") is not None:
        attention = _LATENT if fields.get("q_lora_rank") is None else _LATENT_QUERIES
    sparse = [("experts", _experts(sorted({0, 1, last}))), ("router", _ROUTER)]
    sparse += [("mlp", _SHARED)] if shared else []
    tied = fields.get("tie_word_embeddings") is True  # the head is then the embedding
    slots = [] if tied else [_Slot("head", (("lm_head",),))]
    for layer in range(layers):
        kinds = sparse if _has_experts(model, layer) else [("mlp", _DENSE)]
        for part, spellings in [("attention", attention), *kinds]:
            full = (tuple(f"model.layers.{layer}.{n}" for n in names) for names in spellings)
            slots.append(_Slot(part, tuple(full)))
    return slots


def _any_positive(model: ConfigFile, word: str) -> bool:
    return any(word in key and type(n) is int and n > 0 for key, n in model.fields.items())


def _has_experts(model: ConfigFile, layer: int) -> bool:
    """Whether a layer is a mixture of experts, by the fields of the known families."""
    fields = model.fields
    if not _any_positive(model, "experts"):
        return False
    kinds, dense = fields.get("mlp_layer_types"), fields.get("mlp_only_layers")
    if isinstance(kinds, list) and layer < len(kinds):
        return kinds[layer] == "sparse"
    first = model.optional_count("first_k_dense_replace", least=0) or 0
    if layer < first or (isinstance(dense, list) and layer in dense):
        return False
    step = model.optional_count("decoder_sparse_step") or 1
    step = model.optional_count("interleave_moe_layer_step") or step
    frequency = fields.get("moe_layer_freq")
    if isinstance(frequency, list):
        return layer < len(frequency) and frequency[layer] == 1
    return (layer + 1) % step == 0 and layer % (model.optional_count("moe_layer_freq") or 1) == 0


# --- parts --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """Modules that are converted, and their new format."""

    format: Format
    targets: tuple[Pattern, ...] | None = None
    """`None`: every linear module but the routers."""


Outcome = tuple[Format | None, Pattern | None]
"""New format of a module, and the pattern that decided it."""


def formats_by_part(
    model: ConfigFile,
    rules: Iterable[Rule],
    excluded: tuple[Pattern, ...],
    parts: tuple[str, ...],
) -> tuple[tuple[str, Format], ...]:
    """The parts that are converted, and their formats.

    **Arguments:**

    - `model`: fields of the language model, for its layers and experts.
    - `rules`: in their order; one with `targets` goes before one without.
    - `excluded`: modules that no rule converts.
    - `parts`: those that the method converts at all.

    **Raises:** `UserError` if a part is converted in pieces, or a pattern is not understood.
    """
    rules = sorted(rules, key=lambda rule: rule.targets is None)
    patterns = [*excluded, *(p for rule in rules for p in rule.targets or ())]
    _check_experts(patterns, model)
    slots = _slots(model)
    names = [name for slot in slots for spelt in slot.spellings for name in spelt]
    out = _matched(excluded, names)
    targets = [_matched(rule.targets or (), names) for rule in rules]
    used = {pattern.text for found in (out, *targets) for pattern in found.values()}
    _check_known([p for p in patterns if p.text not in used], names, model)

    def outcome(name: str, part: str) -> Outcome:
        if name in out:
            return None, out[name]
        for rule, matched in zip(rules, targets, strict=True):
            if name in matched:
                return rule.format, matched[name]
            if rule.targets is None and part != "router":
                return rule.format, None
        return None, None

    found: dict[str, Outcome] = {}
    for slot in slots:
        if slot.part in parts:
            spellings = [[outcome(name, slot.part) for name in spelt] for spelt in slot.spellings]
            new = _of_slot(slot.part, spellings)
            old = found.setdefault(slot.part, new)
            if old[0] != new[0]:
                raise _in_pieces(slot.part, new[1] or old[1])
    return tuple((part, item) for part in parts if (item := found.get(part, (None,))[0]))


def _of_slot(part: str, spellings: list[list[Outcome]]) -> Outcome:
    """What becomes of a slot: decided by the spelling that the patterns are written in."""
    touched = [found for found in spellings if any(pattern for _, pattern in found)]
    for found in touched or spellings:
        if len({item for item, _ in found}) == 1:
            return next((o for o in found if o[1]), found[0])
    raise _in_pieces(part, next(pattern for _, pattern in touched[0] if pattern))


def _in_pieces(part: str, pattern: Pattern | None) -> UserError:
    assert pattern is not None  # without patterns, all modules of a part are treated alike
    return pattern.error(f"sets some matrices of {part} apart from the others", _WHOLE_PARTS)


_WHOLE_PARTS = "one format for all matrices of a part (attention, mlp, experts, router, head)"


def _matched(patterns: Iterable[Pattern], names: Iterable[str]) -> dict[str, Pattern]:
    """Name -> the first pattern that matches it, plain names before others."""
    plain = {_canonical(p.text): p for p in patterns if p.regex is None}
    others = [p for p in patterns if p.regex is not None]
    found: dict[str, Pattern] = {}
    for name in names:
        hit = next((plain[run] for run in _runs(name) if run in plain), None) if plain else None
        hit = hit or next((p for p in others if p.matches(name)), None)
        if hit:
            found[name] = hit
    return found


def _check_experts(patterns: list[Pattern], model: ConfigFile) -> None:
    """Refuse plain names of some of the experts."""
    listed: dict[tuple[str, str], set[str]] = defaultdict(set)
    last: dict[tuple[str, str], Pattern] = {}
    for pattern in patterns:
        if pattern.regex is None and (expert := _EXPERT.fullmatch(pattern.text)):
            listed[expert[1], expert[3]].add(expert[2])
            last[expert[1], expert[3]] = pattern
    for key, indices in listed.items():
        if len(indices) != model.optional_count("num_local_experts"):
            raise last[key].error("names one of the experts, but not all are named", _WHOLE_PARTS)


def _check_known(unused: list[Pattern], names: list[str], model: ConfigFile) -> None:
    """Refuse a pattern that matches no module of any model."""
    layers = model.optional_count("num_hidden_layers", most=MOST_LAYERS) or 1
    everything = (*names, *_ANY_MODEL)
    runs = set().union(*map(_runs, everything)) if unused else set()

    def known(pattern: Pattern) -> bool:
        if pattern.regex is None:
            return _canonical(pattern.text) in runs
        return any(pattern.matches(name) for name in everything)

    for pattern in unused:
        text = _canonical(pattern.text)
        if any(int(index) >= layers for index in _LAYER.findall(text)):
            continue  # layers after the last are for multi-token prediction
        if _NO_PART.search(text) or known(pattern):
            continue
        first = _EXPERT.sub(r"\1.0\3", text) if pattern.regex is None else text
        first = parse_pattern(_LAYER.sub("layers.0", first), pattern.config, pattern.key)
        if not known(first):
            raise pattern.error("matches no module that is known here")
