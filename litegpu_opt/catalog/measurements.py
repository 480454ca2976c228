"""Measurements that others published, to hold the model against."""

import tomllib
from dataclasses import dataclass

from ..files import embedded
from .records import Record


@dataclass(frozen=True)
class MeasuredPower:
    """One measured power, with its load."""

    accelerator: str
    model: str
    engine: str
    devices: int
    batch: int
    prompt: float
    output: float
    watts: float
    """Of one device."""
    tokens_per_s: float | None = None
    """Prompt and output tokens of all devices, where they were measured beside it."""


@dataclass(frozen=True)
class PowerSeries:
    """Powers that one source measured in one way."""

    name: str
    title: str
    source: str
    licence: str
    trust: str
    rows: tuple[MeasuredPower, ...]


def power_series() -> tuple[PowerSeries, ...]:
    """The catalogue's measured powers."""
    text = embedded("measurements", "power.toml").read_text("utf-8")
    series = []
    for name, entry in tomllib.loads(text).items():
        columns, rows = entry.pop("columns"), entry.pop("rows")
        read = tuple(MeasuredPower(**dict(zip(columns, row, strict=True))) for row in rows)
        series.append(PowerSeries(name=name, rows=read, **entry))
    return tuple(series)


def stack_records() -> dict[str, dict[str, Record]]:
    """Serving stack -> its few numbers, and those of the roofline that the model stands beside."""
    return _tables_of_records("serving_stacks.toml")


def call_records() -> dict[str, dict[str, Record]]:
    """Generation -> what the quantising calls of a library cost beyond its kernels."""
    return _tables_of_records("kernel_calls.toml")


def _tables_of_records(name: str) -> dict[str, dict[str, Record]]:
    stacks = tomllib.loads(embedded("measurements", name).read_text("utf-8"))
    return {
        stack: {key: Record.of_leaf(leaf, f"{name}:{stack}.{key}") for key, leaf in entry.items()}
        for stack, entry in stacks.items()
    }


def issued_share() -> Record:
    """Share of the clocks in which a large GEMM issues."""
    leaf = tomllib.loads(embedded("measurements", "gemm.toml").read_text("utf-8"))["issued_share"]
    return Record.of_leaf(leaf, "gemm.toml:issued_share")
