"""Measurements beside which the machine model stands: powers in decode, what GEMMs issue."""

import tomllib
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..files import embedded
from .records import Record


_PLACE = "measurements.toml"


@dataclass(frozen=True)
class DecodePower:
    """Power of a chip in decode, and how much of it is thought to be in use."""

    chip: str
    load: str
    memory_share: Record
    """Of the memory bandwidth."""
    compute_share: Record
    """Of the dense bf16 peak."""
    power_w: Record


@cache
def _content() -> dict[str, Any]:
    return tomllib.loads(embedded(_PLACE).read_text("utf-8"))


def issued_share() -> Record:
    """Share of the clocks in which a large GEMM issues."""
    return Record.of_leaf(_content()["issued_share"], f"{_PLACE}:issued_share")


def decode_powers() -> tuple[DecodePower, ...]:
    """Measured powers of chips in decode."""
    return tuple(
        DecodePower(
            chip=row["chip"],
            load=row["load"],
            **{
                field: Record.of_leaf(row[key], f"{_PLACE}:decode_power[{index}].{key}")
                for field, key in (
                    ("memory_share", "memory_share"),
                    ("compute_share", "compute_share"),
                    ("power_w", "power"),
                )
            },
        )
        for index, row in enumerate(_content()["decode_power"])
    )
