"""What `litegpu validate machine` shows."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..document import (
    NOT_KNOWN,
    Block,
    Section,
    Table,
    figure,
    percent,
    signed_percent,
)
from .figures import QUANTITIES


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
            "Measured power of prefill and decode, W per device",
            (
                "No coefficient is fitted to these. The model's energy of the counted work, over "
                "the time measured beside it; over its own time for the series of Splitwise.",
                _series_table(content["power"]),
                *(_power_table(series) for series in content["power"]),
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


def _series_table(series: Sequence[Mapping[str, Any]]) -> Block:
    return Table(
        ("", "rows", "mean abs error", "mean error", "trust", "what, source, licence"),
        tuple(
            (
                entry["name"],
                str(len(entry["rows"])),
                percent(entry["mean_abs_error"]),
                signed_percent(entry["mean_error"]),
                entry["trust"],
                f"{entry['title']}. {entry['source']} ({entry['licence']})",
            )
            for entry in series
        ),
        numeric=False,
    )


def _power_table(series: Mapping[str, Any]) -> Block:
    return Table(
        ("", "load", "model", "measured", "error"),
        tuple(
            (
                row["name"],
                row["load"],
                figure(row["model_w"]),
                figure(row["measured_w"]),
                signed_percent(row["error"]),
            )
            for row in series["rows"]
        ),
        series["name"],
        numeric=False,
    )
