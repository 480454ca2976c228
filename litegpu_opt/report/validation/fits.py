"""The shared coefficients: fitted again to the chips, and once more without each die."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import Array

from ...catalog import Accelerator, Record, issued_share, records
from ...machine.design import Design
from ...machine.fitting import AREA_LEAVES, POWER_LEAVES, Fit, fit, parts
from ...machine.power import rated_power_w
from ...machine.silicon import blocks
from ...machine.technology import Technology
from .figures import AREA, TDP


_WEIGHT = {"A": 1.0, "B": 1.0, "C": 1.0 / 3.0, "D": 1.0 / 3.0}
"""Of a published figure in the fits: about 2 % of uncertainty, or about 6 %."""

_KEPT = ("process.operand_pj_per_bit", "rating.compute_phase_memory")
"""Own fits to an H100 that the fit to the TDPs leaves alone."""

Fitted = tuple[Fit, dict[str, float]]
"""A fit, and chip -> its error when its die is left out."""


def fits(chips: Sequence[Accelerator]) -> dict[str, Fitted]:
    """Quantity -> its fit, for the two that have one."""
    return {
        AREA: _fitted(chips, AREA, AREA_LEAVES, one_vote_per_die=True),
        TDP: _fitted(chips, TDP, POWER_LEAVES, one_vote_per_die=False),
    }


def _figure_of(key: str, design: Design) -> Callable[[Technology], Array]:
    """The figure that a fit is about, as a function of the technology."""
    if key == AREA:
        return lambda technology: blocks(design, technology).total_mm2
    return lambda technology: rated_power_w(design, technology)[0]


def _fitted(
    chips: Sequence[Accelerator], key: str, leaves: Sequence[str], *, one_vote_per_die: bool
) -> Fitted:
    """A die has one area, so that its chips share one vote; every chip has a TDP of its own."""
    used = [chip for chip in chips if key in chip.datasheet and key not in chip.not_compared]
    dies = [chip.die for chip in used]
    votes = [_WEIGHT[chip.datasheet[key].trust] for chip in used]
    shared = [dies.count(die) ** 0.5 if one_vote_per_die else 1.0 for die in dies]
    found = fit(
        np.array([parts(_figure_of(key, c.design()), c.technology(), leaves) for c in used]),
        np.array([chip.datasheet[key].value for chip in used]),
        np.array(votes) / np.array(shared),
        dies,
    )
    return found, {
        chip.name: float(error) for chip, error in zip(used, found.left_out_errors, strict=True)
    }


def coefficients(found_fits: Mapping[str, Fitted]) -> list[dict[str, Any]]:
    """Everything fitted that the compared figures rest on; the same for all chips."""
    process = records("process", "n4")
    entries = []
    for key, leaves in ((AREA, AREA_LEAVES), (TDP, POWER_LEAVES)):
        found = found_fits[key][0]
        for leaf, *factors in zip(leaves, found.factors, found.low, found.high, strict=True):
            shipped = process[leaf]
            refitted, low, high = (shipped.value * float(factor) for factor in factors)
            entries.append(_coefficient(f"process.{leaf}", shipped, refitted, low, high))
    for name in _KEPT:
        table, field = name.split(".")
        record = records(table, {"process": "n4", "rating": "default"}[table])[field]
        entries.append(_coefficient(name, record, None, record.low, record.high))
    share = issued_share()
    entries.append(_coefficient("issued share of a GEMM", share, None, share.low, share.high))
    return entries


def _coefficient(
    name: str, record: Record, refitted: float | None, low: float, high: float
) -> dict[str, Any]:
    return {
        "name": name,
        "shipped": record.value,
        "refitted": refitted,
        "low": low,
        "high": high,
        "unit": record.unit,
        "source": record.source,
        "trust": record.trust,
    }
