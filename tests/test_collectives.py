"""Collectives: bytes and latency steps of every algorithm, and what they cost in a phase.

Many are of faults that users of other tools met; values follow from the arithmetic shown at each.
"""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from litegpu_opt.catalog import load_accelerator, technology
from litegpu_opt.deployment import Deployment
from litegpu_opt.errors import UserError
from litegpu_opt.evaluation import evaluate
from litegpu_opt.execution.phase import operator_times
from litegpu_opt.execution.roofline import SoftRoof
from litegpu_opt.machine.rates import Rates
from litegpu_opt.numerics import scalar
from litegpu_opt.workload.collectives import (
    ALGORITHMS,
    Exchange,
    all_gather,
    all_reduce,
    all_to_all,
    point_to_point,
    reduce_scatter,
)
from litegpu_opt.workload.counts import decode_counts, operator_names, prefill_counts
from litegpu_opt.workload.parallelism import Parallelism
from litegpu_opt.workload.precision import Precision
from litegpu_opt.workload.traffic import make_workload
from litegpu_opt.workload.transformer import (
    DenseMlp,
    Experts,
    GroupedAttention,
    LatentAttention,
    Layer,
    Transformer,
)


BF16 = Precision("bf16", "bf16", "bf16", "bf16")
COLLECTIVES = [all_reduce, reduce_scatter, all_gather, all_to_all]
PHASES = [(prefill_counts, False), (decode_counts, True)]
H100_RATES = Rates(scalar(989.4), scalar(1979), scalar(3.35), scalar(450))

LLAMA_70B = Transformer(
    name="llama",
    family="llama",
    hidden=8192,
    vocab=128_256,
    layers=(Layer(GroupedAttention(64, 8, 128), DenseMlp(28_672, gated=True)),) * 80,
    norm_parameters=8192,
    tied_embeddings=False,
)

SMALL = Transformer(
    name="small",
    family="none",
    hidden=128,
    vocab=1000,
    layers=(
        Layer(GroupedAttention(8, 2, 16), DenseMlp(256, gated=False)),
        Layer(LatentAttention(8, 24, 32, 16, 8, 16), Experts(8, 2, 64, shared_width=32)),
    ),
    norm_parameters=128,
    tied_embeddings=False,
)


def workload(model=LLAMA_70B):
    return make_workload(model, BF16, prompt_tokens=1000, output_tokens=100)


def execution(**values):
    """No fixed times and no losses, but for the values given."""
    return technology({f"execution.{k}": v for k, v in values.items()}, execution="ideal").execution


def by_name(model, p, decode, values):
    return dict(zip(operator_names(model, p, decode=decode), np.asarray(values), strict=True))


# --- bytes and steps ----------------------------------------------------------------------------

# n = 4 ranks, S = 12 numbers: what passes a rank's link in its busier direction, and how many steps
# follow each other. Ring: a quarter of S per step. In the switch: all of S up to be added; to be
# copied, a quarter up and three quarters down. One-shot: all of S to each of three peers, or a
# quarter to each. Two-shot: a quarter to each of three peers, twice.
FOUR_RANKS = {
    "ring": {"all_reduce": (18, 6), "reduce_scatter": (9, 3), "all_gather": (9, 3),
             "all_to_all": (9, 3)},
    "in-network": {"all_reduce": (15, 2), "reduce_scatter": (12, 1), "all_gather": (9, 1),
                   "all_to_all": (9, 1)},
    "one-shot": {"all_reduce": (36, 1), "reduce_scatter": (9, 1), "all_gather": (9, 1),
                 "all_to_all": (9, 1)},
    "two-shot": {"all_reduce": (18, 2), "reduce_scatter": (9, 1), "all_gather": (9, 1),
                 "all_to_all": (9, 1)},
}  # fmt: skip


def test_the_table_below_has_every_algorithm():
    assert set(FOUR_RANKS) == set(ALGORITHMS)


@pytest.mark.parametrize("collective", COLLECTIVES, ids=lambda c: c.__name__)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_bytes_and_steps_of_four_ranks(collective, algorithm):
    wire, steps = FOUR_RANKS[algorithm][collective.__name__]
    assert collective(12, 4, algorithm) == Exchange(calls=1, steps=steps, message=12, wire=wire)


@pytest.mark.parametrize(
    ("collective", "algorithm", "wire", "steps"),
    [
        (all_reduce, "ring", Fraction(40, 3), 4),
        (all_reduce, "in-network", Fraction(40, 3), 2),
        (all_reduce, "one-shot", 20, 1),
        (all_gather, "ring", Fraction(20, 3), 2),
        # 10/3 up, the rest down
        (all_gather, "in-network", Fraction(20, 3), 1),
        (reduce_scatter, "in-network", 10, 1),
    ],
)
def test_sizes_that_do_not_divide_stay_exact(collective, algorithm, wire, steps):
    assert collective(10, 3, algorithm) == Exchange(1, steps, 10, wire)


def test_point_to_point_sends_the_tensor_once():
    assert point_to_point(7) == Exchange(calls=1, steps=1, message=7, wire=7)


@pytest.mark.parametrize("collective", COLLECTIVES, ids=lambda c: c.__name__)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_rank_sends_exactly_nothing(collective, algorithm):
    """n = 1 is exactly 0, not a small number."""
    assert collective(1_048_576, 1, algorithm) == Exchange(0, 0, 0, 0)


@pytest.mark.parametrize("collective", COLLECTIVES, ids=lambda c: c.__name__)
def test_unknown_algorithm_is_refused_with_the_nearest_name(collective):
    with pytest.raises(UserError, match="did you mean ring"):
        collective(1, 8, "rings")
    with pytest.raises(UserError, match="collective.*two-shot"):
        Parallelism(collective="tree")


@pytest.mark.parametrize(
    ("algorithm", "wire"), [("ring", 1_835_008), ("two-shot", 1_835_008), ("in-network", 1_179_648)]
)
def test_all_reduce_of_a_mebibyte_over_eight_ranks(algorithm, wire):
    """1.75 S point to point, 1.125 S with the switch adding; h = 8192, 64
    tokens in bf16 are S = 1,048,576 B.
    """
    size = 64 * 8192 * 2
    assert size == 1_048_576
    assert all_reduce(size, 8, algorithm).wire == wire


# --- time ---------------------------------------------------------------------------------------


def test_all_reduces_of_a_decode_step_at_450_gb_s():
    """1,835,008 B take 4.078 us, and 2 * 80 of them 652.4 us."""
    p = Parallelism(tp=8)
    counts = decode_counts(workload(), p)
    times = operator_times(counts, scalar(64), H100_RATES, execution())
    wire_us = by_name(LLAMA_70B, p, True, 1e3 * times.wire_ms)
    assert wire_us["embedding"] == pytest.approx(1_835_008 / 450e9 * 1e6, rel=1e-12)
    assert wire_us["embedding"] == pytest.approx(4.078, abs=5e-4)
    assert wire_us["output"] + wire_us["down"] == pytest.approx(652.4, abs=0.05)
    assert np.all(np.asarray(times.hop_ms) == 0.0)


@pytest.mark.parametrize(
    ("algorithm", "steps", "factor"),
    [("ring", 14, 1.75), ("two-shot", 2, 1.75), ("in-network", 2, 1.125), ("one-shot", 1, 7)],
)
def test_latency_rules_a_small_all_reduce(algorithm, steps, factor):
    """S = 16 KiB over eight ranks with 2 us a step; the ring takes 28.064 us."""
    p = Parallelism(tp=8, collective=algorithm)
    counts = decode_counts(workload(SMALL), p)
    # one token is 128 * 2 B: 64 sequences send 16 KiB
    times = operator_times(counts, scalar(64), H100_RATES, execution(collective_us_per_step=2.0))
    hop_us = by_name(SMALL, p, True, 1e3 * times.hop_ms)["embedding"]
    wire_us = by_name(SMALL, p, True, 1e3 * times.wire_ms)["embedding"]
    assert hop_us == pytest.approx(2 * steps, rel=1e-12)
    assert wire_us == pytest.approx(factor * 16_384 / 450e9 * 1e6, rel=1e-12)
    if algorithm == "ring":
        assert hop_us + wire_us == pytest.approx(28.064, abs=5e-4)
        assert hop_us / (hop_us + wire_us) == pytest.approx(0.998, abs=5e-4)


def test_a_collective_has_a_fixed_a_stepped_and_a_root_term():
    """Four ranks in a ring: 4 + 6 * 0.075 + 2.5 sqrt(4 MB) us."""
    p = Parallelism(tp=4)
    terms = dict(collective_us=4.0, collective_us_per_step=0.075, collective_us_per_sqrt_mb=2.5)
    sequences = 4e6 / (128 * 2)
    times = operator_times(
        decode_counts(workload(SMALL), p), scalar(sequences), H100_RATES, execution(**terms)
    )
    hop_us = by_name(SMALL, p, True, 1e3 * times.hop_ms)["embedding"]
    assert hop_us == pytest.approx(4 + 0.45 + 5, rel=1e-12)


@pytest.mark.parametrize("model", [LLAMA_70B, SMALL], ids=lambda m: m.name)
@pytest.mark.parametrize(("phase", "decode"), PHASES)
def test_one_device_waits_for_nobody_and_its_slopes_are_finite(model, phase, decode):
    """n = 1 gives 0 with a finite gradient, root of the message size included."""
    tree = technology().execution
    counts = phase(workload(model), Parallelism())

    def network_ms(batch, rates, tree):
        times = operator_times(counts, batch, rates, tree)
        return jnp.sum(times.hop_ms + times.wire_ms), times

    def total_ms(batch, rates, tree):
        return jnp.sum(network_ms(batch, rates, tree)[1].total_ms(SoftRoof(2.0)))

    point = scalar(64), H100_RATES, tree
    value, slopes = jax.value_and_grad(lambda *x: network_ms(*x)[0], argnums=(0, 1, 2))(*point)
    assert float(value) == 0.0
    assert all(float(slope) == 0.0 for slope in jax.tree.leaves(slopes))
    assert np.all(np.isfinite(jax.tree.leaves(jax.grad(total_ms, argnums=(0, 1, 2))(*point))))


# --- how many -----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("phase", "decode"), PHASES)
def test_161_all_reduces_and_a_gather_of_logits_per_step(phase, decode, algorithm):
    """2 * 80 in the layers and one for the vocabulary-parallel embedding."""
    p = Parallelism(tp=8, collective=algorithm)
    counts = phase(workload(), p)
    calls = by_name(LLAMA_70B, p, decode, counts.repeats * counts.collectives)
    assert calls.pop("lm_head") == 1
    assert {name for name, number in calls.items() if number} == {"embedding", "output", "down"}
    assert sum(calls.values()) == 2 * 80 + 1
    logits = by_name(LLAMA_70B, p, decode, 1e6 * counts.message_mb_per_seq)["lm_head"]
    assert logits == pytest.approx(128_256 * 2, rel=1e-12)


@pytest.mark.parametrize("model", [LLAMA_70B, SMALL], ids=lambda m: m.name)
@pytest.mark.parametrize(("phase", "decode"), PHASES)
def test_one_device_calls_nothing(model, phase, decode):
    """With tp = 1, none."""
    counts = phase(workload(model), Parallelism())
    for column in (counts.collectives, counts.steps, counts.message_mb_per_seq,
                   counts.wire_gb_per_seq):  # fmt: skip
        assert np.all(np.asarray(column) == 0.0)


@pytest.mark.parametrize(("algorithm", "per_layer"), [("ring", 2 * 28_672), ("in-network", 36_864)])
def test_a_decode_step_sends_two_messages_a_layer(algorithm, per_layer):
    """Per sequence, 16,384 B times 7/4, or times 9/8, twice."""
    p = Parallelism(tp=8, collective=algorithm)
    sent = by_name(LLAMA_70B, p, True, 1e9 * decode_counts(workload(), p).wire_gb_per_seq)
    assert sent["output"] + sent["down"] == pytest.approx(per_layer, rel=1e-12)


# --- devices ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "devices"),
    [
        (dict(), 1),
        (dict(tp=8), 8),
        (dict(dp=8), 8),
        (dict(pp=8), 8),
        (dict(tp=2, dp=3, pp=5), 30),
        # these two spread experts and caches over the same devices
        (dict(tp=2, dp=3, pp=5, ep=6), 30),
        (dict(tp=8, kv_parallel=8), 8),
        (dict(pp=2, microbatches=7), 2),
    ],
)
def test_devices_are_the_product_of_all_ways_of_parallelism(way, devices):
    """A worker of eight devices was counted as one."""
    assert Parallelism(**way).devices == devices


def _metrics(way, batch):
    h100 = load_accelerator("h100-sxm")
    p = Parallelism(**way)
    deployment = Deployment(p, p, batch, batch, 1.83, 1.83)
    return evaluate(h100.design(), deployment, h100.technology(), workload(SMALL))


@pytest.mark.parametrize("way", [dict(dp=8), dict(tp=8), dict(pp=2), dict(tp=2, dp=2, pp=2, ep=4)])
def test_rate_per_device_and_price_count_every_device(way):
    """8000 tokens/s over eight devices are 1000 each, and all eight are paid for."""
    p = Parallelism(**way)
    metrics = _metrics(way, 64)
    per_device = 132 * float(metrics.tokens_per_s_per_sm)
    assert per_device * p.devices == pytest.approx(float(metrics.tokens_per_s), rel=1e-12)
    busy_s = np.asarray(metrics.services.device_seconds_per_token)
    executions = np.array([1 / 100, 99 / 100])
    time_s = np.asarray(metrics.services.time_ms) / 1e3
    assert busy_s == pytest.approx(p.devices * time_s * executions / 64, rel=1e-12)


def test_eight_replicas_do_eight_times_as_much_at_the_same_price():
    """Replicas of a dense model share nothing."""
    dense = workload()
    h100 = load_accelerator("h100-sxm")
    one, eight = (
        evaluate(
            h100.design(),
            Deployment(Parallelism(tp=2, dp=dp), Parallelism(tp=2, dp=dp), 16 * dp, 16 * dp,
                       1.83, 1.83),
            h100.technology(),
            dense,
        )
        for dp in (1, 8)
    )  # fmt: skip
    assert float(eight.tokens_per_s) == pytest.approx(8 * float(one.tokens_per_s), rel=1e-12)
    for name in ("tokens_per_s_per_sm", "usd_per_token", "joules_per_token"):
        assert float(getattr(eight, name)) == pytest.approx(float(getattr(one, name)), rel=1e-12)


@pytest.mark.parametrize(
    ("batches", "where"),
    [((4, 12), "batch_prefill"), ((6, 5), "batch_decode"), ((6, 13), "batch_decode"),
     ((6, 5.5), "batch_decode"), ((6, float("nan")), "batch_decode")],
)  # fmt: skip
def test_a_batch_that_the_parts_cannot_share_is_refused(batches, where):
    """Two replicas and three microbatches: six parts."""
    h100, p = load_accelerator("h100-sxm"), Parallelism(tp=2, dp=2, microbatches=3)
    served = make_workload(LLAMA_70B, BF16, prompt_tokens=10, output_tokens=5)

    def cost(prefill, decode):
        deployment = Deployment(p, p, prefill, decode, 1.83, 1.83)
        return evaluate(h100.design(), deployment, h100.technology(), served).usd_per_token

    with pytest.raises(UserError, match=rf"^{where}: .*dp x microbatches = 6 parts; allowed"):
        cost(*batches)
    assert float(cost(6.5, 12)) > 0.0  # an average


def test_a_traced_batch_is_not_looked_at():
    h100, p = load_accelerator("h100-sxm"), Parallelism(tp=2, dp=2)
    served = make_workload(LLAMA_70B, BF16, prompt_tokens=10, output_tokens=5)

    def cost(batch):
        deployment = Deployment(p, p, batch, batch, 1.83, 1.83)
        return evaluate(h100.design(), deployment, h100.technology(), served).usd_per_token

    batches = jnp.array([1.0, 2.0, 64.0])
    assert np.all(np.asarray(jax.jit(jax.vmap(cost))(batches)) > 0.0)
