"""Measured requests: time to first token, time between tokens and end-to-end time under load.

| table       | load                                                                              |
|-------------|-----------------------------------------------------------------------------------|
| inferencex  | closed loop: `concurrency` requests at a time, prefill between decode steps        |
| serving     | one static batch: prefill, then decode                                            |
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from .kernels import CHIPS
from .tables import Measurement, read_table, shipped_table


TABLES: Mapping[str, Sequence[str]] = {
    "inferencex": (
        "system", "model_path", "precision", "backend", "isl", "osl", "concurrency", "tp_size",
        "ttft_ms", "tpot_ms", "suggested_split",
    ),
    "serving": (
        "source", "hardware", "model", "tp", "weight_precision", "framework",
        "batch_or_concurrency", "load_type", "input_tokens", "output_tokens", "prefill_ms",
        "e2e_ms", "suggested_split",
    ),
}  # fmt: skip
"""Kind of table -> columns that it must have."""

SHIPPED = ("inferencex.csv", "serving.csv", "published.csv")

CALIB = "calib"
"""What the column `suggested_split` says of rows that may be fitted."""

_LENGTH = 0.9
"""Mean length over the nominal one in InferenceX, which draws lengths of 0.8 to 1.0 of it."""

_ORIGINS = {
    "inferencex-dump": "InferenceX",
    "nvidia-gap-analysis": "NVIDIA gap analysis",
    "nvidia-published": "NVIDIA published",
}

_SYSTEMS = {
    "a100_sxm": "a100-sxm",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200-sxm",
}
_NAMES = {"H100": "h100-sxm", "A100": "a100-sxm", "GH200": "gh200", "B200": "b200-sxm"}
_MODELS = {
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Llama-2-70b-hf": "llama-2-70b",
    "llama2-70b": "llama-2-70b",
    "Qwen2-72B": "qwen2.5-72b",
    "Meta-Llama-3-70B": "llama-3-70b",
    "Llama-2-7b-hf": "llama-2-7b",
    "llama2-7b": "llama-2-7b",
    "Meta-Llama-3-8B": "llama-3.1-8b",
    "Mistral-7B-v0.1": "mistral-7b-v0.1",
    "mistral-7b": "mistral-7b-v0.1",
    "Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "falcon-180b": "falcon-180b",
}
"""Name in a table -> model of the catalogue; rows of other models are not read."""
_WEIGHTS = {"fp8": "fp8", "bf16": "bf16", "fp16": "bf16", "fp16/bf16": "bf16"}
"""4-bit products have no rate in the model."""
_CACHE = {"h100-sxm": "bf16", "a100-sxm": "bf16"}
"""Format of the KV cache of 8-bit weights; elsewhere 8 bits. Not stated in the tables: inferred
from the concurrency at which requests begin to queue."""

CLOSED_LOOP, STATIC = "closed loop", "static batch"


@dataclass(frozen=True)
class Request:
    """One measured load of one deployment."""

    source: str
    chip: str
    model: str
    weights: str
    cache: str
    stack: str
    tp: int
    dp: int
    ep: int
    load: str
    batch: float
    """Requests at a time."""
    prompt: float
    output: float
    measured_ms: Mapping[str, float]
    """Metric -> its value; of `ttft`, `tpot`, `e2e`."""
    split: str

    @property
    def may_fit(self) -> bool:
        """Whether its file and column give it to the fit."""
        return self.split == CALIB


def read_requests(paths: Iterable[str | Path]) -> list[Request]:
    """Requests of tables that a user has. **Raises:** `UserError`."""
    return _newest(row for path in paths for row in _of_table(*read_table(path, TABLES)))


def shipped_requests() -> list[Request]:
    """Requests of the extracts in the catalogue."""
    return _newest(row for name in SHIPPED for row in _of_table(*shipped_table(name, TABLES)))


def _newest(rows: Iterable[tuple[str, Request]]) -> list[Request]:
    """One row of every configuration: the last that was measured."""
    newest: dict[tuple, tuple[str, Request]] = {}
    for day, row in rows:
        key = (row.source, row.chip, row.model, row.weights, row.stack, row.tp, row.dp, row.ep,
               row.load, row.batch, row.prompt, row.output, tuple(row.measured_ms))  # fmt: skip
        if key not in newest or newest[key][0] < day:
            newest[key] = (day, row)
    return [row for _, row in newest.values()]


def _of_table(kind: str, rows: Sequence[Measurement]) -> Iterator[tuple[str, Request]]:
    reader = {"inferencex": _closed_loop, "serving": _static}[kind]
    for row in rows:
        yield from reader(row)


def _whole(row: Measurement, column: str, default: int) -> int:
    if not row.text(column):
        return default
    value = row.number(column)
    if value != int(value):
        raise UserError(
            f"{value:g} is no number of devices", where=f"{row.where}.{column}", allowed="1, 2, ..."
        )
    return int(value)


def _closed_loop(row: Measurement) -> Iterator[tuple[str, Request]]:
    chip, model = _SYSTEMS.get(row.text("system")), _MODELS.get(row.text("model_path"))
    weights = _WEIGHTS.get(row.text("precision"))
    tp, dp = _whole(row, "tp_size", 1), _whole(row, "attention_dp_size", 1)
    ep, expert_tp = _whole(row, "moe_ep_size", 1), _whole(row, "moe_tp_size", 1)
    if chip is None or model is None or weights is None:
        return
    source = _ORIGINS.get(row.text("origin"), row.text("origin"))
    length = _LENGTH if source == "InferenceX" else 1.0
    load = "concurrency" if row.text("concurrency") else "batch_size"
    experts = ep * expert_tp
    if tp * dp > 8 or (experts > 1 and experts != tp * dp):
        return  # more than a node, or ranks that are not stated
    yield (
        row.text("measured"),
        Request(
            source=source,
            chip=chip,
            model=model,
            weights=weights,
            cache=_CACHE.get(chip, "fp8") if weights == "fp8" else "bf16",
            stack={"trtllm": "TensorRT-LLM", "vllm": "vLLM", "sglang": "SGLang"}.get(
                row.text("backend"), row.text("backend")
            ),
            tp=tp,
            dp=dp,
            ep=ep,
            load=CLOSED_LOOP,
            batch=row.number(load),
            prompt=length * row.number("isl"),
            output=length * row.number("osl"),
            measured_ms={"ttft": row.number("ttft_ms"), "tpot": row.number("tpot_ms")},
            split=row.text("suggested_split"),
        ),
    )


def _static(row: Measurement) -> Iterator[tuple[str, Request]]:
    name = row.text("hardware")
    chip = CHIPS.get(name, _NAMES.get(name))
    model, weights = _MODELS.get(row.text("model")), _WEIGHTS.get(row.text("weight_precision"))
    split = row.text("suggested_split")
    unfit = split not in (CALIB, "holdout") or not row.text("load_type").startswith(STATIC)
    if chip is None or model is None or weights is None or unfit:
        return
    measured = {
        metric: row.number(column)
        for metric, column in (("ttft", "prefill_ms"), ("e2e", "e2e_ms"))
        if row.text(column)
    }
    if measured:
        yield (
            "",
            Request(
                source=row.text("source"),
                chip=chip,
                model=model,
                weights=weights,
                cache="bf16",
                stack=row.text("framework").split()[0],
                tp=_whole(row, "tp", 1),
                dp=1,
                ep=1,
                load=STATIC,
                batch=row.number("batch_or_concurrency"),
                prompt=row.number("input_tokens"),
                output=row.number("output_tokens"),
                measured_ms=measured,
                split=split,
            ),
        )
