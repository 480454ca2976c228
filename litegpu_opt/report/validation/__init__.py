"""The machine model against what is known of real chips: figures, fits, measured power."""

from collections.abc import Sequence
from typing import Any

from ...catalog import Accelerator
from .document import validation_sections
from .figures import QUANTITIES, chip_figures, summary
from .fits import coefficients, fits
from .power import power_json


__all__ = ["QUANTITIES", "validation_json", "validation_sections"]

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
    "Power in decode: an SM that waits is given the clock energy of one that issues. A share of it "
    "as a ninth coefficient (0.375, which meets single figures of ML.ENERGY and of an H200) nearly "
    "doubles the mean error over all these rows: 32 instead of 17 %. Devices that stand still "
    "between kernels (Splitwise on 4 and 8) draw less than the model says. In prefill the model "
    "gives the average of the phase, the measurement its peak.",
    "The TDP of L4 is that of the memory-heavy phase, whose load is assumed; its bf16 phase alone "
    "comes to 69 W.",
    "A peak or a bandwidth is a real check only where clock and rates come from another source; "
    "those calculated from the figure itself are marked circular.",
)


def validation_json(chips: Sequence[Accelerator]) -> dict[str, Any]:
    """Every published figure of every chip against the model."""
    fitted = fits(chips)
    left_out = {key: errors for key, (_, errors) in fitted.items()}
    rows = [row for row in (chip_figures(chip, left_out) for chip in chips) if row["figures"]]
    summaries = {key: summary(rows, key) for key in QUANTITIES}
    return {
        "mean_abs_error": {key: entry["mean_abs_error"] for key, entry in summaries.items()},
        "summary": summaries,
        "chips": rows,
        "coefficients": coefficients(fitted),
        "power": power_json({chip.name: chip for chip in chips}),
        "notes": list(NOTES),
    }
