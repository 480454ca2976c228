"""Which parts of a model a quantisation converts: module names against the patterns of its lists.

A pattern is one of

- a name, or a part of one between dots: `lm_head`, `model.layers.3.mlp`, `gate`; it stands for the
  module and everything below it;
- a glob, in which `*` also matches dots: `model.layers.*.self_attn`, `*router*`;
- a regular expression after `re:` that matches from the start of a name: `re:.*mlp.gate$`.

These are the dialects of `modules_to_not_convert` in transformers, `exclude_modules` in ModelOpt,
`ignore` and `targets` in compressed-tensors (where a plain name is only the module itself). What
wraps the stack of layers (`model.language_model.`) makes no difference. A pattern has to match
something known, and a part has to be converted as a whole: else a `UserError` quotes the pattern,
because bytes would be counted wrongly.
"""

import fnmatch
import itertools
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..errors import UserError
from .config_file import ConfigFile, short
from .formats import Format
from .transformer import Experts, LatentAttention, Transformer


# Matrices of a layer, one a line, by the names that models and programs give them; the last ones
# of a line are what several matrices are merged to.
_GROUPED = (
    "self_attn.q_proj self_attn.qkv_proj self_attention.query_key_value attn.c_attn",
    "self_attn.k_proj self_attn.qkv_proj self_attention.query_key_value attn.c_attn",
    "self_attn.v_proj self_attn.qkv_proj self_attention.query_key_value attn.c_attn",
    "self_attn.o_proj self_attn.out_proj self_attention.dense attn.c_proj",
)
_LATENT = ("self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj", "self_attn.o_proj")
_LATENT_QUERIES = ("self_attn.q_a_proj", "self_attn.q_b_proj")
_DENSE = (
    "mlp.gate_proj mlp.gate_up_proj mlp.c_fc mlp.dense_h_to_4h fc1",
    "mlp.up_proj mlp.gate_up_proj mlp.c_fc mlp.dense_h_to_4h fc1",
    "mlp.down_proj mlp.c_proj mlp.dense_4h_to_h fc2",
)
_SHARED = (
    "mlp.shared_experts.gate_proj mlp.shared_expert.gate_proj",
    "mlp.shared_experts.up_proj mlp.shared_expert.up_proj",
    "mlp.shared_experts.down_proj mlp.shared_expert.down_proj",
)
_ROUTER = ("mlp.gate mlp.router block_sparse_moe.gate",)
_EXPERT = (
    "mlp.experts.#.gate_proj block_sparse_moe.experts.#.w1 mlp.experts.gate_up_proj mlp.experts",
    "mlp.experts.#.up_proj block_sparse_moe.experts.#.w3 mlp.experts.gate_up_proj mlp.experts",
    "mlp.experts.#.down_proj block_sparse_moe.experts.#.w2 mlp.experts.down_proj mlp.experts",
)
_KINDS = (*_GROUPED, *_LATENT, *_LATENT_QUERIES, *_DENSE, *_SHARED, *_ROUTER, *_EXPERT)
_ANY_LAYER = " ".join(_KINDS).replace("#", "0").split()
_ANY_MODEL = ("lm_head", *(f"model.layers.0.{name}" for name in _ANY_LAYER))
"""Modules of all known kinds of layers: a list may name what a model does not have."""

_NO_PART = re.compile(
    "norm|bias|vision|visual|image|audio|multi_?modal|projector|patch|embed|rotary|mtp|eagle"
    "|indexer|eh_proj|shared_head|shared_expert_gate|sinks",
    re.IGNORECASE,
)
"""Modules that are no matrices of a part, or of which no method here converts any."""


def _matrices(model: Transformer) -> Iterator[tuple[str, list[str]]]:
    """Part and names of every matrix; three of the experts stand for all."""
    if not model.tied_embeddings:  # else the head is the embedding
        yield "head", ["lm_head"]
    for index, layer in enumerate(model.layers):
        parts: dict[str, Sequence[str]] = {"attention": _GROUPED, "mlp": _DENSE}
        if isinstance(layer.attention, LatentAttention):
            queries = _LATENT_QUERIES if layer.attention.query_rank else ("self_attn.q_proj",)
            parts["attention"] = _LATENT + queries
        if isinstance(layer.mlp, Experts):
            some = sorted({0, layer.mlp.count // 2, layer.mlp.count - 1})
            parts["experts"] = [line.replace("#", str(i)) for i in some for line in _EXPERT]
            parts["router"] = _ROUTER
            parts["mlp"] = _SHARED if layer.mlp.shared_width else ()
        for part, lines in parts.items():
            for line in lines:
                yield part, [f"model.layers.{index}.{name}" for name in line.split()]


# --- patterns -----------------------------------------------------------------------------------


LONGEST_PATTERN = 300
MOST_PATTERNS = 1_000
"""Globs and regular expressions in a list; plain names are not bounded."""
MOST_WAYS = 2**20
"""Bound on the ways in which a regular expression may match a name of 64 letters."""

_START = re.compile(
    r"(re:\^?(?:\.\*)?|\*?)"
    r"(?:(?:(?:model|language_model|decoder|transformer|backbone)\\?\.)+(layers|h|blocks|lm_head)"
    r"|layers)\b"
)
"""A pattern up to the layers or the head; dots may be escaped."""
_LAYER = re.compile(r"\blayers\\?\.(\d+)")
_EXPERT_INDEX = re.compile(r"(?<=\.experts)\.\d+\b")


@dataclass(frozen=True)
class Pattern:
    """One entry of a list in a file."""

    text: str
    config: ConfigFile
    key: str
    """Where the list is, for errors."""

    def error(self, what: str, allowed: str = "") -> UserError:
        """A `UserError` that quotes this pattern."""
        return self.config.error(self.key, f"{self.text!r} {what}", allowed)

    @cached_property
    def name(self) -> str:
        """The text with the layers at `model.layers.`, whatever wraps them."""
        start = _START.match(self.text)
        if start is None:
            return self.text
        stack = "lm_head" if start[2] == "lm_head" else "model.layers"
        return start[1] + stack + self.text[start.end() :]

    @cached_property
    def regex(self) -> re.Pattern[str] | None:
        """`None` for a plain name.

        **Raises:** `UserError` for a regular expression that is invalid or could take forever.
        """
        if self.name.startswith("re:"):
            source = re.sub(r"(?<!\\)\.\*\$?$", "", self.name[3:])  # would match anything
            if _takes_long(source):
                raise self.error("could take too long to match: use fewer repetitions")
        elif any(letter in self.name for letter in "*?["):
            source = f"{fnmatch.translate(self.name)}|{fnmatch.translate(self.name + '.*')}"
        else:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                return re.compile(source)
        except (re.error, Warning, OverflowError, RecursionError) as error:
            raise self.error(f"is not a regular expression: {error}") from None

    def matches(self, name: str) -> bool:
        """Whether the pattern matches a module, or one that holds it."""
        return self.regex.match(name) is not None if self.regex else self.name in _runs(name)


def _takes_long(source: str) -> bool:
    """Whether there may be too many ways to match a name: the product of all choices.

    These are 64 for a repetition, but 4 of digits, 2 for an option and 3 for `a|b|c`. Repeated
    groups and inline flags are not bounded.
    """
    digits = len(re.findall(r"(?:\\d|\[0-9\])[*+]", source))
    repetitions = len(re.findall(r"[*+{]", source)) - digits
    ways = 4**digits * 64**repetitions * 2 ** len(re.findall(r"[^(]\?", source))
    ways *= math.prod(1 + inside.count("|") for inside in re.split("[()]", source))
    return ways > MOST_WAYS or re.search(r"\)[*+{]|\(\?[a-zA-OQ-Z-]", source) is not None


def read_patterns(config: ConfigFile, *keys: str) -> tuple[Pattern, ...]:
    """The patterns of some lists."""
    found: dict[str, Pattern] = {}
    for key in keys:
        texts = config.fields.get(key)
        if texts is None:
            continue
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise config.error(key, f"{short(texts)} is not understood", "a list of module names")
        if not all(1 <= len(text) <= LONGEST_PATTERN for text in texts):
            raise config.error(key, "an unusable name", f"1 to {LONGEST_PATTERN} letters")
        found |= {text: Pattern(text, config, key) for text in texts}
    if sum(pattern.regex is not None for pattern in found.values()) > MOST_PATTERNS:
        raise config.error(keys[0], f"more than {MOST_PATTERNS} patterns besides plain names")
    return tuple(found.values())


def _runs(name: str) -> set[str]:
    """All parts of a name between dots: of `a.b.c` also `a`, `b`, `c`, `a.b` and `b.c`."""
    words = name.split(".")
    ends = itertools.combinations(range(len(words) + 1), 2)
    return {".".join(words[start:end]) for start, end in ends}


def _matcher(patterns: Iterable[Pattern]) -> Callable[[list[str]], Pattern | None]:
    """Names of a matrix -> the first pattern that matches one of them, plain names first."""
    plain = {p.name: p for p in patterns if p.regex is None}
    others = [p for p in patterns if p.regex is not None]

    def match(names: list[str]) -> Pattern | None:
        runs = (run for name in names for run in _runs(name)) if plain else ()
        hit = next((plain[run] for run in runs if run in plain), None)
        return hit or next((p for p in others if any(map(p.matches, names))), None)

    return match


# --- parts --------------------------------------------------------------------------------------


Rule = tuple[Format, tuple[Pattern, ...] | None]
"""New format, and the modules that it is for; `None`: every linear one but the routers."""

_WHOLE_PARTS = "one format for all matrices of a part (attention, mlp, experts, router, head)"


def formats_by_part(
    model: Transformer, rules: list[Rule], excluded: tuple[Pattern, ...], parts: Sequence[str]
) -> tuple[tuple[str, Format], ...]:
    """The parts that are converted, and their formats.

    **Arguments:**

    - `rules`: in their order; one with modules goes before one without.
    - `excluded`: modules that no rule converts.
    - `parts`: those that the method converts at all.

    **Raises:** `UserError` if a part is converted in pieces, or a pattern matches nothing known.
    """
    named = [(None, excluded), *((new, targets) for new, targets in rules if targets is not None)]
    matrices = list(_matrices(model))
    names = [name for _, names in matrices for name in names]
    _check([pattern for _, patterns in named for pattern in patterns], model, names)
    matchers = [(new, _matcher(patterns)) for new, patterns in named]
    general = next((new for new, targets in rules if targets is None), None)
    found: dict[str, tuple[Format | None, Pattern | None]] = {}
    for part, names in matrices:
        if part in parts:
            hits = ((new, hit) for new, match in matchers if (hit := match(names)))
            new, pattern = next(hits, (None if part == "router" else general, None))
            old, other = found.setdefault(part, (new, pattern))
            if new != old:
                pattern = pattern or other
                assert pattern is not None  # without patterns, a part is treated as a whole
                what = f"sets some matrices of {part} apart from the others"
                raise pattern.error(what, _WHOLE_PARTS)
    return tuple((part, new) for part in parts if (new := found.get(part, (None,))[0]))


def _check(patterns: list[Pattern], model: Transformer, names: list[str]) -> None:
    """Refuse plain names of some of the experts, and patterns that match nothing.

    What matches no module of this model has to match one of another, at any layer or expert.
    """
    count = next((x.mlp.count for x in model.layers if isinstance(x.mlp, Experts)), 0)
    plain = [pattern.name for pattern in patterns if pattern.regex is None]
    listed = Counter(_EXPERT_INDEX.sub(".0", name) for name in plain)
    kinds: dict[str, Pattern] = {}
    for pattern in patterns:
        text = pattern.name
        if pattern.regex is None and _EXPERT_INDEX.search(text):
            text = _EXPERT_INDEX.sub(".0", text)
            if listed[text] != count:
                raise pattern.error("is one of the experts, but not all are named", _WHOLE_PARTS)
        # Layers after the last are for multi-token prediction.
        if all(int(index) < len(model.layers) for index in _LAYER.findall(text)):
            kinds[_LAYER.sub("layers.0", text)] = pattern
    for text, pattern in kinds.items():
        if not _NO_PART.search(text):
            first = Pattern(text, pattern.config, pattern.key)
            if not (any(map(first.matches, _ANY_MODEL)) or any(map(pattern.matches, names))):
                raise pattern.error("matches no module that is known here")
