"""Measured kernels beside the execution model, and a table fitted to kernels of one's own."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..calibration.execution import (
    errors_of,
    fit_execution,
    held_out,
    held_out_errors,
    kind_of,
    library_errors,
    summary,
)
from ..calibration.kernels import GENERATIONS, Kernel
from ..catalog import default_records, technology
from ..catalog.measurements import call_records
from ..files import toml_literal
from .document import Block, Section, Table, figure, percent, signed_percent


EXECUTION_OF = {"hopper": "calibrated", "ampere": "ampere", "blackwell": "blackwell"}
"""Generation -> its execution table."""

BARS = {
    ("gemm", "hopper"): (0.06, 0.16),
    ("gemm", "ampere"): (0.08, 0.20),
    ("gemm", "blackwell"): (0.06, 0.18),
    ("prefill attention", ""): (0.06, 0.14),
    ("decode attention > 100 us", ""): (0.08, None),
    ("all-reduce", ""): (0.08, 0.30),
}
"""Kind and generation (all without one) -> median and 90th percentile of the absolute error that
count as reached: on the kernels that were fitted, at shapes that were not."""


def kernels_json(kernels: Sequence[Kernel]) -> dict[str, Any]:
    """Errors of the catalogue's execution tables on kernels that no fit has used."""
    rows: list[dict[str, Any]] = []
    pooled: dict[tuple[str, str], list[float]] = {}
    for generation, table in EXECUTION_OF.items():
        own = [row for row in kernels if GENERATIONS.get(row.chip) == generation]
        if not own:
            continue
        execution = technology({"execution.fixed_time_factor": 1.0}, execution=table).execution
        calls = {name: leaf.value for name, leaf in call_records().get(generation, {}).items()}
        found = held_out_errors(own, calls, execution) + library_errors(own, execution)
        rows += [{"generation": generation} | asdict(errors) for errors in found]
        same = [row for row in held_out(own) if not row.only_compared]
        for row, error in zip(same, errors_of(same, calls, execution), strict=True):
            pooled.setdefault((kind_of(row), generation), []).append(float(error))
    return {
        "rows": rows,
        "bars": _bars(pooled),
        "excluded": dict(Counter(row.excluded for row in kernels if row.excluded)),
        "only_compared": dict(Counter(row.only_compared for row in kernels if row.only_compared)),
        "rule": "A fit uses half of the shapes, by a hash of their numbers, of the chip that its "
        "table is for: H100 for `calibrated`. Rows of H200 are in no fit; of them the same half is "
        "compared.",
    }


def _bars(pooled: Mapping[tuple[str, str], list[float]]) -> list[dict[str, Any]]:
    bars = []
    for (kind, generation), (median, percentile90) in BARS.items():
        errors = [
            error
            for (own_kind, own), found in pooled.items()
            if own_kind == kind and generation in ("", own)
            for error in found
        ]
        if errors:
            reached, reached90, bias = summary(np.array(errors))
            bars.append(
                {
                    "name": f"{kind}, {generation or 'all'}",
                    "n": len(errors),
                    "median": reached,
                    "percentile90": reached90,
                    "bias": bias,
                    "bar_median": median,
                    "bar_percentile90": percentile90,
                    "reached": reached <= median
                    and (percentile90 is None or reached90 <= percentile90),
                }
            )
    return bars


def kernels_sections(content: Mapping[str, Any]) -> list[Section]:
    """What the screen shows."""
    left_out = content["excluded"].items()
    return [
        Section("Bars", (content["rule"], _bars_table(content["bars"]))),
        Section("Kernels that no fit has used", (_errors_table(content["rows"]),)),
        Section(
            "Rows that are neither fitted nor compared",
            tuple(f"{rows}: {reason}." for reason, rows in left_out) or ("None.",),
        ),
    ]


def _bars_table(bars: Sequence[Mapping[str, Any]]) -> Block:
    return Table(
        ("", "rows", "median", "bar", "90th percentile", "bar", "bias", ""),
        tuple(
            (
                bar["name"],
                str(bar["n"]),
                percent(bar["median"]),
                percent(bar["bar_median"]),
                percent(bar["percentile90"]),
                percent(bar["bar_percentile90"]),
                signed_percent(bar["bias"]),
                "reached" if bar["reached"] else "MISSED",
            )
            for bar in bars
        ),
        "Absolute relative errors",
    )


def _errors_table(rows: Sequence[Mapping[str, Any]]) -> Block:
    return Table(
        ("", "chip", "format", "stack", "rows", "median", "90th percentile", "bias"),
        tuple(
            (
                row["kind"],
                row["chip"],
                row["number_format"],
                row["stack"],
                str(row["rows"]),
                percent(row["median"]),
                percent(row["percentile90"]),
                signed_percent(row["bias"]),
            )
            for row in rows
        ),
        numeric=False,
    )


def calibration_json(kernels: Sequence[Kernel], files: Sequence[str]) -> dict[str, Any]:
    """Leaves fitted to kernels, with their covariance, and errors on the kernels left out."""
    start = technology({"execution.fixed_time_factor": 1.0}).execution
    fitted = fit_execution(kernels, start)
    values = dict(zip(fitted.names, map(float, fitted.values), strict=True))
    known = default_records()
    return {
        "files": list(files),
        "rows": fitted.rows,
        "values": [
            {
                "name": name,
                "value": values[name],
                "low": float(low),
                "high": float(high),
                "unit": known[f"execution.{name}"].unit if f"execution.{name}" in known else "",
                "leaf": f"execution.{name}" in known,
            }
            for name, low, high in zip(fitted.names, fitted.low, fitted.high, strict=True)
        ],
        "covariance": fitted.covariance.tolist(),
        "scale": fitted.scale,
        "errors": [asdict(errors) for errors in held_out_errors(kernels, values, start)],
        "excluded": dict(Counter(row.excluded for row in kernels if row.excluded)),
    }


def calibration_toml(content: Mapping[str, Any]) -> str:
    """The fitted leaves as a file for `--execution`. Kernels as they were measured: the factor on
    fixed times is 1, and what belongs to a serving stack stays as it is."""
    source = f"fitted to {content['rows']} kernels of {', '.join(content['files'])}"
    lines = ["# Fitted by litegpu calibrate; values that are not here are those of `calibrated`."]
    lines += ["[execution]"]
    for entry in content["values"]:
        if entry["leaf"]:
            text = f"{source}: {figure(entry['low'])} to {figure(entry['high'])}"
            leaf = {"value": float(f"{entry['value']:.6g}"), "source": text, "trust": "C"}
            lines.append(f"{entry['name']} = {toml_literal(leaf)}")
    return "\n".join(lines) + "\n"


def calibration_sections(content: Mapping[str, Any]) -> list[Section]:
    """What the screen shows."""
    values = Table(
        ("", "value", "low", "high", "unit"),
        tuple(
            (
                entry["name"],
                figure(entry["value"]),
                figure(entry["low"]),
                figure(entry["high"]),
                entry["unit"],
            )
            for entry in content["values"]
        ),
        f"Fitted to {content['rows']} rows; low and high are two standard deviations",
        numeric=False,
    )
    return [
        Section("Values", (values,)),
        Section("Kernels that were left out", (_errors_table(content["errors"]),)),
    ]
