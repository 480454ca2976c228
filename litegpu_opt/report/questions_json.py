"""Answers beside the optima as plain data: two designs, fronts, break-evens, tornados."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ..optimizer.result import Certified, Front, Optimum, PhaseDesigns, Run, WorkloadResult


RunJson = Callable[[Run], dict[str, Any]]


def questions_json(item: WorkloadResult, run: RunJson) -> dict[str, Any]:
    """What was asked of one workload beside its optima.

    **Arguments:**

    - `run`: a design with its deployment and metrics as plain data.
    """
    optima = {optimum.name: optimum for optimum in item.optima}
    return {
        "specialised": [
            _phase_designs(pair, optima.get(pair.name), run) for pair in item.specialised
        ],
        "fronts": [_front(front, run) for front in item.fronts],
        "break_evens": [asdict(found) for found in item.break_evens],
        "tornados": {
            name: [
                asdict(bar)
                | {
                    "elasticity": optima[name].sensitivities[bar.name],
                    "objective": optima[name].soft.value,
                }
                for bar in bars
            ]
            for name, bars in item.tornados.items()
        },
    }


def _phase_designs(pair: PhaseDesigns, common: Optimum | None, run: RunJson) -> dict[str, Any]:
    cost: Certified = pair.cost
    return {
        "name": pair.name,
        "objective": cost.value,
        "lower_bound": cost.lower_bound,
        "gap": cost.gap,
        "gain": None if common is None else 1.0 - cost.value / common.soft.value,
        "prefill": run(pair.prefill),
        "decode": run(pair.decode),
    }


def _front(front: Front, run: RunJson) -> dict[str, Any]:
    points = [
        {
            "limit": point.limit,
            "objective": point.objective,
            "lower_bound": point.lower_bound,
            "run": None if point.run is None else run(point.run),
        }
        for point in front.points
    ]
    return {"name": front.name, "over": front.over, "unit": front.unit, "points": points}


def product_text(exponents: Mapping[str, float]) -> str:
    """A product of powers of objectives."""
    return " x ".join(f"{name}^{power:g}" for name, power in exponents.items())


def objective_text(exponents: Mapping[str, float]) -> str:
    """What is made small, in words."""
    if list(exponents.values()) == [1.0]:
        return _TEXTS[next(iter(exponents))]
    return product_text(exponents)


_TEXTS = {
    "usd_per_million_tokens": "USD per million output tokens",
    "joules_per_token": "J per output token",
    "sm_seconds_per_token": "SM-seconds per output token",
    "package_seconds_per_token": "package-seconds per output token",
}
