"""One accelerator, one model, one deployment: evaluate, and say what came out."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from .. import __version__
from ..deployment import Deployment
from ..evaluation import Metrics
from ..execution.phase import moved_gb, total_tflop_per_seq
from ..execution.roofline import Roof
from ..machine.cost import yearly_cost
from ..workload.counts import operator_names
from ..workload.parallelism import Parallelism
from ..workload.phases import PHASES
from ..workload.pool import build_pools
from ..workload.traffic import Workload
from .document import NOT_APPLICABLE, NOT_COUNTED, Section, Table, figure
from .findings import violations_text
from .metrics_json import device_hour, metrics_json
from .provenance import machine_errors, provenance_blocks, provenance_json
from .serving import Deployed


BASES = ("cost", "price")
"""Entries of the prices: bills of materials, and with a gross margin on the accelerator."""

RESOURCES = ("compute", "memory", "pass", "launch", "collective", "wire")
"""Terms of the time of an operator."""
LATENCIES = ("pass", "launch", "collective")
"""Those that ideal execution leaves out."""


def evaluation_json(deployed: Deployed, *, breakdown: bool) -> dict[str, Any]:
    """Metrics of an accelerator that serves a workload at its own clock, both pools alike."""
    accelerator, workload = deployed.accelerator, deployed.workload
    deployment, technology = deployed.deployment, deployed.technology
    metrics, design = deployed.metrics(), accelerator.design_values
    content = metrics_json(
        metrics,
        workload,
        design,
        gross_margin=float(technology.prices.gross_margin),
        built=bool(accelerator.datasheet),
    )
    content["device_hour_by_basis"] = {
        each: device_hour(
            yearly_cost(accelerator.design(), metrics.tdp_w, accelerator.technology(prices=each)),
            metrics.electricity_usd_per_second,
        )
        for each in BASES
    }
    if breakdown:
        content["breakdown"] = _breakdown(metrics, workload, deployment, deployed.roof)
    inputs = [
        *((f"design.{name}", record) for name, record in accelerator.design_records.items()),
        *deployed.constants.items(),
    ]
    errors = {accelerator.name: machine_errors(accelerator, metrics)}
    return content | {
        "provenance": provenance_json(inputs, errors),
        "unverified": accelerator.status == "unverified",
        "design": design,
        "deployment": _deployment(deployment),
        "version": __version__,
    }


def _deployment(deployment: Deployment) -> dict[str, Any]:
    chosen = {
        key: float(value)
        for key, value in vars(deployment).items()
        if not isinstance(value, Parallelism)
    }
    ways = {phase: getattr(deployment, phase) for phase in PHASES}
    return {
        **{f"tp_{phase}": way.tp for phase, way in ways.items()},
        **{f"devices_{phase}": way.devices for phase, way in ways.items()},
        **chosen,
        "parallelism": {phase: asdict(way) for phase, way in ways.items()},
    }


def _breakdown(
    metrics: Metrics, workload: Workload, deployment: Deployment, roof: Roof
) -> dict[str, list[dict[str, Any]] | None]:
    """Phase -> operators: counts of one execution on one device, and times of a microbatch over all
    stages in ms.
    """
    pools = build_pools(workload, deployment.prefill, deployment.decode)
    times = metrics.services.times
    terms = np.stack(
        [
            times.compute_ms,
            times.memory_ms,
            times.pass_ms,
            times.launch_ms,
            times.hop_ms,
            times.wire_ms,
        ]
    )
    totals = np.asarray(times.total_ms(roof))
    phases: dict[str, list[dict[str, Any]] | None] = {}
    for index, (phase, served) in enumerate(zip(PHASES, workload.served, strict=True)):
        pool = jax.tree.map(operator.itemgetter(index), pools)
        batch = getattr(deployment, f"batch_{phase}") / pool.microbatches
        repeats = np.asarray(pool.operators.repeats)
        stages = np.asarray(pool.operators.stages @ pool.operators.stage)
        counts = {
            "gflop": 1e3 * batch * total_tflop_per_seq(pool.operators),
            "memory_mb": 1e3 * moved_gb(pool.operators, batch),
            "wire_mb": 1e3 * batch * pool.operators.wire_gb_per_seq,
        }
        way = getattr(deployment, phase)
        names = operator_names(workload.transformer, way, decode=phase == "decode")
        phases[phase] = (
            [
                {
                    "operator": name,
                    "repeats": float(repeats[row] * stages[row]),
                    **{key: float(column[row]) for key, column in counts.items()},
                    "once_ms": float(totals[index, row] / repeats[row]),
                    **{
                        f"{resource}_ms": float(stages[row] * value)
                        for resource, value in zip(RESOURCES, terms[:, index, row], strict=True)
                    },
                    "total_ms": float(stages[row] * totals[index, row]),
                    "binds": RESOURCES[int(np.argmax(terms[:, index, row]))],
                }
                for row, name in enumerate(names)
            ]
            if served
            else None
        )
    return phases


def evaluation_sections(content: Mapping[str, Any]) -> list[Section]:
    """What the screen shows."""
    return [
        Section("Inputs", (_inputs(content["inputs"]),)),
        Section(
            "Result",
            (
                *_feasibility(content),
                _metrics(content),
                _memory(content),
                _device_hour(content),
            ),
        ),
        *_phases(
            content,
            LATENCIES if content["inputs"]["execution"]["value"] == "ideal" else (),
        ),
        Section("Provenance", provenance_blocks(content["provenance"])),
    ]


def _inputs(inputs: Mapping[str, Mapping[str, Any]]) -> Table:
    return Table(
        ("input", "value", "origin"),
        tuple(
            (name, _stated(row["value"], row["unit"]), row["origin"])
            for name, row in inputs.items()
        ),
        numeric=False,
    )


def _stated(value: Any, unit: str) -> str:
    if value is None:
        return "none"
    return f"{value:g} {unit}".strip() if isinstance(value, float) else str(value)


def _feasibility(content: Mapping[str, Any]) -> list[str]:
    machine = violations_text(content, "machine")
    service = violations_text(content, "service")
    return [
        *(
            ["Unverified: no source of the accelerator was checked."]
            if content["unverified"]
            else []
        ),
        *([f"Cannot be built as described: {machine}."] if machine else []),
        *([f"Not feasible: {service}."] if service else []),
        *([] if content["feasible"] else ["The figures below are those it would have."]),
        *_throttled(content),
    ]


def _throttled(content: Mapping[str, Any]) -> list[str]:
    """Phases that run below the chip's clock."""
    full_ghz = content["design"]["clock_ghz"]
    clocks = [(phase, content["deployment"][f"clock_{phase}_ghz"]) for phase in PHASES]
    return [
        f"{phase.capitalize()} runs at {figure(ghz, 3)} of {figure(full_ghz, 3)} GHz to stay "
        "within the TDP."
        for phase, ghz in clocks
        if ghz < full_ghz
    ]


_FIGURES = (
    ("time to first token", "ttft_s", "ms", 1e3),
    ("  of it, hand-over of the KV cache", "handover_s", "ms", 1e3),
    ("time between tokens", "tbt_s", "ms", 1e3),
    ("output tokens/s of a decode group", "tokens_per_s", "1/s", 1.0),
    ("output tokens/s per SM of the decode group", "tokens_per_s_per_sm", "1/s", 1.0),
    ("cost per million output tokens", "usd_per_million_tokens", "USD", 1.0),
    ("output tokens per dollar", "tokens_per_dollar", "1/USD", 1.0),
    ("energy per output token, with host, far link ends, idle time", "joules_per_token", "J", 1.0),
    ("average power of a busy device alone", "power_w", "W", 1.0),
    ("  in prefill", "power_prefill_w", "W", 1.0),
    ("  in decode", "power_decode_w", "W", 1.0),
    ("thermal design power", "tdp_w", "W", 1.0),
    ("die area", "die_area_mm2", "mm2", 1.0),
    ("unit cost (bill of materials)", "unit_cost_usd", "USD", 1.0),
    ("unit price (with the gross margin)", "unit_price_usd", "USD", 1.0),
    ("ownership of a device without energy", "usd_per_device_hour", "USD/h", 1.0),
)


def _metrics(content: Mapping[str, Any]) -> Table:
    return Table(
        ("metric", "value", "unit"),
        tuple(
            (label, figure(None if content[key] is None else factor * content[key]), unit)
            for label, key, unit, factor in _FIGURES
        ),
    )


def _memory(content: Mapping[str, Any]) -> Table:
    first, second = (content["memory"][pool] or {} for pool in PHASES)
    return Table(
        ("of a device, GB", *PHASES),
        tuple(
            (label, *(figure(pool.get(key), 5) for pool in (first, second)))
            for label, key in (
                ("weights", "weights_gb"),
                ("KV cache", "kv_gb"),
                ("required", "total_gb"),
                ("usable", "usable_gb"),
            )
        ),
        "Memory; usable is a share of all of it, for weights and cache together",
    )


def _device_hour(content: Mapping[str, Any]) -> Table:
    bases = content["device_hour_by_basis"]
    return Table(
        ("USD per hour of an owned device", *(f"{basis} basis" for basis in bases)),
        tuple(
            (line.removesuffix("_usd"), *(figure(lines[line]) for lines in bases.values()))
            for line in content["device_hour"]
        ),
        "Ownership",
    )


def _phases(content: Mapping[str, Any], left_out: Sequence[str]) -> list[Section]:
    way = content["deployment"]["parallelism"]["decode"]
    parts = way["pp"] > 1 or way["microbatches"] > 1
    over = "One microbatch through all stages" if parts else "Whole phase"
    return [
        Section(
            phase.capitalize(),
            (_counts(rows), _times(rows, left_out, over)) if rows else (NOT_APPLICABLE,),
        )
        for phase, rows in content.get("breakdown", {}).items()
    ]


def _counts(rows: list[dict[str, Any]]) -> Table:
    """What one execution of every operator does on one device."""
    return Table(
        ("operator", "times", "GFLOP", "memory, MB", "wire, MB", "ms", "binds"),
        tuple(
            (
                row["operator"],
                figure(row["repeats"]),
                *(figure(row[key]) for key in ("gflop", "memory_mb", "wire_mb", "once_ms")),
                row["binds"],
            )
            for row in rows
        ),
        "Once, on one device",
    )


def _times(rows: list[dict[str, Any]], left_out: Sequence[str], over: str) -> Table:
    """Where the time of the phase goes."""
    total = sum(row["total_ms"] for row in rows)

    def times(row: Mapping[str, Any]) -> list[str]:
        return [
            NOT_COUNTED if resource in left_out else figure(row[f"{resource}_ms"])
            for resource in RESOURCES
        ]

    sums = {key: sum(row[key] for row in rows) for key in rows[0] if key.endswith("_ms")}
    return Table(
        ("operator", *RESOURCES, "total", "share"),
        (
            *(
                (
                    row["operator"],
                    *times(row),
                    figure(row["total_ms"]),
                    f"{100 * row['total_ms'] / total:.1f} %",
                )
                for row in rows
            ),
            ("all", *times(sums), figure(total), ""),
        ),
        f"{over}, ms",
    )
