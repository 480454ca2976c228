"""Measured kernels as phases of one operator: what the execution model is fitted to.

| table       | kernel             | counted as                                                    |
|-------------|--------------------|---------------------------------------------------------------|
| gemm        | gemm               | M K by K N; with 8-bit weights a pass that quantises M K      |
| attention   | prefill, decode    | causal pairs; keys and values read once                       |
| collectives | all-reduce         | ring, by size and ranks                                       |
| layer_ops   | pass, gemm, norm   | rotation and activation; matrix products; norm with addition  |
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from ..catalog import load_accelerator
from ..execution.phase import operator_times
from ..execution.roofline import SoftRoof
from ..machine.rates import Rates, peak_rates
from ..machine.technology import Execution
from ..workload.collectives import all_reduce
from ..workload.counts import GIGA, KIBI, MEGA, TERA, OperatorCounts
from .tables import Measurement, in_fit, read_table, shipped_table


US_PER_MS = 1e3

TABLES = {
    "gemm": ("hardware", "gemm_dtype", "m", "n", "k", "time_us"),
    "attention": (
        "hardware",
        "op",
        "attn_dtype",
        "kv_cache_dtype",
        "batch_size",
        "isl",
        "kv_len",
        "num_heads",
        "num_key_value_heads",
        "head_dim",
        "time_us",
    ),
    "collectives": ("hardware", "n", "bytes", "op", "impl", "time_us"),
    "layer_ops": ("hardware", "model", "tp", "num_tokens", "attn_rope_ms", "mlp_act_ms"),
}
"""Kind of table -> columns that it must have."""

SHIPPED = ("gemm.csv", "attention.csv", "collectives.csv", "layer_ops.csv")

CHIPS = {
    "H100-SXM-80GB": "h100-sxm",
    "H200-SXM-141GB": "h200-sxm",
    "A100-SXM-80GB": "a100-sxm",
    "B200-SXM": "b200-sxm",
}
"""Name in a table -> accelerator of the catalogue; other names are taken as they are."""

_OTHERS = ("(", "MI210")
"""In names of public tables whose rows are left out: other boards and networks, an unknown chip."""

GENERATIONS = {
    "a100-sxm": "ampere",
    "h100-sxm": "hopper",
    "h200-sxm": "hopper",
    "b200-sxm": "blackwell",
}

_ALL_REDUCE = "vLLM_custom_graph"
"""Library whose all-reduce is fitted: the one that serving stacks use up to a few MB."""

_NOT_BELIEVED = ("b200-sxm",)
"""Chips whose table of decode attention is left out."""

_BYTES = {"bfloat16": 2.0, "bf16": 2.0, "float16": 2.0, "fp16": 2.0, "fp8": 1.0}
_ACTIVATION = 2.0
"""Bytes of an activation."""

_EXTERNAL = {
    "Llama-2-7b-hf": (4096, 11008, 32, 32),
    "Meta-Llama-3-8B": (4096, 14336, 32, 8),
    "CodeLlama-34b-Instruct-hf": (8192, 22016, 64, 8),
    "Llama-2-70b-hf": (8192, 28672, 64, 8),
    "Meta-Llama-3-70B": (8192, 28672, 64, 8),
}
"""Models of the layer operators: hidden, feed-forward, heads, key/value heads; heads of 128."""
_HEAD = 128


@dataclass(frozen=True)
class Kernel:
    """One measured kernel."""

    kind: str
    chip: str
    number_format: str
    stack: str
    """Whose kernel it is."""
    shape: tuple[float, ...]
    counts: Mapping[str, float]
    """Fields of `OperatorCounts` that are not 0."""
    time_us: float
    excluded: str = ""
    """Why neither a fit nor an error uses it."""
    only_compared: str = ""
    """Why no fit uses it."""

    @property
    def chosen(self) -> bool:
        """Whether its shape is in the half that a fit may use."""
        return not self.excluded and in_fit(self.kind, *self.shape)

    @property
    def may_fit(self) -> bool:
        """Whether the fit of an execution table uses it; errors are stated of the others alone."""
        return self.chosen and not self.only_compared


@cache
def chip_rates(chip: str) -> Rates:
    """Peaks of a chip, as its data sheet has them."""
    accelerator = load_accelerator(chip)
    design = accelerator.design()
    return peak_rates(design, design.clock_ghz, accelerator.technology())


def read_kernels(paths: Iterable[str | Path]) -> list[Kernel]:
    """Kernels of tables that a user has."""
    return [kernel for path in paths for kernel in _of_table(*read_table(path, TABLES))]


def shipped_kernels() -> list[Kernel]:
    """Kernels of the extracts in the catalogue."""
    return [kernel for name in SHIPPED for kernel in _of_table(*shipped_table(name, TABLES))]


def _of_table(kind: str, rows: Sequence[Measurement]) -> Iterator[Kernel]:
    reader = {
        "gemm": _gemms,
        "attention": _attentions,
        "collectives": _collectives,
        "layer_ops": _layer_ops,
    }[kind]
    for row in rows:
        if not any(other in row.text("hardware") for other in _OTHERS):
            yield from reader(row)


def _gemm_counts(m: float, n: float, k: float, bytes_: float) -> dict[str, float]:
    """As `operators.linear` counts a matrix product."""
    eight_bit = bytes_ == 1.0
    rate = "tflop_fp8_per_seq" if eight_bit else "tflop_bf16_per_seq"
    return {
        "launches": 1.0,
        "depth_k": k / KIBI,
        rate: 2.0 * m * n * k / TERA,
        "weight_gb": n * k * bytes_ / GIGA,
        "traffic_gb_per_seq": m * (k + n) * _ACTIVATION / GIGA,
        "passes": float(eight_bit),
        "pass_gb_per_seq": eight_bit * m * k * (_ACTIVATION + 1.0) / GIGA,
    }


def _gemms(row: Measurement) -> Iterator[Kernel]:
    number_format = row.text("gemm_dtype")
    if number_format not in _BYTES:
        return  # products of 4 bits have no rate in the model
    m, n, k = (row.number(column) for column in ("m", "n", "k"))
    yield Kernel(
        kind="gemm",
        chip=_chip(row),
        number_format="fp8" if number_format == "fp8" else "bf16",
        stack=_stack(row.text("source")),
        shape=(m, n, k),
        counts=_gemm_counts(m, n, k, _BYTES[number_format]),
        time_us=row.number("time_us"),
    )


def _attentions(row: Measurement) -> Iterator[Kernel]:
    batch, prompt, context, heads, kv_heads, head = (
        row.number(column)
        for column in (
            "batch_size", "isl", "kv_len", "num_heads", "num_key_value_heads", "head_dim",
        )
    )  # fmt: skip
    cached = _BYTES.get(row.text("kv_cache_dtype"))
    arithmetic = row.text("attn_dtype")
    if cached is None:
        return
    prefill = row.text("op").startswith("context")
    queries = batch * (prompt if prefill else 1.0)
    pairs = queries * ((prompt + 1.0) / 2.0 if prefill else context)
    flop = 4.0 * heads * head
    counts = {
        "launches": 1.0,
        "attentions": 1.0,
        "tflop_attention_per_seq": flop * pairs / TERA,
        "tflop_attention_per_key_and_seq": prefill * flop * queries / TERA,
        "traffic_gb_per_seq": (
            2.0 * queries * heads * head * _ACTIVATION
            + 2.0 * batch * context * kv_heads * head * cached
        )
        / GIGA,
    }
    if prefill:  # its call also rotates, and writes the cache
        counts |= {
            "passes": 1.0,
            "pass_gb_per_seq": 2.0 * queries * (heads + kv_heads) * head * _ACTIVATION / GIGA,
        }
    chip, time_us = _chip(row), row.number("time_us")
    excluded = ""
    if prefill and arithmetic == "fp8":
        excluded = "multiplies in 8 bits, which the model does not"
    elif not prefill and heads != kv_heads:
        excluded = "grouped decode: many rows imply more than the peak bandwidth"
    elif not prefill and cached != _ACTIVATION:
        excluded = "8-bit cache without groups: limited by conversion, not by bandwidth"
    elif counts["traffic_gb_per_seq"] / float(chip_rates(chip).memory_tb_s) * US_PER_MS > time_us:
        excluded = "implies more than the peak bandwidth"
    elif not prefill and chip in _NOT_BELIEVED:
        excluded = "nearly all large rows of this chip imply more than the peak bandwidth"
    yield Kernel(
        kind="prefill attention" if prefill else "decode attention",
        chip=chip,
        number_format="bf16" if cached == _ACTIVATION else "fp8",
        stack=_stack(row.text("source")),
        shape=(batch, prompt, context, heads, kv_heads, head),
        counts=counts,
        time_us=time_us,
        excluded=excluded,
    )


def _collectives(row: Measurement) -> Iterator[Kernel]:
    if row.text("op") != "all_reduce":
        return
    ranks, size = row.number("n"), row.number("bytes")
    sent = all_reduce(size, int(ranks), "ring")
    stack = row.text("impl").split()[0]
    yield Kernel(
        kind="all-reduce",
        chip=_chip(row),
        number_format="bf16",
        stack=stack,
        shape=(ranks, size),
        only_compared=""
        if stack == _ALL_REDUCE
        else "another library, with fixed times of its own",
        counts={
            "collectives": 1.0,
            "steps": float(sent.steps),
            "message_mb_per_seq": float(sent.message) / MEGA,
            "wire_gb_per_seq": float(sent.wire) / GIGA,
        },
        time_us=row.number("time_us"),
    )


def _layer_ops(row: Measurement) -> Iterator[Kernel]:
    if row.text("model") not in _EXTERNAL:
        return
    hidden, wide, heads, kv_heads = _EXTERNAL[row.text("model")]
    tokens, tp = row.number("num_tokens"), row.number("tp")
    q, kv, f = heads / tp * _HEAD, max(kv_heads / tp, 1.0) * _HEAD, wide / tp

    def kernel(
        kind: str,
        columns: Sequence[str],
        counts: dict[str, float],
        *shape: float,
        only_compared: str = "",
    ) -> Iterator[Kernel]:
        times = [row.text(column) for column in columns]
        if all(times):
            yield Kernel(
                kind=kind,
                chip=_chip(row),
                number_format="bf16",
                stack="Vidur",
                shape=(tokens, *shape),
                counts=counts,
                time_us=US_PER_MS * sum(row.number(column) for column in columns),
                only_compared=only_compared,
            )

    def passing(numbers: float) -> dict[str, float]:
        return {"passes": 1.0, "pass_gb_per_seq": tokens * numbers * _ACTIVATION / GIGA}

    yield from kernel("pass", ["attn_rope_ms"], passing(2.0 * (q + kv)), q + kv, 0)
    yield from kernel("pass", ["mlp_act_ms"], passing(3.0 * f), f, 1)
    yield from kernel(
        "norm and addition",
        ["post_attention_layernorm_ms", "add_ms"],
        {"launches": 1.0, "traffic_gb_per_seq": 4.0 * tokens * hidden * _ACTIVATION / GIGA},
        hidden,
        only_compared="two kernels, where serving stacks have one",
    )
    for column, n, k in (
        ("attn_pre_proj_ms", q + 2 * kv, hidden),
        ("attn_post_proj_ms", hidden, q),
        ("mlp_up_proj_ms", 2 * f, hidden),
        ("mlp_down_proj_ms", hidden, f),
    ):
        yield from kernel("gemm", [column], _gemm_counts(tokens, n, k, 2.0), n, k,
                          only_compared="a stack that no fit uses")  # fmt: skip


def _chip(row: Measurement) -> str:
    """The accelerator of a row. **Raises:** `UserError` for one that is not known."""
    name = row.text("hardware")
    if name not in CHIPS:
        load_accelerator(name, f"{row.where}.hardware")
    return CHIPS.get(name, name)


def _stack(source: str) -> str:
    for stack in ("trtllm", "vllm"):
        if stack in source:
            return {"trtllm": "TensorRT-LLM", "vllm": "vLLM"}[stack]
    return source


def stacked(kernels: Sequence[Kernel]) -> tuple[OperatorCounts, Rates]:
    """Kernels along the operator axis, `(kernels,)`, and the peaks of the device of each."""
    plain = {"repeats": 1.0, "device_share": 1.0}
    columns = {
        field.name: jnp.array([kernel.counts.get(field.name, plain.get(field.name, 0.0))
                               for kernel in kernels])
        for field in fields(OperatorCounts)
        if field.name not in ("experts", "stage", "stages")
    }  # fmt: skip
    operators = OperatorCounts(
        experts=None, stage=jnp.ones((1, len(kernels))), stages=jnp.ones(1), **columns
    )
    of_rows = [chip_rates(kernel.chip) for kernel in kernels]
    rates = Rates(
        **{
            field.name: jnp.array([float(getattr(rates, field.name)) for rates in of_rows])
            for field in fields(Rates)
        }
    )
    return operators, rates


@eqx.filter_jit
def kernel_times_us(operators: OperatorCounts, rates: Rates, execution: Execution) -> Array:
    """Time of every kernel as the execution model has it, us, `(kernels,)`."""
    times = operator_times(operators, jnp.ones(()), rates, execution)
    return US_PER_MS * times.total_ms(SoftRoof(execution.overlap_exponent))
