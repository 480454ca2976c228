"""Checked access to the fields of a Hugging Face `config.json`."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import UserError


LARGEST_COUNT = 10**7
"""Bound on any single size (the largest vocabularies have about 3e5 rows)."""

WITHOUT_EFFECT = frozenset(
    """
    _name_or_path activation_dropout activation_function architectures attention_dropout attn_pdrop
    auto_map bos_token_id dropout dtype embd_pdrop eos_token_id gradient_checkpointing hidden_act
    init_std initializer_range layer_norm_epsilon layerdrop max_position_embeddings n_ctx
    output_attentions output_hidden_states pad_token_id prefix pretraining_tp
    reorder_and_upcast_attn resid_pdrop rms_norm_eps rope_parameters rope_scaling rope_theta
    scale_attn_by_inverse_layer_idx scale_attn_weights summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj task_specific_params tokenizer_class
    torch_dtype transformers_version use_cache
    """.split()
)
"""Fields that change neither a parameter count nor an operator count."""

_CHANGES_COUNTS = re.compile(
    "expert|moe|router|lora|window|_config|layers|layer_types|block|head|hidden_size|ffn|inner"
    "|intermediate|embd|mamba|ssm|conv|cross|encoder|nextn|mtp|parallel_attn|multi_query|k_dense"
)


@dataclass(frozen=True)
class ConfigFile:
    """The fields of one file. Every default that is used is added to `assumed`."""

    fields: Mapping[str, Any]
    path: str
    name: str
    """Name of the model."""
    assumed: list[str] = field(default_factory=list)

    def error(self, key: str, what: str, allowed: str = "") -> UserError:
        """A `UserError` that points at a key of this file."""
        return UserError(what, where=f"{self.path}:{key}", allowed=allowed)

    def assume(self, fact: str) -> None:
        """Record a fact that the family fixes and the file does not state."""
        self.assumed.append(fact)

    def count(self, *keys: str, default: int | None = None) -> int:
        """A positive whole number under any of its spellings, or `default`, which is recorded."""
        values = {key: self.fields[key] for key in keys if self.fields.get(key) is not None}
        for key, value in values.items():
            if type(value) is not int or not 1 <= value <= LARGEST_COUNT:
                raise self.error(
                    key,
                    f"{_short(value)} is not a usable size",
                    allowed=f"a whole number from 1 to {LARGEST_COUNT}",
                )
        if len(set(values.values())) > 1:
            raise self.error(keys[0], f"contradicts {', '.join(list(values)[1:])}: {values}")
        if values:
            return next(iter(values.values()))
        if default is None:
            raise self.error(keys[0], "missing", allowed="a positive whole number")
        self.assume(f"{keys[0]} = {default}")
        return default

    def flag(self, key: str, *, default: bool) -> bool:
        """A boolean, or `default`, which is recorded."""
        value = self.fields.get(key)
        if value is None:
            self.assume(f"{key} = {json.dumps(default)}")
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"{_short(value)} is not a boolean", allowed="true, false")
        return value

    def require(self, key: str, *, expected: bool) -> None:
        """Refuse the variant of a family in which the flag `key` is not `expected`."""
        if self.flag(key, default=expected) is not expected:
            raise self.error(
                key,
                f"{json.dumps(not expected)} is not understood",
                allowed=json.dumps(expected),
            )

    def not_understood(self, understood: frozenset[str]) -> list[str]:
        """Fields that are switched on and neither understood nor known to be without effect."""
        ignored = understood | WITHOUT_EFFECT | {"model_type"}
        return sorted(k for k, v in self.fields.items() if k not in ignored and not _is_off(v))

    def check_leftovers(self, understood: frozenset[str], elsewhere: frozenset[str]) -> None:
        """Refuse fields that change the counts and that the family does not read; echo the rest.

        **Arguments:**

        - `understood`: the fields that the family reads.
        - `elsewhere`: the fields that any family reads.
        """
        for key in self.not_understood(understood):
            if key in elsewhere or _CHANGES_COUNTS.search(key):
                model_type = self.fields["model_type"]
                raise self.error(
                    key, f"not understood in a model of type {model_type!r}, and may change counts"
                )
            self.assume(f"{_short(key)} has no effect on the counts")


def _is_off(value: object) -> bool:
    return value is None or value is False or value == {} or value == []


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
