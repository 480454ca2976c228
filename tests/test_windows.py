"""Sliding windows and caches split over ranks: bytes of a sequence, pairs, operators by hand.

Many are of faults that users of other tools met; values follow from the arithmetic shown at each.
"""

from dataclasses import replace
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from litegpu_opt.errors import UserError
from litegpu_opt.numerics import scalar
from litegpu_opt.workload.collectives import Exchange
from litegpu_opt.workload.counts import (
    decode_counts,
    mean_context,
    operator_names,
    prefill_counts,
)
from litegpu_opt.workload.huggingface import read_transformer
from litegpu_opt.workload.memory import kv_bytes_per_sequence, kv_bytes_per_token
from litegpu_opt.workload.operators import Operator, stages
from litegpu_opt.workload.parallelism import Parallelism, check_parallelism
from litegpu_opt.workload.pool import build_pools
from litegpu_opt.workload.precision import Precision
from litegpu_opt.workload.traffic import make_workload
from litegpu_opt.workload.transformer import DenseMlp, GroupedAttention, Layer, Transformer


BF16 = Precision("bf16", "bf16", "bf16", "bf16")
ALONE = Parallelism()


def model(*attentions, hidden=10):
    """One layer for each attention, with a small MLP."""
    layers = {a: Layer(a, DenseMlp(12, gated=False)) for a in attentions}
    return Transformer(
        name="small",
        family="none",
        hidden=hidden,
        vocab=13,
        layers=tuple(layers[a] for a in attentions),
        norm_parameters=hidden,
        tied_embeddings=False,
    )


_OSS = GroupedAttention(64, 8, 64)
GPT_OSS_120B = model(*[replace(_OSS, window=w) for _ in range(18) for w in (128, None)])

_GEMMA = GroupedAttention(32, 16, 128)
GEMMA_3_27B = model(*[replace(_GEMMA, window=None if n % 6 == 5 else 1024) for n in range(62)])


# --- context of a decode step ---------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [1, 5, 90, 100, 101, 5000])
@pytest.mark.parametrize("output", [2, 3, 11, 50, 1000])
@pytest.mark.parametrize("window", [1, 7, 100, np.inf])
def test_mean_context_is_that_of_the_steps_one_by_one(prompt, output, window):
    """Step t = 1 .. T - 1 sees min(w, S + t); prefill makes the first of T tokens."""
    steps = [min(window, prompt + t) for t in range(1, output)]
    (mean,) = mean_context(scalar(prompt), scalar(output), np.array([float(window)])).tolist()
    assert mean == pytest.approx(sum(steps) / len(steps), rel=1e-12)


def test_mean_context_of_averages_stays_within_the_window():
    window = np.array([100.0])
    for prompt, output in ((99.3, 1.5), (99.3, 3.0), (99.9, 200.25), (0.5, 100.0), (3.0, 1.0)):
        mean = float(mean_context(scalar(prompt), scalar(output), window)[0])
        assert prompt < mean <= 100
    gradients = jax.grad(
        lambda lengths: mean_context(lengths[0], lengths[1], window)[0]
    )(jnp.array([50.0, 1.0]))  # fmt: skip
    assert np.all(np.isfinite(gradients))


# --- bytes of a sequence ------------------------------------------------------------------------


def test_layers_with_a_window_keep_no_more_than_it():
    """18 layers of 65,536 tokens and 18 of 128, 2048 bytes each; 4.5 GiB if all full."""
    for oss in (GPT_OSS_120B, read_transformer("gpt-oss-120b")):
        kept = kv_bytes_per_sequence(oss, BF16, ALONE, 65_536)
        assert kept == 2_415_919_104 + 4_718_592 == 2_420_637_696
        assert kv_bytes_per_token(oss, BF16, ALONE) * 65_536 == 4_831_838_208


def test_every_sixth_layer_is_global():
    """10 layers of 32,768 tokens and 52 of 1024, 8192 bytes each."""
    for gemma in (GEMMA_3_27B, read_transformer("gemma-3-27b")):
        windows = [layer.attention.window for layer in gemma.layers]
        assert windows == [None if n % 6 == 5 else 1024 for n in range(62)]
        assert kv_bytes_per_sequence(gemma, BF16, ALONE, 32_768) == 3_120_562_176
        assert kv_bytes_per_token(gemma, BF16, ALONE) * 32_768 == 16_642_998_272


def test_five_of_thirty_layers_of_gemma_4_are_global():
    """32,768 tokens in 5 layers of 2 heads of 512, 1024 in 25 layers of 8 heads of 256.

    ollama 16958 counts 0.99 GB, as its windows keep a batch of 512 tokens more; 14.09 GB are 30
    full layers with the average of 7 heads.
    """
    gemma = read_transformer("gemma-4-26b-a4b")
    per_token = {layer.attention.window: 4 * layer.attention.kv_heads * layer.attention.head_dim
                 for layer in gemma.layers}  # fmt: skip
    assert per_token == {1024: 8192, None: 4096}
    kept = kv_bytes_per_sequence(gemma, BF16, ALONE, 32_768)
    assert kept == 5 * 32_768 * 4096 + 25 * 1024 * 8192 == 880_803_840
    with_a_batch = [
        replace(layer, attention=replace(layer.attention, window=1024 + 512))
        if layer.attention.window
        else layer
        for layer in gemma.layers
    ]
    kept = kv_bytes_per_sequence(replace(gemma, layers=tuple(with_a_batch)), BF16, ALONE, 32_768)
    assert kept / 1e9 == pytest.approx(0.99, abs=0.005)
    assert 30 * 32_768 * 2 * 7 * (512 + 512) / 1e9 == pytest.approx(14.09, abs=0.005)


@pytest.mark.parametrize(
    ("name", "layers", "per_token"), [("qwen2.5-72b", 80, 327_680), ("mixtral-8x7b", 32, 131_072)]
)
def test_a_window_that_is_switched_off_is_none(name, layers, per_token):
    """use_sliding_window is false, or sliding_window is null."""
    full = read_transformer(name)
    assert [layer.attention.window for layer in full.layers] == layers * [None]
    assert kv_bytes_per_sequence(full, BF16, ALONE, 131_072) == per_token * 131_072


def test_131072_tokens_of_qwen_are_43_gb():
    assert kv_bytes_per_sequence(read_transformer("qwen2.5-72b"), BF16, ALONE, 131_072) == (
        42_949_672_960
    )


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 9, 1000])
def test_pools_hold_what_a_sequence_keeps(tokens):
    """Two layers of 2 * 2 * 3 numbers: one keeps all tokens, one four of them."""
    both = model(GroupedAttention(6, 2, 3, window=4), GroupedAttention(6, 2, 3))
    expected = 24 * tokens + 24 * min(tokens, 4)
    assert kv_bytes_per_sequence(both, BF16, ALONE, tokens) == expected
    served = make_workload(both, BF16, prompt_tokens=tokens, output_tokens=2)
    pools = build_pools(served, ALONE, ALONE)
    assert float(pools.kv_gb_per_seq[0]) * 1e9 == pytest.approx(expected, rel=1e-12)
    longer = kv_bytes_per_sequence(both, BF16, ALONE, tokens + 2)
    assert float(pools.kv_gb_per_seq[1]) * 1e9 == pytest.approx(float(longer), rel=1e-12)


def test_the_fullest_stage_depends_on_the_length():
    """Three layers with a window of 4, then two without: 3 min(n, 4) against 2 n."""
    near, far = GroupedAttention(6, 2, 3, window=4), GroupedAttention(6, 2, 3)
    stages = Parallelism(pp=2)
    five = model(near, near, near, far, far)
    for tokens, layers_tokens in ((4, 3 * 4), (5, 3 * 4), (6, 3 * 4), (7, 2 * 7), (100, 2 * 100)):
        assert kv_bytes_per_sequence(five, BF16, stages, tokens) == 24 * layers_tokens
        served = make_workload(five, BF16, prompt_tokens=tokens, output_tokens=2)
        held = float(build_pools(served, stages, stages).kv_gb_per_seq[0])
        assert held * 1e9 == pytest.approx(24 * layers_tokens, rel=1e-12)


def test_a_window_bounds_what_is_handed_over():
    """Prompts of 9 to two ranks with a head of 2 * 3 numbers each: 12 bytes a layer and token, of
    nine tokens in one layer and of four in the other.
    """
    both = model(GroupedAttention(6, 2, 3, window=4), GroupedAttention(6, 2, 3))
    served = make_workload(both, BF16, prompt_tokens=9, output_tokens=2)
    pools = build_pools(served, Parallelism(tp=3), Parallelism(tp=2))
    received = 12 * (9 + 4)
    assert float(pools.handover_gb_per_seq[0]) * 1e9 == pytest.approx(received, rel=1e-12)
    assert float(pools.sent_gb_per_seq[0]) * 1e9 == pytest.approx(2 * received / 3, rel=1e-12)


# --- pairs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "window", "pairs"),
    [
        (9, None, 45),
        (9, 9, 45),
        (9, 100, 45),
        (9, 4, 1 + 2 + 3 + 4 + 5 * 4),
        (9, 1, 9),
        (1, 1, 1),
        (8192, 128, 128 * 129 // 2 + (8192 - 128) * 128),
    ],
)
def test_pairs_of_a_prompt(prompt, window, pairs):
    """Token i sees min(i, w) keys."""
    assert pairs == sum(min(i, window or i) for i in range(1, prompt + 1))
    near = model(GroupedAttention(6, 2, 3, window=window))
    served = make_workload(near, BF16, prompt_tokens=prompt, output_tokens=2)
    tflop = prefill_counts(served, ALONE).tflop_attention_per_seq
    assert float(np.sum(tflop)) * 1e12 == pytest.approx(4 * 6 * 3 * pairs, rel=1e-12)


@pytest.mark.parametrize(
    ("window", "seen"), [(None, 10.5), (100, 10.5), (11, 10.5), (10, 10), (4, 4), (1, 1)]
)
def test_a_decode_step_sees_and_reads_the_window(window, seen):
    """S + T/2 = 9 + 3/2; keys and values of min(L, w) tokens, 12 numbers each."""
    near = model(GroupedAttention(6, 2, 3, window=window))
    served = make_workload(near, BF16, prompt_tokens=9, output_tokens=3)
    counts = decode_counts(served, ALONE)
    assert float(np.sum(counts.tflop_attention_per_seq)) * 1e12 == pytest.approx(
        4 * 6 * 3 * seen, rel=1e-12
    )
    name = "window_attention" if window else "attention"
    row = operator_names(near, ALONE, decode=True).index(name)
    queries_and_results = 2 * 6 * 3 * 2
    assert float(counts.traffic_gb_per_seq[row]) * 1e9 == pytest.approx(
        queries_and_results + 12 * 2 * seen, rel=1e-12
    )


def test_layers_with_and_without_a_window_are_counted_apart():
    names = operator_names(GPT_OSS_120B, ALONE, decode=True)
    served = make_workload(GPT_OSS_120B, BF16, prompt_tokens=65_535, output_tokens=2)
    counts = decode_counts(served, ALONE)
    far, near = names.index("attention"), names.index("window_attention")
    assert float(counts.repeats[far]) == float(counts.repeats[near]) == 18
    assert float(counts.repeats[names.index("qkv")]) == 36
    tflop = counts.tflop_attention_per_seq
    assert float(tflop[far] / tflop[near]) == pytest.approx(65_536 / 128, rel=1e-12)


def test_slopes_at_the_edge_of_a_window_are_finite():
    """A prompt as long as the window, where min(S, w) has its corner."""
    near = model(GroupedAttention(6, 2, 3, window=4))

    def total(prompt):
        served = make_workload(near, BF16, prompt_tokens=4, output_tokens=2)
        traffic = replace(served.traffic, prompt_tokens=prompt)
        counts = prefill_counts(replace(served, traffic=traffic), ALONE)
        return counts.tflop_attention_per_seq.sum() + counts.traffic_gb_per_seq.sum()

    assert np.isfinite(jax.grad(total)(4.0))


# --- every operator by hand ---------------------------------------------------------------------

# h = 10, six query heads over two key/value heads of 4, a window of 7. On six ranks: one head of
# each kind, every key/value head on three ranks.
NEAR = GroupedAttention(6, 2, 4, window=7)
# A ring of six sends 10/6 of 10 numbers in ten steps.
SUM = Exchange(1, 10, 10, Fraction(50, 3))

# Rotating a query and a key of 4 reads and writes 8 numbers each way.
REPLICATED = [
    Operator("qkv", depth=10, quantised_per_token=10, passes=1, passed_per_token=16, held=120,
             read=120, flop_per_token=240, moved_per_token=10 + 4,
             cached_per_token=8),
    Operator("window_attention", flop_per_pair=16, moved_per_token=8, cached_per_context=8,
             window=7),
    Operator("output", depth=4, quantised_per_token=4, held=40, read=40,
             flop_per_token=80, moved_per_token=4 + 10, exchange=SUM),
]  # fmt: skip

# The three ranks keep a third of the tokens each. Each gathers three heads, 12 numbers, two thirds
# of them from elsewhere in two steps; meets 3 * 4 with a third of the context, as many FLOPs as
# before; and they add up 3 (4 + 1) numbers, 10 of which leave.
SPLIT = [
    replace(REPLICATED[0], cached_per_token=Fraction(8, 3), exchange=Exchange(1, 2, 12, 8)),
    Operator("window_attention", flop_per_pair=16, moved_per_token=2 * 12,
             cached_per_context=Fraction(8, 3), window=7, exchange=Exchange(1, 2, 15, 10)),
    REPLICATED[2],
]  # fmt: skip

# Prefill has all keys at hand, and keeps a third.
SPLIT_PREFILL = [replace(REPLICATED[0], cached_per_token=Fraction(8, 3)), *REPLICATED[1:]]


@pytest.mark.parametrize(
    ("c", "decode", "expected"),
    [(1, True, REPLICATED), (1, False, REPLICATED), (3, True, SPLIT), (3, False, SPLIT_PREFILL)],
)
def test_every_operator_equals_the_hand_count(c, decode, expected):
    p = Parallelism(tp=6, kv_parallel=c)
    rows = stages(model(NEAR), p, decode=decode)[0]
    names = [operator.name for operator in expected]
    assert [operator for _, operator in rows if operator.name in names] == expected


def test_a_split_cache_is_held_once():
    """Six ranks, two heads of 2 * 4 numbers: 16 bytes a rank and token, or a third."""
    whole, split = (
        kv_bytes_per_token(model(NEAR), BF16, Parallelism(tp=6, kv_parallel=c)) for c in (1, 3)
    )
    assert (whole, split) == (16, Fraction(16, 3))
    assert 6 * split == kv_bytes_per_token(model(NEAR), BF16, ALONE) == 32


@pytest.mark.parametrize(("tp", "c", "copies"), [(1, 2, 1), (2, 2, 1), (6, 2, 3), (6, 6, 3)])
def test_a_cache_is_split_only_over_ranks_that_would_hold_the_same(tp, c, copies):
    with pytest.raises(UserError) as caught:
        check_parallelism(model(NEAR), Parallelism(tp=tp, kv_parallel=c), "decode.{}")
    message = str(caught.value)
    assert message.startswith("decode.kv_parallel: ") and f"the {copies} ranks" in message
