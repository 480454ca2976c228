"""Checked access to the fields of a Hugging Face `config.json`."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import LONGEST_NAME, UserError


LARGEST_COUNT = 10**7
"""Bound on any single size (the largest vocabularies have about 3e5 rows)."""

SPELLINGS = {
    "hidden_size": ("n_embd", "n_embed"),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
    "intermediate_size": ("ffn_dim", "n_inner", "ffn_hidden_size"),
    "max_position_embeddings": ("n_positions",),
    "num_local_experts": ("num_experts", "n_routed_experts"),
    "num_experts_per_tok": ("experts_per_token", "top_k_experts"),
    "sliding_window": ("sliding_window_size",),
    "sliding_window_pattern": ("_sliding_window_pattern",),
}
"""Field -> its other spellings, old and new. The code uses the first throughout."""

READ_FOR_ALL = frozenset({"model_type", "quantization_config"})
"""Fields that are read whatever the family."""

WITHOUT_EFFECT = frozenset(
    """
    _name_or_path activation_dropout activation_function architectures attention_dropout attn_pdrop
    auto_map bos_token_id dropout dtype embd_pdrop encoder_no_repeat_ngram_size eos_token_id
    gradient_checkpointing hidden_act hidden_dropout init_std initializer_range layer_norm_epsilon
    layerdrop max_position_embeddings n_ctx n_positions original_max_position_embeddings
    output_attentions output_hidden_states pad_token_id prefix pretraining_tp
    reorder_and_upcast_attn resid_pdrop rms_norm_eps rope_parameters rope_scaling rope_theta
    scale_attn_by_inverse_layer_idx scale_attn_weights seq_length summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    task_specific_params tokenizer_class torch_dtype transformers_version unk_token_id use_cache
    """.split()
)
"""Fields that change neither a parameter count nor an operator count, whatever the family."""

_CHANGES_COUNTS = re.compile(
    "expert|moe|router|lora|window|_config|layers|layer_types|block|head|hidden_size|ffn|inner"
    "|intermediate|embd|mamba|ssm|conv|cross|encoder|nextn|mtp|parallel_attn|multi_query|k_dense"
    "|bias|qk_|bidirectional|swa|local|d_model|d_ff|dim|vocab|chunk|rank|sparse|shared"
)


def spellings(key: str) -> tuple[str, ...]:
    """A field under all its spellings, the one that the code uses first."""
    return key, *SPELLINGS.get(key, ())


def every_spelling(fields: Iterable[str]) -> frozenset[str]:
    """Fields under all their spellings."""
    return frozenset(name for key in fields for name in spellings(key))


@dataclass(frozen=True)
class ConfigFile:
    """The fields of one file. Every default that is used is added to `assumed`."""

    fields: Mapping[str, Any]
    path: str
    name: str
    """Name of the model."""
    assumed: list[str] = field(default_factory=list)
    prefix: str = ""
    """Where in the file the fields are: empty at the top, else ending in a dot."""

    @property
    def model_type(self) -> Any:
        """What the file says that the model is."""
        return self.fields.get("model_type")

    def error(self, key: str, what: str, allowed: str = "") -> UserError:
        """A `UserError` that points at a key of this file."""
        place = key if len(key) <= LONGEST_NAME else f"{key[:LONGEST_NAME]}..."
        return UserError(what, where=f"{self.path}:{self.prefix}{place}", allowed=allowed)

    def assume(self, fact: str) -> None:
        """Record a fact that the family fixes and the file does not state."""
        if fact not in self.assumed:
            self.assumed.append(fact)

    def states(self, key: str) -> bool:
        """Whether the file has the key under any spelling; it may be null."""
        return any(name in self.fields for name in spellings(key))

    def optional_count(self, key: str, *, least: int = 1, most: int = LARGEST_COUNT) -> int | None:
        """A whole number under any spelling of a key, or `None` where it is absent or null."""
        names = spellings(key)
        values = {name: self.fields[name] for name in names if self.fields.get(name) is not None}
        for name, value in values.items():
            if type(value) is not int or not least <= value <= most:
                raise self.error(
                    name,
                    f"{short(value)} is not a usable size",
                    allowed=f"a whole number from {least} to {most}",
                )
        if len(set(values.values())) > 1:
            first, *others = values
            raise self.error(first, f"contradicts {', '.join(others)}: {values}")
        return next(iter(values.values()), None)

    def count(
        self, key: str, *, default: int | None = None, least: int = 1, most: int = LARGEST_COUNT
    ) -> int:
        """A whole number under any spelling of a key, or `default`, which is recorded."""
        value = self.optional_count(key, least=least, most=most)
        if value is not None:
            return value
        if default is None:
            others = spellings(key)[1:]
            also = f" (also spelt {', '.join(others)})" if others else ""
            allowed = f"a whole number from {least} to {most}"
            raise self.error(key, f"missing{also}", allowed)
        self.assume(f"{key} = {default}")
        return default

    def flag(self, key: str, *, default: bool) -> bool:
        """A boolean, or `default`, which is recorded."""
        value = self.fields.get(key)
        if value is None:
            self.assume(f"{key} = {json.dumps(default)}")
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"{short(value)} is not a boolean", allowed="true, false")
        return value

    def require(self, key: str, *, expected: bool) -> None:
        """Refuse the variant of a family in which the flag `key` is not `expected`."""
        if self.flag(key, default=expected) is not expected:
            raise self.error(
                key,
                f"{json.dumps(not expected)} is not understood",
                allowed=json.dumps(expected),
            )

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        """One of the names in `allowed`; the first is the default, which is recorded."""
        value = self.fields.get(key)
        if value is None:
            self.assume(f"{key} = {allowed[0]}")
            return allowed[0]
        if value not in allowed:
            raise self.error(key, f"{short(value)} is not understood", allowed=", ".join(allowed))
        return value

    def listed(self, key: str, allowed: Sequence[Any], items: str) -> tuple[Any, ...] | None:
        """A list of items that are all in `allowed`, or `None` where it is absent or null.

        **Arguments:**

        - `items`: what is allowed, in words.
        """
        values = self.fields.get(key)
        if values is None:
            return None
        if not isinstance(values, list):
            raise self.error(key, f"{short(values)} is not a list", allowed=f"a list of {items}")
        for value in values:
            if type(value) is not type(allowed[0]) or value not in allowed:
                raise self.error(key, f"{short(value)} is not understood", allowed=items)
        return tuple(values)

    def nested(self, key: str) -> "ConfigFile":
        """The object under `key`; its defaults are recorded with those of the whole file."""
        fields = self.fields[key]
        if not isinstance(fields, Mapping):
            raise self.error(key, f"{short(fields)} is not a JSON object")
        return replace(self, fields=fields, prefix=f"{self.prefix}{key}.")

    def not_understood(self, understood: frozenset[str]) -> list[str]:
        """Fields that are switched on and neither understood nor known to be without effect."""
        ignored = understood | WITHOUT_EFFECT | READ_FOR_ALL
        return sorted(k for k, v in self.fields.items() if k not in ignored and not _is_off(v))

    def check_leftovers(self, understood: frozenset[str], elsewhere: frozenset[str]) -> None:
        """Refuse fields that change the counts and that the family does not read; echo the rest.

        **Arguments:**

        - `understood`: the fields that the family reads, or knows to be without effect.
        - `elsewhere`: the fields that any family reads.
        """
        for key in self.not_understood(understood):
            if key in elsewhere or _CHANGES_COUNTS.search(key):
                raise self.error(
                    key,
                    f"not understood in a model of type {self.model_type!r}, and may change counts",
                )
            self.assume(f"{short(key)} is not understood, and taken to change no count")


def short(value: object) -> str:
    """A value as errors quote it."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _is_off(value: object) -> bool:
    """Null, false, empty, or none of something, 0."""
    return value in (None, 0, {}, [])
