"""Measured power of prefill and decode against the model."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from ...catalog import Accelerator
from ...catalog.measurements import MeasuredPower, PowerSeries, power_series
from ...execution.phase import dynamic_energy_j
from ...machine.design import Design
from ...machine.power import energy_costs
from ...machine.rates import peak_rates
from ...machine.technology import Technology
from ...numerics import scalar
from ...workload.huggingface import read_transformer
from ...workload.parallelism import Parallelism
from ...workload.pool import Pool, decode_pool, prefill_pool
from ...workload.precision import Precision
from ...workload.traffic import Workload, make_workload
from ..serving import Deployed, deploy
from .figures import mean_abs


_BF16 = Precision("bf16", "bf16", "bf16", "bf16")

_LOADS = (
    ("h100-sxm", "decode of 128 sequences", 0.85, 0.40, 600.0, "about 600 W, ML.ENERGY v3.0"),
    ("h100-sxm", "decode of one sequence", 0.80, 0.0, 300.0, "about 300 W, ML.ENERGY v3.0"),
    ("h200-sxm", "decode", 0.80, 0.0, 300.0, "137 to 300 W, arXiv 2605.11999"),
)
"""Chip, load, assumed share of the bandwidth and of the bf16 peak, measured power in W, source."""


def power_json(chips: Mapping[str, Accelerator]) -> list[dict[str, Any]]:
    """Series of measured powers with the model's beside each, and their mean errors."""
    series = [_series(entry, chips) for entry in power_series()]
    return [*series, _assumed_loads(chips)]


def _series(series: PowerSeries, chips: Mapping[str, Accelerator]) -> dict[str, Any]:
    modelled = {"splitwise-peak": _prefill_w}.get(series.name, _run_w)
    rows = [
        {
            "name": row.accelerator,
            "load": f"{row.model} on {row.devices}, {row.engine}, batch {row.batch}, "
            f"{row.prompt:g} + {row.output:g} tokens",
            "model_w": modelled(row, chips[row.accelerator]),
            "measured_w": row.watts,
        }
        for row in series.rows
        if row.accelerator in chips
    ]
    return _with_errors(rows) | {
        "name": series.name,
        "title": series.title,
        "source": series.source,
        "licence": series.licence,
        "trust": series.trust,
    }


def _with_errors(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    errors = [row["model_w"] / row["measured_w"] - 1.0 for row in rows]
    return {
        "rows": [row | {"error": error} for row, error in zip(rows, errors, strict=True)],
        "mean_abs_error": mean_abs(errors),
        "mean_error": float(np.mean(errors)) if errors else None,
    }


def _run_w(row: MeasuredPower, chip: Accelerator) -> float:
    """Average over a prefill and all decode steps, W: the energy of the work that is counted, over
    the time that was measured, or the model's own where none was.
    """
    design, technology = chip.design(), chip.technology()
    energy = energy_costs(design, design.clock_ghz, technology)
    pools = _pools(row.model, row.prompt, row.output, row.devices)
    prefill, decode = (
        dynamic_energy_j(pool.operators, scalar(row.batch), energy) for pool in pools
    )
    if row.tokens_per_s is None:
        prefill_ms, step_ms = _deployed(row, chip).metrics().services.time_ms
        seconds = 1e-3 * (prefill_ms + (row.output - 1.0) * step_ms)
    else:
        seconds = row.batch * (row.prompt + row.output) / row.tokens_per_s
    return float(energy.static_w + (prefill + (row.output - 1.0) * decode) / seconds)


def _prefill_w(row: MeasuredPower, chip: Accelerator) -> float:
    """Average over a prefill in the model's own time, W."""
    services = _deployed(row, chip).metrics().services
    return float(1e3 * services.device_j[0] / services.time_ms[0])


@cache
def _workload(model: str, prompt: float, output: float) -> Workload:
    transformer = read_transformer(model)
    return make_workload(transformer, _BF16, prompt_tokens=prompt, output_tokens=output)


@cache
def _pools(model: str, prompt: float, output: float, devices: int) -> tuple[Pool, Pool]:
    workload, way = _workload(model, prompt, output), Parallelism(tp=devices)
    return prefill_pool(workload, way), decode_pool(workload, way)


def _deployed(row: MeasuredPower, chip: Accelerator) -> Deployed:
    way = Parallelism(tp=row.devices)
    return deploy(
        chip,
        _workload(row.model, row.prompt, row.output),
        prefill=way,
        decode=way,
        batch_prefill=row.batch,
        batch_decode=row.batch,
        clocks_ghz=(None, None),
        execution="calibrated",
        basis="cost",
    )


def _assumed_loads(chips: Mapping[str, Accelerator]) -> dict[str, Any]:
    """Figures whose load is not published: the shares of the peaks are assumed."""
    rows = [
        {
            "name": name,
            "load": f"{load}: {100 * memory:g} % of the bandwidth, {100 * compute:g} % of the peak "
            f"({source})",
            "model_w": _load_w(chips[name].design(), chips[name].technology(), memory, compute),
            "measured_w": measured,
        }
        for name, load, memory, compute, measured, source in _LOADS
        if name in chips
    ]
    return _with_errors(rows) | {
        "name": "assumed-loads",
        "title": "figures of decode whose load is assumed; of a range its upper end",
        "source": "ML.ENERGY v3.0, arXiv 2605.11999",
        "licence": "single figures",
        "trust": "B",
    }


def _load_w(design: Design, technology: Technology, memory: float, compute: float) -> float:
    """A device at its clock that uses a share of its bandwidth and of its peak, W."""
    rates = peak_rates(design, design.clock_ghz, technology)
    energy = energy_costs(design, design.clock_ghz, technology)
    return float(
        energy.static_w
        + memory * 1e3 * rates.memory_tb_s * energy.memory_j_per_gb
        + compute * rates.bf16_tflop_s * energy.bf16_j_per_tflop
    )
