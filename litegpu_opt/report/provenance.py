"""How far the numbers of a report can be trusted: sources of its inputs, and known errors."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ..catalog import TRUST, Accelerator, Record
from ..evaluation import Metrics
from ..limits import LIMIT_NAMES
from .document import Block, Table, figure, signed_percent


LETTERS = tuple(letter for letter in TRUST if letter != "user")
"""From best to worst."""
MOST_NAMED = 3
"""Weak inputs of a table that are named on the screen; JSON has them all."""

_DEFINITIONS = "reference_"
"""Execution values that say where others were measured."""

COMPARED = {
    "die_area_mm2": "die area",
    "tdp_w": "TDP",
    "bill_of_materials_usd": "bill of materials",
}


def provenance_json(
    values: Iterable[tuple[str, Record]], errors: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """**Arguments:**

    - `values`: `table.field` and record of every input; a pair that occurs again is counted once.
    - `errors`: accelerator -> `machine_errors`.
    """
    by_table: dict[str, dict[tuple[str, Record], None]] = {}
    for name, record in values:
        table, _, field = name.partition(".")
        by_table.setdefault(table, {})[field, record] = None
    return {
        "trust": {table: _trust(list(rows)) for table, rows in by_table.items()},
        "execution": {field: asdict(record) for field, record in by_table.get("execution", {})},
        "machine_errors": {name: dict(found) for name, found in errors.items()},
    }


def _trust(rows: list[tuple[str, Record]]) -> dict[str, Any]:
    """Values by trust letter, and the names of those with the worst."""
    stated = [record.trust for _, record in rows]
    worst = max((letter for letter in stated if letter in LETTERS), default=None)
    return {
        "values": {letter: stated.count(letter) for letter in TRUST if letter in stated},
        "worst": worst,
        "weakest": list(dict.fromkeys(name for name, record in rows if record.trust == worst)),
    }


def machine_errors(chip: Accelerator, metrics: Metrics) -> dict[str, float]:
    """Relative error of the machine model against the published figures of a chip.

    Figures that are marked as no test of the model, or are not published, are left out.
    """
    area = metrics.uses[LIMIT_NAMES.index("block_area")]
    modelled = {
        "die_area_mm2": area,
        "tdp_w": metrics.tdp_w,
        "bill_of_materials_usd": metrics.bill_of_materials.total_usd,
    }
    published = {
        key: record for key, record in chip.datasheet.items() if key not in chip.not_compared
    }
    if "total_usd" in chip.bill_of_materials:
        published["bill_of_materials_usd"] = chip.bill_of_materials["total_usd"]
    return {
        key: float(value) / published[key].value - 1.0
        for key, value in modelled.items()
        if key in published
    }


def provenance_blocks(content: Mapping[str, Any]) -> tuple[Block, ...]:
    """Trust of every table with its weakest inputs, efficiency factors, errors."""
    return _trust_table(content["trust"]), *_factors_and_errors(content)


def provenance_sentences(content: Mapping[str, Any]) -> tuple[str, ...]:
    """The same in short."""
    counts = (
        f"{table} " + " ".join(f"{n} {letter}" for letter, n in entry["values"].items())
        for table, entry in content["trust"].items()
    )
    return f"Values by trust: {'; '.join(counts)}.", *_factors_and_errors(content)


def _factors_and_errors(content: Mapping[str, Any]) -> tuple[str, ...]:
    every = "all chips: litegpu validate machine"
    errors = [
        f"{name}: "
        + ", ".join(f"{COMPARED[key]} {signed_percent(error)}" for key, error in found.items())
        for name, found in content["machine_errors"].items()
        if found
    ]
    return (
        f"Efficiency factors and fixed times, {_factors(content['execution'])}.",
        f"Machine errors: {'; '.join([*errors, every])}.",
    )


def _trust_table(tables: Mapping[str, Mapping[str, Any]]) -> Table:
    return Table(
        ("inputs", *TRUST, "weakest"),
        tuple(
            (
                table,
                *(str(entry["values"].get(letter, "")) for letter in TRUST),
                _named(entry["weakest"]) if entry["worst"] in ("C", "D") else "",
            )
            for table, entry in tables.items()
        ),
        "Values by trust, from A (vendor specification) to D (recalled or assumed)",
        numeric=False,
    )


def _named(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _factors(execution: Mapping[str, Mapping[str, Any]]) -> str:
    by_trust: dict[str, list[str]] = {}
    for name, row in execution.items():
        if name.startswith(_DEFINITIONS):
            continue
        stated = f"{name} {figure(row['value'])} {row['unit']}".strip()
        by_trust.setdefault(row["trust"], []).append(stated)
    return "; ".join(f"trust {letter}: {', '.join(rows)}" for letter, rows in by_trust.items())
