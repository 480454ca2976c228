"""Trade-off figures: a front, the limit that the study sets, a thinned cloud of other points."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..files import write_atomic


MOST_CLOUD_POINTS = 2000
"""Points of a cloud that are drawn; the others are thinned out evenly at random."""
THINNING_SEED = 811_270_963
"""A number that nobody else draws points from: the cloud may be random itself."""
MOST_LABELS = 10
"""Points of a front that carry a label."""
NARROW = 10.0
"""Largest ratio of the ends of an axis that has too few powers of ten to be read by them."""
SIZE_IN = (10.0, 7.0)
DOTS_PER_INCH = 100
FRONT, FEASIBLE, INFEASIBLE, LIMIT = "#0072B2", "#56B4E9", "#BBBBBB", "#D55E00"
"""Told apart by every kind of colour vision (Okabe and Ito), and by shape and order as well."""


@dataclass(frozen=True)
class TradeOff:
    """What a figure shows: two quantities that are both better when small."""

    title: str
    x_label: str
    """With its unit."""
    y_label: str
    front: Sequence[tuple[float, float, str]]
    """Points of the front in the order of x, each with a label."""
    limit: float | None = None
    """Value of x that the study allows."""
    cloud: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    """x, y and whether feasible, of other points."""


def draw(figure: TradeOff, folder: Path, name: str) -> tuple[Path, Path, Path]:
    """Write a figure as PNG and SVG with the CSV of what is drawn, and return their paths."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sheet = Figure(figsize=SIZE_IN, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(sheet)
    axes = sheet.add_subplot()
    rows = [("front", x, y, label) for x, y, label in figure.front]
    if figure.cloud is not None:
        for kind, colour, x, y in _thinned(*figure.cloud):
            axes.scatter(x, y, s=6, c=colour, linewidths=0, label=kind, rasterized=True, zorder=1)
            rows += [(kind, float(a), float(b), "") for a, b in zip(x, y, strict=True)]
    x, y = [point[0] for point in figure.front], [point[1] for point in figure.front]
    axes.plot(x, y, color=FRONT, marker="o", markersize=5, label="front", zorder=3)
    labelled = _labelled([label for *_, label in figure.front])
    for row in labelled:
        last = row == len(figure.front) - 1
        axes.annotate(
            figure.front[row][2],
            figure.front[row][:2],
            xytext=(-6 if last else 6, 8),
            textcoords="offset points",
            horizontalalignment="right" if last else "left",
            fontsize=9,
        )
    if figure.limit is not None:
        axes.axvline(
            figure.limit, color=LIMIT, linestyle="--", label="limit of the study", zorder=2
        )
    axes.set(xscale="log", yscale="log", xlabel=figure.x_label, ylabel=figure.y_label)
    for axis in (axes.xaxis, axes.yaxis):  # 0.13 instead of 1.3 x 10^-1
        low, high = axis.get_view_interval()
        axis.set_major_formatter(lambda value, _: f"{value:.3g}")
        few_decades = high / low < NARROW
        axis.set_minor_formatter((lambda value, _: f"{value:.3g}") if few_decades else "")
    axes.set_title(figure.title)
    axes.grid(visible=True, which="both", color="#EEEEEE", zorder=0)
    axes.legend(loc="upper right", frameon=False)
    png, svg, table = (folder / f"{name}.{kind}" for kind in ("png", "svg", "csv"))
    for path, metadata in ((png, {"Software": None}), (svg, {"Date": None})):
        buffer = io.BytesIO()
        sheet.savefig(buffer, format=path.suffix[1:], metadata=metadata)
        write_atomic(path, buffer.getvalue())
    write_atomic(table, _table(figure, rows))
    return png, svg, table


def _thinned(x: np.ndarray, y: np.ndarray, feasible: np.ndarray):
    """Kind, colour and points of the cloud, infeasible ones first so that they lie below."""
    known = np.isfinite(x) & np.isfinite(y) & (x > 0.0) & (y > 0.0)
    share = min(1.0, MOST_CLOUD_POINTS / max(1, int(known.sum())))
    kept = known & (np.random.default_rng(THINNING_SEED).uniform(size=len(x)) < share)
    for kind, colour, chosen in (
        ("infeasible", INFEASIBLE, ~feasible),
        ("feasible", FEASIBLE, feasible),
    ):
        if (kept & chosen).any():
            yield kind, colour, x[kept & chosen], y[kept & chosen]


def _labelled(labels: Sequence[str]) -> list[int]:
    """Rows of a front that carry a label: where it changes, evenly spread."""
    changes = [row for row, label in enumerate(labels) if row == 0 or label != labels[row - 1]]
    spread = np.linspace(0, len(changes) - 1, min(len(changes), MOST_LABELS)).round().astype(int)
    return [changes[place] for place in sorted(set(spread.tolist()))]


def _table(figure: TradeOff, rows: Sequence[tuple[str, float, float, str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("kind", figure.x_label, figure.y_label, "label"))
    writer.writerows(rows)
    return text.getvalue()


def front_figures(content: Mapping[str, Any]) -> list[tuple[str, TradeOff]]:
    """File name and figure of every front of a study's result."""
    return [
        (f"{workload['workload']}.{front['name']}.{front['over']}", _front(workload, front))
        for workload in content["panel"]
        for front in workload["fronts"]
        if any(point["run"] for point in front["points"])
    ]


def _front(workload: Mapping[str, Any], front: Mapping[str, Any]) -> TradeOff:
    points = [point for point in front["points"] if point["run"]]
    return TradeOff(
        title=f"{workload['workload']}: {front['name']}, every point with its own bound",
        x_label=f"{front['over']}, {front['unit']}",
        y_label=workload["objective_text"],
        front=[
            (
                point["limit"],
                point["objective"],
                f"{point['run']['die_area_mm2']:.0f} mm2, tp "
                f"{point['run']['deployment']['tp_decode']}",
            )
            for point in points
        ],
    )
