"""The machine model against every chip of the catalogue: error by chip, and what was fitted."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import Array

from ..catalog import Accelerator, Record, records
from ..machine.cost import bill_of_materials
from ..machine.design import Design
from ..machine.fitting import AREA_LEAVES, POWER_LEAVES, Fit, fit, parts
from ..machine.power import energy_costs, rated_power_w
from ..machine.rates import peak_rates
from ..machine.silicon import blocks
from ..machine.technology import Technology
from .chips import modelled_figures
from .document import (
    NOT_KNOWN,
    Block,
    Section,
    Table,
    figure,
    percent,
    signed_percent,
)


AREA, PEAK, BANDWIDTH = "die_area_mm2", "bf16_dense_tflop_s", "memory_tb_s"
TDP, BILL = "tdp_w", "bill_of_materials_usd"

QUANTITIES = {
    AREA: "die area, mm2",
    PEAK: "dense bf16 peak, TFLOP/s",
    BANDWIDTH: "memory bandwidth, TB/s",
    TDP: "thermal design power, W",
    BILL: "bill of materials, USD",
}

BARS = {AREA: 0.10, PEAK: 0.01, BANDWIDTH: 0.01, TDP: 0.10, BILL: 0.15}
"""Mean absolute error that counts as reached."""

_WEIGHT = {"A": 1.0, "B": 1.0, "C": 1.0 / 3.0, "D": 1.0 / 3.0}
"""Of a published figure in the fits: about 2 % of uncertainty, or about 6 %."""

_KEPT = ("process.operand_pj_per_bit", "rating.compute_phase_memory")
"""Own fits to an H100 that the fit to the TDPs leaves alone."""

_ISSUE_SHARE = Record(
    value=0.85,
    low=0.81,
    high=0.89,
    unit="",
    source="large GEMMs over SMs x FLOP per clock x base clock: A100 0.89, H100 0.81; stands in "
    "the rated clocks that are taken from measured rates",
    trust="C",
)

NOTES = (
    "TDP is a product decision: one GH100 die ships at 350 and 700 W, and only the clock held at "
    "that power tells them apart. Where a vendor states no base clock, or GEMMs run faster than "
    "it, the clock is from GEMM rates measured under the same power cap: those errors are partly "
    "circular.",
    "B200 and GB200 show the same measured rate at 1,000 and 1,200 W: no model on that rate can "
    "separate them.",
    "TPU v4i and v5e have the same FLOP per clock at 175 W and 1.05 GHz, and at 140 W and 1.5 GHz "
    "on a later process: one energy per FLOP cannot meet both.",
    "GB100 is a trust-C area with interfaces that are not published; MI300X has four published "
    "areas from 920 to 2,400 mm2 and is not compared.",
    "A peak or a bandwidth is a real check only where clock and rates come from another source; "
    "those calculated from the figure itself are marked circular.",
)


def validation_json(chips: Sequence[Accelerator]) -> dict[str, Any]:
    """Every published figure of every chip against the model."""
    fits = {
        AREA: _fitted(chips, AREA, AREA_LEAVES, one_vote_per_die=True),
        TDP: _fitted(chips, TDP, POWER_LEAVES, one_vote_per_die=False),
    }
    rows = [_chip(chip, {key: left_out for key, (_, left_out) in fits.items()}) for chip in chips]
    with_figures = [row for row in rows if row["figures"]]
    summary = {key: _summary(with_figures, key) for key in QUANTITIES}
    return {
        "mean_abs_error": {key: entry["mean_abs_error"] for key, entry in summary.items()},
        "summary": summary,
        "chips": with_figures,
        "coefficients": _coefficients(fits),
        "decode_power": _decode_powers({chip.name: chip for chip in chips}),
        "notes": list(NOTES),
    }


def _modelled(chip: Accelerator) -> dict[str, float]:
    bill = bill_of_materials(chip.design(), chip.technology())
    figures = modelled_figures(chip) | {BILL: bill.total_usd}
    return {key: float(figures[key]) for key in QUANTITIES}


def _published(chip: Accelerator) -> dict[str, Record]:
    known = {key: chip.datasheet[key] for key in QUANTITIES if key in chip.datasheet}
    total = chip.bill_of_materials.get("total_usd")
    return known | ({} if total is None else {BILL: total})


def _chip(chip: Accelerator, left_out: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    modelled = _modelled(chip)
    return {
        "name": chip.name,
        "title": chip.label,
        "die": chip.die,
        "figures": {
            key: {
                "model": modelled[key],
                "published": record.value,
                "error": modelled[key] / record.value - 1.0,
                "left_out_error": left_out.get(key, {}).get(chip.name),
                "trust": record.trust,
                "source": record.source,
                "not_compared": chip.not_compared.get(key),
                "circular": chip.circular.get(key),
            }
            for key, record in _published(chip).items()
        },
    }


def _figure_of(key: str, design: Design) -> Callable[[Technology], Array]:
    """The figure that a fit is about, as a function of the technology."""
    if key == AREA:
        return lambda technology: blocks(design, technology).total_mm2
    return lambda technology: rated_power_w(design, technology)[0]


def _fitted(
    chips: Sequence[Accelerator], key: str, leaves: Sequence[str], *, one_vote_per_die: bool
) -> tuple[Fit, dict[str, float]]:
    """The fit of one quantity, and chip -> its error when its die is left out.

    A die has one area, so that its chips share one vote; every chip has a TDP of its own.
    """
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


def _mean(errors: Sequence[float | None]) -> float | None:
    known = [abs(error) for error in errors if error is not None]
    return sum(known) / len(known) if known else None


def _summary(rows: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    every = [row["figures"][key] for row in rows if key in row["figures"]]
    compared = [entry for entry in every if entry["not_compared"] is None]
    independent = [entry for entry in compared if entry["circular"] is None]
    mean = _mean([entry["error"] for entry in compared])
    return {
        "chips": len(compared),
        "mean_abs_error": mean,
        "largest": max((entry["error"] for entry in compared), key=abs, default=None),
        "left_out_mean_abs_error": _mean([entry["left_out_error"] for entry in compared]),
        "independent_chips": len(independent),
        "independent_mean_abs_error": _mean([entry["error"] for entry in independent]),
        "chips_with_a_figure": len(every),
        "mean_abs_error_of_all": _mean([entry["error"] for entry in every]),
        "bar": BARS[key],
        "reached": mean is not None and mean <= BARS[key],
    }


def _coefficients(fits: Mapping[str, tuple[Fit, Any]]) -> list[dict[str, Any]]:
    """Everything fitted that the compared figures rest on; the same for all chips."""
    process = records("process", "n4")
    entries = []
    for key, leaves in ((AREA, AREA_LEAVES), (TDP, POWER_LEAVES)):
        found = fits[key][0]
        for leaf, *factors in zip(leaves, found.factors, found.low, found.high, strict=True):
            shipped = process[leaf]
            refitted, low, high = (shipped.value * float(factor) for factor in factors)
            entries.append(_coefficient(f"process.{leaf}", shipped, refitted, low, high))
    for name in _KEPT:
        table, field = name.split(".")
        record = records(table, {"process": "n4", "rating": "default"}[table])[field]
        entries.append(_coefficient(name, record, None, record.low, record.high))
    share = _ISSUE_SHARE
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


_DECODE = (
    ("h100-sxm", "one sequence", 0.80, 0.0, "about 300", "ML.ENERGY v3.0"),
    ("h100-sxm", "128 sequences", 0.85, 0.40, "about 600", "ML.ENERGY v3.0"),
    ("h200-sxm", "80 % of the bandwidth", 0.80, 0.0, "137 to 300", "arXiv 2605.11999"),
)
"""Chip, load, share of the bandwidth and of the bf16 peak, measured power in W, source."""


def _decode_powers(chips: Mapping[str, Accelerator]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "load": load,
            "model_w": _power_w(chips[name].design(), chips[name].technology(), memory, compute),
            "measured_w": measured,
            "source": source,
        }
        for name, load, memory, compute, measured, source in _DECODE
        if name in chips
    ]


def _power_w(design: Design, technology: Technology, memory: float, compute: float) -> float:
    """Power of a device at its clock that uses a share of its bandwidth and of its peak, W."""
    rates = peak_rates(design, design.clock_ghz, technology)
    energy = energy_costs(design, design.clock_ghz, technology)
    return float(
        energy.static_w
        + memory * 1e3 * rates.memory_tb_s * energy.memory_j_per_gb
        + compute * rates.bf16_tflop_s * energy.bf16_j_per_tflop
    )


def validation_sections(content: Mapping[str, Any]) -> list[Section]:
    """What the screen shows."""
    fitted = [entry for entry in content["coefficients"] if entry["refitted"] is not None]
    return [
        Section("Mean absolute error", (_summary_table(content["summary"]),)),
        *(
            Section(label[0].upper() + label[1:], (_chips_table(content["chips"], key),))
            for key, label in QUANTITIES.items()
        ),
        Section(
            f"Shared coefficients: {len(content['coefficients'])}, {len(fitted)} fitted here",
            (
                "Fitted again just now to the chips above, by soft least squares on the relative "
                "error; low and high are the fits that leave one die out. No chip has a factor of "
                "its own.",
                _coefficients_table(content["coefficients"]),
            ),
        ),
        Section(
            "Power in decode, W",
            (
                "No coefficient is fitted to these.",
                _decode_table(content["decode_power"]),
            ),
        ),
        Section("What does not fit, and why", tuple(content["notes"])),
    ]


def _summary_table(summary: Mapping[str, Mapping[str, Any]]) -> Block:
    return Table(
        (
            "",
            "chips",
            "mean",
            "largest",
            "bar",
            "die left out",
            "not circular",
            "all with a figure",
        ),
        tuple(
            (
                QUANTITIES[key],
                str(entry["chips"]),
                percent(entry["mean_abs_error"], 3),
                signed_percent(entry["largest"]),
                percent(entry["bar"]),
                percent(entry["left_out_mean_abs_error"], 3),
                f"{percent(entry['independent_mean_abs_error'], 3)} ({entry['independent_chips']})",
                f"{percent(entry['mean_abs_error_of_all'], 3)} ({entry['chips_with_a_figure']})",
            )
            for key, entry in summary.items()
        ),
    )


def _chips_table(rows: Sequence[Mapping[str, Any]], key: str) -> Block:
    cells = []
    for row in rows:
        entry = row["figures"].get(key)
        if entry is None:
            cells.append((row["name"], "", NOT_KNOWN, "", "", "", ""))
            continue
        remarks = (
            ("not in the mean: ", entry["not_compared"]),
            ("circular: ", entry["circular"]),
        )
        cells.append(
            (
                row["name"],
                figure(entry["model"]),
                figure(entry["published"]),
                signed_percent(entry["error"]),
                signed_percent(entry["left_out_error"]),
                entry["trust"],
                "; ".join(f"{kind}{text}" for kind, text in remarks if text),
            )
        )
    columns = ("", "model", "published", "error", "die left out", "trust", "remark")
    return Table(columns, tuple(cells), numeric=False)


def _coefficients_table(rows: Sequence[Mapping[str, Any]]) -> Block:
    return Table(
        ("", "shipped", "fitted again", "low", "high", "unit"),
        tuple(
            (
                row["name"],
                figure(row["shipped"]),
                "kept" if row["refitted"] is None else figure(row["refitted"], 3),
                figure(row["low"], 3),
                figure(row["high"], 3),
                row["unit"],
            )
            for row in rows
        ),
        numeric=False,
    )


def _decode_table(rows: Sequence[Mapping[str, Any]]) -> Block:
    return Table(
        ("", "load", "model", "measured", "source"),
        tuple(
            (row["name"], row["load"], figure(row["model_w"]), row["measured_w"], row["source"])
            for row in rows
        ),
        numeric=False,
    )
