"""`Metrics` as the dictionary that `litegpu --json` promises."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..evaluation import Metrics
from ..limits import LIMIT_NAMES, LIMITS, TOLERANCE, Caps, limits_that_apply
from ..machine.cost import HOURS_PER_YEAR, SECONDS_PER_HOUR, YearlyCost
from ..numerics import AnyArray
from ..objectives import TOKENS_PER_MILLION
from ..workload.phases import PHASES
from ..workload.traffic import Workload


_MS_PER_S = 1e3


def metrics_json(
    metrics: Metrics,
    workload: Workload,
    design: Mapping[str, float],
    *,
    gross_margin: float,
    built: bool = False,
) -> dict[str, Any]:
    """Metrics in the units of their names; `None` where a phase does not exist.

    **Arguments:**

    - `metrics`: of one point, with JAX or NumPy leaves.
    - `design`: its fields by name.
    - `gross_margin`: of the technology's prices.
    - `built`: the chip exists, so what can be built is no question.
    """
    prefill, decode = workload.served
    services = metrics.services
    memory = {
        pool: _memory(metrics, index) if served else None
        for index, (pool, served) in enumerate(zip(PHASES, workload.served, strict=True))
    }
    power = {
        f"power_{phase}_w": _MS_PER_S * float(joules) / float(ms) if served else None
        for phase, served, joules, ms in zip(
            PHASES, workload.served, services.device_j, services.time_ms, strict=True
        )
    }
    violations = _violations(metrics, workload, built=built)
    unit_cost_usd = float(metrics.bill_of_materials.total_usd)
    usd = float(metrics.usd_per_token)
    return {
        "ttft_s": float(services.latency_ms[0]) / _MS_PER_S if prefill else None,
        "handover_s": float(services.handover_ms[0]) / _MS_PER_S if prefill else None,
        "tbt_s": float(services.time_ms[1]) / _MS_PER_S if decode else None,
        "tokens_per_s": float(metrics.tokens_per_s) if decode else None,
        "tokens_per_s_per_sm": float(metrics.tokens_per_s_per_sm) if decode else None,
        "prefill_tokens_per_s_per_sm": (
            float(metrics.prefill_tokens_per_s_per_sm) if prefill else None
        ),
        "tokens_per_dollar": 1.0 / usd,
        "usd_per_million_tokens": TOKENS_PER_MILLION * usd,
        "joules_per_token": float(metrics.joules_per_token),
        "power_w": float(metrics.power_w),
        **power,
        "tdp_w": float(metrics.tdp_w),
        "die_area_mm2": float(design["die_area_mm2"]),
        "unit_cost_usd": unit_cost_usd,
        "unit_price_usd": unit_cost_usd / (1.0 - gross_margin),
        "usd_per_device_hour": SECONDS_PER_HOUR * float(metrics.yearly_cost.usd_per_second),
        "device_hour": device_hour(metrics.yearly_cost, metrics.electricity_usd_per_second),
        "bill_of_materials": {
            line: float(value) for line, value in vars(metrics.bill_of_materials).items()
        },
        "memory_required_gb": max(pool["total_gb"] for pool in memory.values() if pool),
        "memory": memory,
        "feasible": not violations,
        "violations": violations,
    }


def device_hour(year: YearlyCost, electricity_usd_per_second: AnyArray) -> dict[str, float]:
    """What an owned device costs per hour by line, USD."""
    lines = {line: float(usd) / HOURS_PER_YEAR for line, usd in vars(year).items()}
    lines["electricity_usd"] = SECONDS_PER_HOUR * float(electricity_usd_per_second)
    return lines | {"total_usd": sum(lines.values())}


def _memory(metrics: Metrics, index: int) -> dict[str, float]:
    """What a device of a pool holds, GB."""
    total_gb = float(metrics.services.memory_gb[index])
    weights_gb = float(metrics.services.weights_gb[index])
    limits = dict(zip(LIMIT_NAMES, np.asarray(metrics.limits), strict=True))
    return {
        "weights_gb": weights_gb,
        "kv_gb": total_gb - weights_gb,
        "total_gb": total_gb,
        "usable_gb": float(limits[f"memory_{PHASES[index]}"]),
    }


def _violations(metrics: Metrics, workload: Workload, *, built: bool) -> list[dict[str, Any]]:
    kinds = ("domain", "service") if built else ("machine", "domain", "service")
    applies = limits_that_apply({"": workload}, Caps())
    uses, limits = np.asarray(metrics.uses), np.asarray(metrics.limits)
    return [
        {
            "name": limit.name,
            "kind": limit.kind,
            "meaning": limit.meaning,
            "use": float(use),
            "limit": float(allowed),
            "unit": limit.unit,
            "shortfall": float(use - allowed),
        }
        for limit, use, allowed in zip(LIMITS, uses, limits, strict=True)
        if limit.kind in kinds
        and applies.get(limit.name, True)
        and use > allowed * (1.0 + TOLERANCE)
    ]
