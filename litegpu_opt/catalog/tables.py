"""Technology tables: the embedded TOML files as records, and as the pytree that the model takes."""

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import UserError, unknown_name
from ..files import embedded, read_toml
from ..units import shown
from .domains import check_domain, check_scale, check_together
from .records import Record, read_record


if TYPE_CHECKING:
    from ..machine.technology import Technology


TABLE_NAMES = (
    "process",
    "memory",
    "interconnect",
    "switch",
    "package",
    "cooling",
    "prices",
    "rating",
    "execution",
)

HARDWARE_TABLES = TABLE_NAMES[: TABLE_NAMES.index("prices")]
"""Tables of which an accelerator names one entry each, and a study any number."""

DEFAULT_ENTRIES = {
    "process": "n4",
    "memory": "hbm3e",
    "interconnect": "cpo",
    "switch": "nvswitch",
    "package": "interposer",
    "cooling": "liquid",
    "prices": "cost",
    "rating": "default",
    "execution": "calibrated",
}
"""Entry of each table where none is named."""

_NOT_RECORDS = ("title", "offered_gb")
_FACTS = ("reach_m",)
"""Records that say something of an entry, of which the model has no use."""

Overrides = Mapping[str, float | str | Record]
"""`"table.field"` -> number in the field's unit, text with a unit, or record."""


@cache
def _table(table: str) -> dict[str, dict[str, Any]]:
    if table not in TABLE_NAMES:
        raise unknown_name("technology table", table, TABLE_NAMES)
    raw = tomllib.loads(embedded("technologies", f"{table}.toml").read_text("utf-8"))
    return {name: _entry(raw, name, f"{table}.toml:{name}") for name in raw}


def _entry(raw: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    content = dict(raw[name])
    parent = content.pop("extends", None)
    base = _entry(raw, parent, where) if parent else {}
    return base | {
        key: value if key in _NOT_RECORDS else Record.of_leaf(value, f"{where}.{key}")
        for key, value in content.items()
    }


def names(table: str) -> tuple[str, ...]:
    """Entries of a technology table."""
    return tuple(_table(table))


def _lookup(table: str, entry: str, where: str = "") -> dict[str, Any]:
    content = _table(table)
    if entry not in content:
        raise unknown_name(table, entry, content, where=where)
    return content[entry]


def title(table: str, entry: str) -> str:
    """What an entry is, in one line."""
    return _lookup(table, entry)["title"]


def records(table: str, entry: str, where: str = "") -> dict[str, Record]:
    """Field -> record of one entry, as the model takes it."""
    content = _lookup(table, entry, where)
    return {name: value for name, value in content.items() if name not in _NOT_RECORDS + _FACTS}


def facts(table: str, entry: str, where: str = "") -> dict[str, Record]:
    """Name -> record of what is known of an entry beyond what the model takes."""
    content = _lookup(table, entry, where)
    return {name: content[name] for name in _FACTS if name in content}


def offered_gb(entry: str) -> tuple[float, ...]:
    """Capacities in which a stack of memory `entry` can be bought."""
    return tuple(float(gb) for gb in _lookup("memory", entry)["offered_gb"])


def override_records(overrides: Mapping[str, Any], where: str = "") -> dict[str, Record]:
    """Overrides as records, with their units converted; `UserError` for what cannot be one.

    TOML reads `memory.usd_per_gb = 12` as a table in a table: that spelling is accepted too.
    """
    if not isinstance(overrides, Mapping):
        raise UserError(
            f"{shown(overrides)} is not a table", where=where, allowed="table.field = value"
        )
    flat: dict[str, Any] = {}
    for name, value in overrides.items():
        if name in TABLE_NAMES and isinstance(value, Mapping):
            flat |= {f"{name}.{field}": leaf for field, leaf in value.items()}
        else:
            flat[name] = value
    return {
        name: _override(name, value, f"{where}.{name}" if where else name)
        for name, value in flat.items()
    }


def execution_overrides(path: str) -> dict[str, Record]:
    """`"execution.field"` -> record of a file with one table, `[execution]`, of such values.

    **Raises:** `UserError` for anything else.
    """
    content = read_toml(path)
    for key in content:
        if key != "execution":
            raise unknown_name("table", key, ("execution",), where=path)
    return override_records({"execution": content.get("execution", {})}, path)


def _override(name: str, value: Any, where: str) -> Record:
    known = _units()
    if name not in known:
        raise _unknown_value(name, where)
    record = value if isinstance(value, Record) else read_record(value, known[name], where)
    check_domain(name, record.value, where)
    check_scale(record.value, default_records()[name], where)
    return record


def _unknown_value(name: str, where: str) -> UserError:
    table = name.partition(".")[0]
    if table in TABLE_NAMES:
        siblings = [known for known in _units() if known.startswith(f"{table}.")]
        return unknown_name("technology value", name, siblings, where=where)
    nearest = unknown_name("technology value", name, _units())
    tables = ", ".join(TABLE_NAMES)
    return UserError(nearest.what, where=where, allowed=f"table.field with a table of {tables}")


@cache
def default_records() -> dict[str, Record]:
    """`"table.field"` -> record of the default entries."""
    return {
        f"{table}.{field}": record
        for table in TABLE_NAMES
        for field, record in records(table, DEFAULT_ENTRIES[table]).items()
    }


@cache
def _units() -> dict[str, str]:
    return {name: record.unit for name, record in default_records().items()}


def provenance(overrides: Overrides | None = None, **entries: str) -> dict[str, Record]:
    """`"table.field"` -> record of a complete set of assumptions.

    **Arguments:**

    - `overrides`: values that replace catalogue values.
    - `entries`: table -> entry, such as `memory="hbm3"`; `DEFAULT_ENTRIES` for the others.
    """
    for table in entries:
        if table not in TABLE_NAMES:
            raise unknown_name("technology table", table, TABLE_NAMES)
    chosen = DEFAULT_ENTRIES | entries
    catalogued = {
        f"{table}.{field}": record
        for table in TABLE_NAMES
        for field, record in records(table, chosen[table]).items()
    }
    known = catalogued | override_records(overrides or {})
    check_together({name: record.value for name, record in known.items()})
    return known


def technology(overrides: Overrides | None = None, **entries: str) -> "Technology":
    """The pytree of a complete set of assumptions. Arguments as in `provenance`."""
    from ..machine.technology import TABLES, Technology

    known = provenance(overrides, **entries)
    wanted = {f"{table}.{field.name}" for table in TABLES for field in fields(TABLES[table])}
    if wanted != known.keys():
        raise ValueError(f"catalogue and Technology differ in {sorted(wanted ^ known.keys())}")
    tables: dict[str, Any] = {
        table: cls(**{leaf.name: known[f"{table}.{leaf.name}"].value for leaf in fields(cls)})
        for table, cls in TABLES.items()
    }
    return Technology(**tables)
