"""What a study sweeps: axes over designs, deployments, technology and traffic. No JAX here."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, model_validator

from ..catalog import default_records
from ..catalog.domains import check_domain
from ..errors import UserError, unknown_name
from ..fields import accepting, checked, limit, plain_text, whole, yes_or_no
from ..files import Table, invalid
from ..space import DESIGN_BOX, DESIGN_KEYS, OBJECTIVES
from ..units import parse_quantity, shown
from ..workload.phases import MOST_TOKENS
from .fields import written_in


HARDWARE, DEPLOYMENT = "hardware", "deployment"

LARGEST_BATCH = 1e9
MOST_LISTED = 100_000
"""Values that are written out, or on an axis that is not worked out from its index."""

DESIGN_AXES = DESIGN_KEYS | {
    "aspect_ratio": ("aspect_ratio", ""),
    "dies_per_package": ("dies_per_package", ""),
}
"""Key of an axis -> field of `Design`, and its unit."""
CLOCK_AXES = {"clock_prefill": "GHz", "clock_decode": "GHz"}
"""Clocks of the phases; without them a phase runs at the design's clock."""
TP_AXES = ("tp", "tp_prefill", "tp_decode")
BATCH_AXES = ("batch", "batch_prefill", "batch_decode")
TRAFFIC_AXES = ("prompt_tokens", "output_tokens")

_BOX = {
    **{key: DESIGN_BOX[field] for key, (field, _) in DESIGN_KEYS.items()},
    "aspect_ratio": (1.0, 4.0),
    "dies_per_package": (1.0, 8.0),
    **dict.fromkeys(CLOCK_AXES, DESIGN_BOX["clock_ghz"]),
    **dict.fromkeys(TP_AXES, (1.0, 1024.0)),
    **dict.fromkeys(BATCH_AXES, (1.0, LARGEST_BATCH)),
    **dict.fromkeys(TRAFFIC_AXES, (1.0, MOST_TOKENS)),
}

METRICS = OBJECTIVES | {
    "power_w": "W",
    "ttft_ms": "ms",
    "tbt_ms": "ms",
    "tokens_per_s": "1/s",
    "tdp_w": "W",
    "unit_cost_usd": "USD",
}
"""What is known of every point: name -> unit. Tokens per second are those of a decode group, and
larger is better; of everything else smaller is."""
LARGER_IS_BETTER = ("tokens_per_s",)


@dataclass(frozen=True)
class Axis:
    """Values of one quantity: listed, evenly spaced on a scale, or sampled."""

    values: tuple[float, ...] = ()
    low: float = math.nan
    high: float = math.nan
    points: int = 0
    scale: str = "list"
    sobol: bool = False

    @property
    def size(self) -> int:
        """Values on the axis; 0 where the samples of the sweep are counted instead."""
        return 0 if self.sobol else len(self.values) or self.points


def axis_unit(name: str) -> str:
    """Unit of the values of an axis."""
    if name in DESIGN_AXES:
        return DESIGN_AXES[name][1]
    if name in CLOCK_AXES:
        return CLOCK_AXES[name]
    return default_records()[name].unit if name in default_records() else ""


def axis_side(name: str) -> str:
    """Whether an axis belongs to the hardware, with the clocks at which it runs, or to the way of
    serving.
    """
    return DEPLOYMENT if name in (*TP_AXES, *BATCH_AXES, *TRAFFIC_AXES) else HARDWARE


def _known() -> tuple[str, ...]:
    return (*_BOX, *default_records())


_RANGE = ("from", "to", "points", "scale", "sobol")


@accepting(
    type="object",
    allowed="axis = a value, a list of values, or { from, to, points, scale, sobol }; a quantity "
    f"that has a unit is written with it; axes: {', '.join(_BOX)}, or table.field of a technology",
)
def _axes(value: Any) -> dict[str, Axis]:
    if not isinstance(value, dict) or not value:
        raise UserError(f"{shown(value)} is not accepted", allowed="a table of axes")
    axes = {}
    for name, given in value.items():
        if name not in _known():
            raise unknown_name("axis", name, _known(), where=name)
        axes[name] = _axis(name, given)
    return axes


def _axis(name: str, given: Any) -> Axis:
    if isinstance(given, dict):
        return _range(name, given)
    values = tuple(_value(name, item) for item in (given if isinstance(given, list) else [given]))
    if not values or len(set(values)) < len(values) or len(values) > MOST_LISTED:
        what = "too many values" if len(values) > MOST_LISTED else "a value is missing or twice"
        raise UserError(what, where=name, allowed=f"1 to {MOST_LISTED} different values")
    return Axis(values=values)


def _range(name: str, given: dict[str, Any]) -> Axis:
    for key in given:
        if key not in _RANGE:
            raise unknown_name("key", key, _RANGE, where=f"{name}.{key}")
    if name in TP_AXES:
        raise UserError("a range is no list of degrees", where=name, allowed="[1, 2, 4, 8]")
    for key in ("from", "to"):
        if key not in given:
            raise UserError("missing", where=f"{name}.{key}", allowed="both ends of the range")
    low, high = (_value(name, given[key], key) for key in ("from", "to"))
    scale = given.get("scale", "linear")
    if scale not in ("linear", "log"):
        raise UserError(f"{shown(scale)} is no scale", where=f"{name}.scale", allowed="linear, log")
    if not low < high or (scale == "log" and low <= 0.0):
        what = f"{shown(given['from'])} to {shown(given['to'])} is no range"
        raise UserError(what, where=f"{name}.from", allowed="below to; above 0 on a log scale")
    sobol = _at(f"{name}.sobol", yes_or_no, given.get("sobol", False))
    if sobol and "points" in given:
        what = "sampled axes share one number of points"
        raise UserError(what, where=f"{name}.points", allowed="sweep.samples")
    if not sobol and "points" not in given:
        raise UserError("missing", where=f"{name}.points", allowed="2 or more, or sobol = true")
    points = 0 if sobol else _at(f"{name}.points", whole(2, 10**9), given["points"])
    return Axis(low=low, high=high, points=points, scale=scale, sobol=sobol)


def _at(where: str, convert: Any, value: Any) -> Any:
    try:
        return convert(value)
    except UserError as error:
        raise UserError(error.what, where=where, allowed=error.allowed) from None


def _value(name: str, given: Any, key: str = "") -> float:
    where = f"{name}.{key}" if key else name
    unit = axis_unit(name)
    value = parse_quantity(given, unit, where, bare=not unit or name not in DESIGN_AXES)
    if name not in _BOX:
        check_domain(name, value, where)
        return value
    least, most = _BOX[name]
    if not least <= value <= most or (name in TP_AXES and not value.is_integer()):
        allowed = f"{least:g} to {most:g} {unit}".strip()
        raise UserError(f"{shown(given)} is not accepted", where=where, allowed=allowed)
    return value


def _written_axes(axes: dict[str, Axis]) -> dict[str, Any]:
    def written(value: float, unit: str) -> Any:
        return f"{value!r} {unit}" if unit else value

    table = {}
    for name, axis in axes.items():
        unit = axis_unit(name)
        if axis.values:
            table[name] = [written(value, unit) for value in axis.values]
        else:
            spread = {"sobol": True} if axis.sobol else {"points": axis.points}
            ends = {"from": written(axis.low, unit), "to": written(axis.high, unit)}
            table[name] = ends | {"scale": axis.scale} | spread
    return table


def _name_lists(known: Any, least: int, most: int, what: str):
    """Converter of a list of lists of different names."""

    def convert(value: Any) -> tuple[tuple[str, ...], ...]:
        rows = value if isinstance(value, list) else [value]
        if rows and all(isinstance(name, str) for name in rows):
            rows = [rows]
        result = []
        for row in rows:
            if not isinstance(row, list) or not least <= len(row) <= most or _repeats(row):
                raise UserError(f"{shown(row)} is not accepted", allowed=what)
            for name in row:
                if name not in known():
                    raise unknown_name("name", str(name), known())
            result.append(tuple(row))
        return tuple(result)

    return convert


def _repeats(row: list) -> bool:
    return any(name in row[:index] for index, name in enumerate(row))


def _metric_names(value: Any) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    for name in names:
        if name not in METRICS:
            raise unknown_name("metric", str(name), METRICS)
    return tuple(dict.fromkeys(names))


def _cap(unit: str, alias: str) -> Any:
    return Annotated[float | None, checked(limit(unit)), written_in(unit), Field(alias=alias)]


class StudySweep(Table):
    """A landscape: every combination of the axes, and what is kept of it."""

    workload: str = ""
    """Name of the workload; the first one if empty."""
    accelerator: str = ""
    """Accelerator that gives every design value without an axis, and the technology; without one
    the axes give all of the design, and the study's technologies are swept."""
    roof: Annotated[str, checked(plain_text)] = "soft"
    """`soft`, with the overlap exponent of the technology, or `hard`, the classic roofline."""
    samples: Annotated[int, checked(whole(1, 2**31 - 1))] = 1024
    """Points of the axes that are sampled together (`sobol = true`)."""
    best: Annotated[int, checked(whole(0, 10_000))] = 10
    """How many of the best points are kept."""
    fronts: Annotated[
        tuple[tuple[str, ...], ...],
        checked(_name_lists(lambda: METRICS, 2, 3, "lists of two or three metrics")),
    ] = ()
    """Pareto fronts, each of two or three metrics."""
    maps: Annotated[
        tuple[tuple[str, ...], ...], checked(_name_lists(_known, 2, 2, "pairs of axes"))
    ] = ()
    """Best point in every cell of two axes."""
    histograms: Annotated[tuple[str, ...], checked(_metric_names)] = ()
    """Metrics whose distribution over the feasible points is counted."""
    each: Annotated[bool, checked(yes_or_no)] = False
    """Whether to write the best deployment of every hardware point."""
    rows: Annotated[bool, checked(yes_or_no)] = False
    """Whether to write every point."""
    part_points: Annotated[int, checked(whole(0, 10**12))] = 0
    """Points between two files of results, what a run that is killed loses at most; 0: fitting."""
    die_area_max_mm2: _cap("mm^2", "die_area_max") = None  # pyright: ignore[reportInvalidTypeForm]
    """Largest die."""
    tdp_max_w: _cap("W", "tdp_max") = None  # pyright: ignore[reportInvalidTypeForm]
    """Most power of a package."""
    unit_cost_max_usd: _cap("USD", "unit_cost_max") = None  # pyright: ignore[reportInvalidTypeForm]
    """Most that a package may cost to make."""
    axes: Annotated[dict[str, Axis], checked(_axes), PlainSerializer(_written_axes)]
    """What is swept; an axis of one value fixes it."""

    @model_validator(mode="after")
    def _consistent(self) -> "StudySweep":
        for fault in self._faults():
            raise invalid(fault)
        return self

    def _faults(self):
        if self.roof not in ("soft", "hard"):
            yield unknown_name("roof", self.roof, ("soft", "hard"), where="roof")
        for both, parts in (("tp", TP_AXES[1:]), ("batch", BATCH_AXES[1:])):
            for name in parts:
                if both in self.axes and name in self.axes:
                    yield UserError(f"{both} is both {' and '.join(parts)}", where=f"axes.{name}")
        sides = {axis_side(name) for name, axis in self.axes.items() if axis.sobol}
        if len(sides) > 1:
            what = "axes of the hardware and of the deployment are sampled together"
            yield UserError(what, where="axes", allowed="sobol = true on one side")
        for pair in self.maps:
            for name in pair:
                axis = self.axes.get(name)
                if axis is None or axis.sobol:
                    known = [key for key, axis in self.axes.items() if not axis.sobol]
                    yield unknown_name("axis of the sweep", name, known, where="maps")
