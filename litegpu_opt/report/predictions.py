"""Predictions beside measurements that no fit has used: requests of serving stacks."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..calibration.requests import CLOSED_LOOP, Request
from ..calibration.serving import (
    FITTED,
    Predictions,
    fitted_factor,
    own_factor,
    predict,
    reason_excluded,
    stack_of,
)
from ..catalog import technology
from ..execution.phase import MS_PER_S
from ..workload.huggingface import read_transformer
from .document import Block, Section, Table, figure, percent, signed_percent


TABLE_OF = {"a100-sxm": ("ampere",), "b200-sxm": ("calibrated", "blackwell")}
"""Chip -> execution tables that its rows are predicted with; otherwise that of H100."""
THROUGHPUT = "throughput"
"""Tokens per second: of a loop output tokens, from both times; of a static batch all tokens."""
METHODS = ("model", "roofline", "ideal")

DENSE = "llama-3.1-70b"
OTHER = "InferenceX TensorRT-LLM"
"""Stack that no fit has used; its own k, where it is given, is that of its short prompts."""
SHORT = 0.9 * 1024
PUBLISHED = {
    ("h100-sxm", "ttft"): 0.32,
    ("h100-sxm", "tpot"): 0.18,
    ("a100-sxm", "ttft"): 0.04,
    ("a100-sxm", "tpot"): 0.10,
}
"""Errors of NVIDIA aiconfigurator 0.12, which has tables of measured kernels, on the same figures.
"""

NOTES = (
    "Held-out rows only: those that `suggested_split` gives to the fit are left out. One row of a "
    "configuration that was measured several times: the last.",
    "InferenceX draws lengths of 0.8 to 1.0 of the nominal ones: 0.9 is assumed. The format of the "
    "KV cache is not stated; that requests begin to queue where they do speaks for 16 bits on H100 "
    "and 8 bits on H200 and B200.",
    "Hardware that does not exist is predicted as B200 is here with the table of H100: no row "
    "tests a die that is smaller. Efficiencies, factors and times of a request stay; fixed times "
    "are constant in us.",
    "4-bit weights have no rate in the model and are not compared.",
    "Times of first tokens of mixtures of experts are stated and carry no bar: they wait in queues "
    "and are read in chunks, which the model does not have.",
)


def predictions_json(requests: Sequence[Request]) -> dict[str, Any]:
    """Errors by group and by tensor-parallel degree, and the bars."""
    usable = float(technology().execution.memory_usable_share)
    held = [request for request in requests if not request.may_fit]
    excluded: Counter[str] = Counter()
    kept = []
    for request in held:
        reasons = {m: reason_excluded(request, m, usable) for m in request.measured_ms}
        excluded.update(reason for reason in reasons.values() if reason)
        measured = {m: v for m, v in request.measured_ms.items() if not reasons[m]}
        if measured:
            kept.append(replace(request, measured_ms=measured))
    predicted = [
        (table, predict(rows, technology(execution=table).execution))
        for table, rows in _by_table(kept).items()
    ]
    return {
        "rows": [row for table, made in predicted for row in _groups(table, made, by_tp=False)],
        "by_tp": [row for table, made in predicted for row in _groups(table, made, by_tp=True)],
        "bars": _bars(kept, dict(predicted)),
        "points": [point for table, made in predicted for point in _points(table, made)],
        "fitted_rows": len(requests) - len(held),
        "held_out_rows": len(kept),
        "excluded": dict(excluded),
        "notes": list(NOTES),
    }


def _by_table(requests: Iterable[Request]) -> dict[str, list[Request]]:
    found: dict[str, list[Request]] = {}
    for request in requests:
        for table in TABLE_OF.get(request.chip, ("calibrated",)):
            found.setdefault(table, []).append(request)
    return found


def _points(table: str, made: Predictions) -> Iterable[dict[str, Any]]:
    """Every compared value on its own."""
    for row, r in enumerate(made.requests):
        for metric, value in r.measured_ms.items():
            yield {
                "source": r.source,
                "hardware": r.chip,
                "stack": r.stack,
                "model": r.model,
                "dtype": r.weights,
                "tp": r.tp,
                "batch": r.batch,
                "prompt": r.prompt,
                "output": r.output,
                "metric": metric,
                "execution": table,
                "measured_ms": value,
                "model_ms": float(made.by_name["model"][metric][row]),
            }


def _values(
    made: Predictions, metric: str, chosen: Callable[[Request], bool] = lambda _: True
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Measured values and those of every method, of the rows that have the metric."""
    rows = [
        row
        for row, request in enumerate(made.requests)
        if metric in _metrics(request) and chosen(request)
    ]
    measured = np.array(
        [_value(made.requests[row], metric, made.requests[row].measured_ms) for row in rows]
    )
    return measured, {
        name: np.array(
            [
                _value(made.requests[row], metric, {m: v[row] for m, v in values.items()})
                for row in rows
            ]
        )
        for name, values in made.by_name.items()
    }


def _metrics(request: Request) -> tuple[str, ...]:
    """What is measured of a row, with what follows from it."""
    known = request.measured_ms.keys()
    whole = {"e2e"} if request.load != CLOSED_LOOP else {"ttft", "tpot"}
    return (*known, THROUGHPUT) if whole <= known else tuple(known)


def _value(request: Request, metric: str, times_ms: Mapping[str, float]) -> float:
    """A metric from the times of a row: ms, or tokens per second."""
    r = request
    if metric != THROUGHPUT:
        return times_ms[metric]
    if r.load == CLOSED_LOOP:
        whole_ms = times_ms["ttft"] + (r.output - 1.0) * times_ms["tpot"]
        return MS_PER_S * r.batch * r.output / whole_ms
    return MS_PER_S * r.batch * (r.prompt + r.output) / times_ms["e2e"]


def _groups(table: str, made: Predictions, *, by_tp: bool) -> list[dict[str, Any]]:
    keys = {
        (r.source, r.chip, r.stack, r.model, r.weights, metric, r.tp if by_tp else 0)
        for r in made.requests
        for metric in _metrics(r)
    }
    return [_entry(key, table, made) for key in sorted(keys)]


def _entry(key: tuple, table: str, made: Predictions) -> dict[str, Any]:
    *names, metric, tp = key

    def chosen(r: Request) -> bool:
        own = [r.source, r.chip, r.stack, r.model, r.weights]
        return own == names and tp in (0, r.tp)

    measured, found = _values(made, metric, chosen)
    labels = dict(zip(("source", "hardware", "stack", "model", "dtype"), names, strict=True))
    return (
        labels
        | {"metric": metric, "execution": table, "n": len(measured)}
        | ({"tp": tp} if tp else {})
        | _statistics(found["model"], measured)
        | {name: _statistics(found[name], measured) for name in METHODS[1:]}
    )


def _statistics(predicted: np.ndarray, measured: np.ndarray) -> dict[str, float | None]:
    errors = predicted / measured - 1.0
    return {
        "mape": float(np.mean(np.abs(errors))),
        "bias": float(np.mean(errors)),
        "spearman": spearman(predicted, measured),
    }


def spearman(one: np.ndarray, other: np.ndarray) -> float | None:
    """Correlation of the ranks, ties at their mean; none for fewer than three values."""
    if len(one) < 3:
        return None
    ranks = [_ranks(values) - (len(one) - 1) / 2.0 for values in (one, other)]
    norm = float(np.linalg.norm(ranks[0]) * np.linalg.norm(ranks[1]))
    return float(ranks[0] @ ranks[1]) / norm if norm else None


def _ranks(values: np.ndarray) -> np.ndarray:
    below = (values[:, None] > values[None, :]).sum(axis=1)
    same = (values[:, None] == values[None, :]).sum(axis=1)
    return below + (same - 1) / 2.0


def _bars(kept: Sequence[Request], made: Mapping[str, Predictions]) -> list[dict[str, Any]]:
    """What the model should reach; a bar without rows is left out."""
    hopper = made.get("calibrated")
    bars: list[dict[str, Any]] = []
    if hopper is None:
        return bars

    def add(name: str, value: float | None, bar: float, n: int, *, least: bool = False) -> None:
        if value is not None and n:
            reached = value >= bar if least else value <= bar
            bars.append({"name": name, "value": value, "bar": bar, "n": n, "reached": reached})

    def pooled(name: str, bar: float, metric: str, chosen: Callable[[Request], bool],
               source: Predictions = hopper) -> None:  # fmt: skip
        measured, found = _values(source, metric, chosen)
        if len(measured):
            add(name, _statistics(found["model"], measured)["mape"], bar, len(measured))

    def dense(*chips: str, stacks: Sequence[str]) -> Callable[[Request], bool]:
        return lambda r: r.chip in chips and r.model == DENSE and stack_of(r) in stacks

    both = (FITTED, OTHER)
    on_hopper = dense("h100-sxm", "h200-sxm", stacks=(FITTED,))
    pooled("TPOT, Hopper, fitted stack", 0.06, "tpot", on_hopper)
    pooled("TPOT, H200, another stack", 0.15, "tpot", dense("h200-sxm", stacks=(OTHER,)))
    pooled("TTFT, Hopper, fitted stack", 0.12, "ttft", on_hopper)
    pooled("TPOT, B200 with the table of H100", 0.10, "tpot", dense("b200-sxm", stacks=both))
    if "blackwell" in made:
        pooled("TPOT, B200 with its own table (no bar)", np.inf, "tpot",
               dense("b200-sxm", stacks=both), made["blackwell"])  # fmt: skip
    execution = technology().execution
    short = [r for r in kept if dense("h200-sxm", stacks=(OTHER,))(r) and r.prompt <= SHORT]
    if short:
        k, fitted_k = own_factor(short, execution), fitted_factor()
        rest = [r for r in kept if r.source == "InferenceX" and r not in short]
        own = predict(rest, execution, lambda r: k if stack_of(r) == OTHER else fitted_k)
        pooled(f"TPOT, H200, another stack with its k of {k:.2f} from its short prompts", 0.07,
               "tpot", dense("h200-sxm", stacks=(OTHER,)), own)  # fmt: skip
        pooled("TPOT, B200 with the table of H100 and that k", 0.10, "tpot",
               dense("b200-sxm", stacks=both), own)  # fmt: skip
        for stack in ("SGLang", "TensorRT-LLM"):
            pooled(f"TPOT, mixtures of experts, InferenceX {stack}, with the k of its stack", 0.20,
                   "tpot", lambda r, s=stack: r.stack == s and _experts(r), own)  # fmt: skip
    add("least rank correlation of TPOT within Hopper chip and stack", *_least_rank(hopper),
        least=True)  # fmt: skip
    add("TPOT of B200 over that of H200, with the table of H100", *_ratio(hopper, both))
    published = [made[t] for t in ("calibrated", "ampere") if t in made]
    for (chip, metric), bar in PUBLISHED.items():
        for source in published:
            pooled(f"{metric.upper()}, NVIDIA's Llama-3.3-70B on {chip} (bar: aiconfigurator)",
                   bar, metric, lambda r, c=chip: r.source == "NVIDIA published" and r.chip == c,
                   source)  # fmt: skip
    return bars


def _experts(request: Request) -> bool:
    return request.load == CLOSED_LOOP and read_transformer(request.model).has_experts


def _least_rank(made: Predictions) -> tuple[float | None, float, int]:
    found = []
    for chip, stack in (("h100-sxm", FITTED), ("h200-sxm", FITTED), ("h200-sxm", OTHER)):
        measured, values = _values(
            made,
            "tpot",
            lambda r, c=chip, s=stack: (r.chip, r.model, stack_of(r)) == (c, DENSE, s),
        )
        if len(measured) > 2:
            found.append((spearman(values["model"], measured), len(measured)))
    known = [rank for rank, _ in found if rank is not None]
    return min(known, default=None), 0.98, sum(n for _, n in found)


def _ratio(made: Predictions, stacks: Sequence[str]) -> tuple[float | None, float, int]:
    """Mean absolute error of the ratio, over loads that both chips have."""
    values: dict[str, dict[tuple, tuple[float, float]]] = {"b200-sxm": {}, "h200-sxm": {}}
    for row, r in enumerate(made.requests):
        dense = r.model == DENSE and stack_of(r) in stacks
        if r.chip in values and dense and "tpot" in r.measured_ms:
            key = (r.stack, r.tp, r.batch, r.prompt, r.output)
            values[r.chip][key] = (made.by_name["model"]["tpot"][row], r.measured_ms["tpot"])
    new, old = values["b200-sxm"], values["h200-sxm"]
    errors = [
        (new[key][0] / old[key][0]) / (new[key][1] / old[key][1]) - 1.0
        for key in new.keys() & old.keys()
    ]
    return (float(np.mean(np.abs(errors))) if errors else None), 0.06, len(errors)


def predictions_sections(content: Mapping[str, Any]) -> list[Section]:
    """What the screen shows."""
    excluded = [f"Not compared: {n} values: {why}." for why, n in content["excluded"].items()]
    return [
        Section("Bars", (_bars_table(content["bars"]),)),
        Section(
            f"Held-out rows: {content['held_out_rows']}, {content['fitted_rows']} were fitted",
            (_rows_table(content["rows"]),),
        ),
        Section("What this rests on", (*content["notes"], *excluded)),
    ]


def _bars_table(bars: Sequence[Mapping[str, Any]]) -> Block:
    return Table(
        ("", "value", "bar", "rows", ""),
        tuple(
            (
                bar["name"],
                figure(bar["value"]),
                figure(bar["bar"]),
                str(bar["n"]),
                "reached" if bar["reached"] else "MISSED",
            )
            for bar in bars
        ),
        "Mean absolute relative errors, and a rank correlation",
    )


def _rows_table(rows: Sequence[Mapping[str, Any]]) -> Block:
    def label(row: Mapping[str, Any]) -> str:
        return f"{row['source']}, {row['hardware']}, {row['stack']}, {row['model']} {row['dtype']}"

    return Table(
        ("", "metric", "table", "rows", "MAPE", "bias", "Spearman", "roofline of 6", "ideal"),
        tuple(
            (
                label(row),
                row["metric"],
                row["execution"],
                str(row["n"]),
                percent(row["mape"]),
                signed_percent(row["bias"]),
                figure(row["spearman"], 3),
                percent(row["roofline"]["mape"]),
                percent(row["ideal"]["mape"]),
            )
            for row in rows
        ),
        "Mean absolute error of the model, of a roofline with six fitted constants, of the ideal",
    )
