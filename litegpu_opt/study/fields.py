"""Kinds of value in a study: each says in its error and in the schema what it allows."""

from functools import partial
from typing import Annotated, Any

from pydantic import Field, PlainSerializer

from ..catalog import names, override_records
from ..errors import UserError, unknown_name
from ..fields import (
    OVERRIDES,
    Converter,
    accepting,
    checked,
    limit,
    number,
    one_of,
    plain_name,
    several,
)
from ..files import toml_literal
from ..space import DESIGN_BOX, DESIGN_KEYS, OBJECTIVES, RECIPROCALS, objective_name
from ..units import parse_quantity, shown
from ..workload.precision import allowed_formats


def entry_of(table: str) -> Converter:
    return one_of(table, partial(names, table))


@accepting(type="object", **OVERRIDES)
def technology_overrides(value: Any) -> dict[str, float]:
    return {name: record.value for name, record in override_records(value).items()}


def written_in(unit: str) -> PlainSerializer:
    return PlainSerializer(
        lambda value: "none" if value is None else f"{toml_literal(value)} {unit}"
    )


def number_format(what: str, default: Any = ...) -> Any:
    """A field of `Precision`, which checks it."""
    names = allowed_formats(what)
    extra: dict[str, Any] = {"enum": list(names), "allowed": f"one of {', '.join(names)}"}
    return Field(default, json_schema_extra=extra)


def numbers_of(item: Converter) -> dict[str, Any]:
    """JSON Schema of a table from names of objectives to numbers."""
    accepts = {key: value for key, value in item.accepts.items() if key != "allowed"}
    return {"type": "object", "propertyNames": {"enum": _NAMES}, "additionalProperties": accepts}


_NAMES = [*OBJECTIVES, *RECIPROCALS]
_EXPONENT = number(0, 100)
_LIMIT = number(1e-12, 1e12)


@accepting(
    anyOf=[{"enum": _NAMES}, numbers_of(_EXPONENT)],
    allowed=f"one of {', '.join(_NAMES)}; or a table of them, "
    f"each with its exponent, {_EXPONENT.accepts['allowed']}",
)
def objective_exponents(value: Any) -> dict[str, float]:
    """A name, or a table of names and exponents."""
    exponents = {value: 1.0} if isinstance(value, str) else value
    if not isinstance(exponents, dict) or not exponents:
        raise UserError(
            f"{shown(value)} is no objective",
            allowed=f"a name, or a table of exponents: {', '.join(OBJECTIVES)}",
        )
    return _by_objective(exponents, _EXPONENT)


@accepting(
    **numbers_of(_LIMIT),
    allowed=f"a table, objective = {_LIMIT.accepts['allowed']}, in "
    + ", ".join(f"{unit} ({name})" for name, unit in OBJECTIVES.items()),
)
def objective_limits(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise UserError(
            f"{shown(value)} is not a table", allowed=f"limits on {', '.join(OBJECTIVES)}"
        )
    return _by_objective(value, _LIMIT)


def _by_objective(table: dict[str, Any], convert: Converter) -> dict[str, float]:
    """A table with the names of objectives resolved; a reciprocal stands for its objective."""
    result: dict[str, float] = {}
    for name, value in table.items():
        known = objective_name(name, where=name)
        if known in result:
            raise UserError(f"{known} occurs twice", where=name)
        result[known] = convert(value)
    return result


def _bound(key: str) -> dict[str, Any]:
    """JSON Schema of the bounds of one design variable."""
    field, unit = DESIGN_KEYS[key]
    quantity = {"type": "string" if unit else ["number", "string"]}
    pair = {"type": "array", "items": quantity, "minItems": 2, "maxItems": 2}
    allowed = f"{_box(field, unit)}, or a list of least and most"
    return {"anyOf": [quantity, pair], "allowed": allowed}


def _box(field: str, unit: str) -> str:
    least, most = DESIGN_BOX[field]
    return f"{least:g} to {most:g} {unit}".strip()


@accepting(
    type="object",
    properties={key: _bound(key) for key in DESIGN_KEYS},
    additionalProperties=False,
)
def variable_bounds(value: Any) -> dict[str, tuple[float, float]]:
    """Design variable -> bounds, from quantities with their units."""
    if not isinstance(value, dict):
        raise UserError(f"{shown(value)} is not a table", allowed=", ".join(DESIGN_KEYS))
    result = {}
    for name, given in value.items():
        if name not in DESIGN_KEYS:
            raise unknown_name("design variable", name, DESIGN_KEYS, where=name)
        field, unit = DESIGN_KEYS[name]
        ends = given if isinstance(given, list) else [given, given]
        least, most = DESIGN_BOX[field]
        if len(ends) != 2:
            raise UserError(f"{shown(given)} is no pair of bounds", where=name)
        low, high = (parse_quantity(end, unit, name, bare=False) for end in ends)
        if not least <= low <= high <= most:
            raise UserError(
                f"{shown(given)} is not accepted",
                where=name,
                allowed=f"{_box(field, unit)}, the smaller first",
            )
        result[field] = (low, high)
    return result


WRITTEN_OBJECTIVE = PlainSerializer(
    lambda exponents: next(iter(exponents)) if list(exponents.values()) == [1.0] else exponents
)
WRITTEN_BOUNDS = PlainSerializer(
    lambda bounds: {
        key: [f"{toml_literal(end)} {unit}" if unit else end for end in bounds[field]]
        for key, (field, unit) in DESIGN_KEYS.items()
        if field in bounds
    }
)


Name = Annotated[str, checked(plain_name)]
Entries = tuple[str, ...]
Milliseconds = Annotated[float | None, checked(limit("ms")), written_in("ms")]
SquareMillimetres = Annotated[float | None, checked(limit("mm^2")), written_in("mm^2")]
Ratios = Annotated[tuple[float, ...], checked(several(number(1, 4)))]
Tokens = Annotated[float, checked(number(1, 1e9))]
