"""What a family module provides."""

from collections.abc import Callable
from typing import NamedTuple

from ..config_file import ConfigFile
from ..transformer import Transformer


class Family(NamedTuple):
    """One `model_type`."""

    read: Callable[[ConfigFile], Transformer]
    fields: frozenset[str]
    """Fields of the file that `read` looks at."""


def whole_head_dim(config: ConfigFile, hidden: int, heads: int) -> int:
    """Head dimension h/q of a model that does not state it."""
    if hidden % heads:
        raise config.error("num_attention_heads", f"{heads} does not divide hidden size {hidden}")
    return hidden // heads
