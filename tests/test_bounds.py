"""A time at peak rates is below every measurement; a wrong count of bytes is not.

The counts and rates are the product's own, with ideal execution: no latency, peak rates. What is
measured stands in `data/`, with its sources. A bound above a row says that the counts there, or a
chip's peaks, are too large.
"""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from litegpu_opt import Deployment, Parallelism, Precision, evaluate, load_accelerator
from litegpu_opt.execution.phase import operator_times
from litegpu_opt.execution.roofline import HardRoof
from litegpu_opt.machine.rates import peak_rates
from litegpu_opt.numerics import scalar
from litegpu_opt.workload.collectives import all_gather, all_reduce, all_to_all, reduce_scatter
from litegpu_opt.workload.counts import decode_counts, operator_names, prefill_counts
from litegpu_opt.workload.huggingface import read_transformer
from litegpu_opt.workload.traffic import make_workload
from litegpu_opt.workload.transformer import DenseMlp, GroupedAttention, Layer, Transformer


DATA = Path(__file__).parent / "data"
ALONE = Parallelism()
MIXED = Precision("bf16", "bf16", "bf16", "bf16")


def rows(name):
    with open(DATA / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def identity(row):
    return "-".join(value for value in row.values() if value)


def chip_rates(name):
    chip = load_accelerator(name)
    design = chip.design()
    return peak_rates(design, design.clock_ghz, chip.technology())


def bound_us(chip, model, operator, *, batch=1, tokens=1, precision=MIXED, decode=False):
    """Compute or memory time of one operator of a model of one layer, at peak rates."""
    # two output tokens: the context of the one that is decoded is prompt + 1
    prompt = tokens - 1 if decode else tokens
    served = make_workload(model, precision, prompt_tokens=prompt, output_tokens=2)
    counts = (decode_counts if decode else prefill_counts)(served, ALONE)
    execution = load_accelerator(chip).technology(execution="ideal").execution
    times = operator_times(counts, scalar(batch), chip_rates(chip), execution)
    row = operator_names(model, ALONE, decode=decode).index(operator)
    return 1e3 * float(HardRoof()(times.compute_ms, times.memory_ms)[row])


def one_layer(attention, mlp, hidden):
    return Transformer(
        name="one", family="none", hidden=hidden, vocab=1, layers=(Layer(attention, mlp),),
        norm_parameters=hidden, tied_embeddings=False,
    )  # fmt: skip


@pytest.mark.parametrize("row", rows("gemm_us.csv"), ids=identity)
def test_matrix_products_are_not_faster_than_their_bound(row):
    m, n, k = (int(row[key]) for key in "mnk")
    model = one_layer(GroupedAttention(1, 1, 1), DenseMlp(n, gated=False), k)
    precision = replace(MIXED, weights=row["format"])
    bound = bound_us(row["accelerator"], model, "up", tokens=m, precision=precision)
    assert 0.0 < bound < float(row["time_us"])


def attention_bound_us(row, *, kv_heads):
    heads, head_dim, tokens = (int(row[key]) for key in ("heads", "head_dim", "tokens"))
    attention = GroupedAttention(heads, kv_heads, head_dim)
    model = one_layer(attention, DenseMlp(1, gated=False), 1)
    decode = row["phase"] == "decode"
    batch = int(row["batch"])
    return bound_us(
        row["accelerator"], model, "attention", batch=batch, tokens=tokens, decode=decode
    )


@pytest.mark.parametrize("row", rows("attention_us.csv"), ids=identity)
def test_attention_is_not_faster_than_its_bound(row):
    bound = attention_bound_us(row, kv_heads=int(row["kv_heads"]))
    assert 0.0 < bound < float(row["time_us"])


COLLECTIVES = dict(
    all_reduce=all_reduce,
    all_gather=all_gather,
    reduce_scatter=reduce_scatter,
    alltoall=all_to_all,
)


@pytest.mark.parametrize("row", rows("collectives_us.csv"), ids=identity)
def test_collectives_are_not_faster_than_their_bound(row):
    """With fewest bytes: all-reduces in the switch, but for the A100's, which cannot add."""
    in_switch = row["collective"] == "all_reduce" and row["accelerator"] != "a100-sxm"
    algorithm = "in-network" if in_switch else "ring"
    exchange = COLLECTIVES[row["collective"]](int(row["bytes"]), int(row["ranks"]), algorithm)
    gb_s = float(chip_rates(row["accelerator"]).network_gb_s)
    assert 0.0 < float(exchange.wire) / gb_s / 1e3 < float(row["time_us"])


def service_ms(row):
    """Prefill of a batch and a decode step, at peak rates and with no latency."""
    model = read_transformer(row["model"])
    chip = load_accelerator(row["accelerator"])
    design = chip.design()
    p, batch = Parallelism(tp=int(row["tp"])), int(row["batch"])
    served = make_workload(
        model, MIXED, prompt_tokens=int(row["prompt"]), output_tokens=int(row["output"])
    )
    clock = float(design.clock_ghz)
    metrics = evaluate(
        design,
        Deployment(p, p, batch, batch, clock, clock),
        chip.technology(execution="ideal"),
        served,
        roof=HardRoof(),
    )
    return [float(ms) for ms in metrics.services.time_ms]


@pytest.mark.parametrize("row", rows("serving_ms.csv"), ids=identity)
def test_whole_models_are_not_faster_than_their_bound(row):
    prefill, step = service_ms(row)
    for bound, measured in (
        (prefill, row["prefill_ms"]),
        (step, row["decode_step_ms"]),
        (prefill + (int(row["output"]) - 1) * step, row["end_to_end_ms"]),
    ):
        if measured:
            assert 0.0 < bound < float(measured)


def test_cache_bytes_of_query_heads_break_the_bound():
    """What the case is about (ai-dynamo/aiconfigurator 1216): 32 times the cache, as with the bytes
    of a key/value head for each of 32 heads, put the bound above what was measured.
    """
    decode = [row for row in rows("attention_us.csv") if row["phase"] == "decode"]
    longest = max(decode, key=lambda row: int(row["batch"]) * int(row["tokens"]))
    bound = attention_bound_us(longest, kv_heads=int(longest["kv_heads"]))
    assert bound < float(longest["time_us"]) < 32 * bound
    assert float(longest["time_us"]) < 2 * bound


def test_query_heads_add_no_cache_to_the_time_of_decode_attention():
    """64 or 128 of them over 8 key/value heads read the same cache, beside their own queries and
    results; 64 key/value heads read eight times as much.
    """
    row = dict(accelerator="h100-sxm", phase="decode", batch="64", tokens="8192", head_dim="128")
    once, twice = (attention_bound_us(row | dict(heads=q), kv_heads=8) for q in ("64", "128"))
    cache = 2 * 8 * 8192
    assert twice / once == pytest.approx((2 * 128 + cache) / (2 * 64 + cache), rel=1e-9)
    assert attention_bound_us(row | dict(heads="64"), kv_heads=64) > 7.9 * once
