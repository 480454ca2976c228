"""Parity plot: predicted over measured times, one colour for each metric."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import write_atomic
from .figures import DOTS_PER_INCH, SIZE_IN


COLOURS = {"tpot": "#0072B2", "ttft": "#D55E00", "e2e": "#009E73"}
"""Told apart by every kind of colour vision (Okabe and Ito)."""
NAMES = {"tpot": "time between tokens", "ttft": "time to first token", "e2e": "whole batch"}
MARKERS = {"tpot": "o", "ttft": "s", "e2e": "^"}


def draw_parity(points: Sequence[Mapping[str, Any]], folder: Path) -> tuple[Path, Path, Path]:
    """Write `parity.png`, `.svg` and the `.csv` of what is drawn, and return their paths."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    sheet = Figure(figsize=SIZE_IN, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(sheet)
    axes = sheet.add_subplot()
    for metric, colour in COLOURS.items():
        own = [point for point in points if point["metric"] == metric]
        axes.scatter(
            [point["measured_ms"] for point in own],
            [point["model_ms"] for point in own],
            s=10,
            c=colour,
            marker=MARKERS[metric],
            linewidths=0,
            alpha=0.7,
            label=NAMES[metric],
        )
    values = [point[key] for point in points for key in ("measured_ms", "model_ms")]
    ends = (min(values), max(values))
    for share, style in ((1.0, "-"), (0.8, ":"), (1.25, ":")):
        axes.plot(ends, [share * end for end in ends], color="#888888", linestyle=style, zorder=0)
    axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="model, ms")
    axes.set_title("Rows that no fit has used; dotted: 25 % more and 20 % less")
    axes.legend(loc="upper left", frameon=False)
    png, svg, table = (folder / f"parity.{kind}" for kind in ("png", "svg", "csv"))
    for path, metadata in ((png, {"Software": None}), (svg, {"Date": None})):
        buffer = io.BytesIO()
        sheet.savefig(buffer, format=path.suffix[1:], metadata=metadata)
        write_atomic(path, buffer.getvalue())
    text = io.StringIO()
    writer = csv.DictWriter(text, list(points[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(points)
    write_atomic(table, text.getvalue())
    return png, svg, table
