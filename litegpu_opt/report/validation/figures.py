"""Every published figure of every chip against the model: errors by chip, and their means."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...catalog import Accelerator, Record
from ...machine.cost import bill_of_materials
from ..chips import modelled_figures


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


def _modelled(chip: Accelerator) -> dict[str, float]:
    bill = bill_of_materials(chip.design(), chip.technology())
    figures = modelled_figures(chip) | {BILL: bill.total_usd}
    return {key: float(figures[key]) for key in QUANTITIES}


def _published(chip: Accelerator) -> dict[str, Record]:
    known = {key: chip.datasheet[key] for key in QUANTITIES if key in chip.datasheet}
    total = chip.bill_of_materials.get("total_usd")
    return known | ({} if total is None else {BILL: total})


def chip_figures(chip: Accelerator, left_out: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
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


def mean_abs(errors: Sequence[float | None]) -> float | None:
    known = [abs(error) for error in errors if error is not None]
    return sum(known) / len(known) if known else None


def summary(rows: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    every = [row["figures"][key] for row in rows if key in row["figures"]]
    compared = [entry for entry in every if entry["not_compared"] is None]
    independent = [entry for entry in compared if entry["circular"] is None]
    mean = mean_abs([entry["error"] for entry in compared])
    return {
        "chips": len(compared),
        "mean_abs_error": mean,
        "largest": max((entry["error"] for entry in compared), key=abs, default=None),
        "left_out_mean_abs_error": mean_abs([entry["left_out_error"] for entry in compared]),
        "independent_chips": len(independent),
        "independent_mean_abs_error": mean_abs([entry["error"] for entry in independent]),
        "chips_with_a_figure": len(every),
        "mean_abs_error_of_all": mean_abs([entry["error"] for entry in every]),
        "bar": BARS[key],
        "reached": mean is not None and mean <= BARS[key],
    }
