"""Multi-head latent attention: what is cached, and every operator counted by hand.

Many are of faults that users of other tools met; values follow from the arithmetic shown at each.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from litegpu_opt.errors import UserError
from litegpu_opt.workload.collectives import Exchange
from litegpu_opt.workload.counts import decode_counts, operator_names, prefill_counts
from litegpu_opt.workload.huggingface import read_transformer
from litegpu_opt.workload.memory import kv_bytes_per_token, parameter_counts
from litegpu_opt.workload.operators import Operator, stages
from litegpu_opt.workload.parallelism import Parallelism, check_parallelism
from litegpu_opt.workload.precision import Precision
from litegpu_opt.workload.traffic import make_workload
from litegpu_opt.workload.transformer import DenseMlp, LatentAttention, Layer, Transformer


BF16 = Precision("bf16", "bf16", "bf16", "bf16")
ALONE = Parallelism()


def model(attention, *, hidden=11, width=6, layers=1):
    """Every layer with the given attention and a plain MLP."""
    return Transformer(
        name="small",
        family="none",
        hidden=hidden,
        vocab=13,
        layers=(Layer(attention, DenseMlp(width, gated=False)),) * layers,
        norm_parameters=hidden,
        tied_embeddings=False,
    )


DEEPSEEK_V3 = model(
    LatentAttention(128, 1536, 512, 128, 64, 128), hidden=7168, width=2048, layers=61
)


# --- cache and parameters -----------------------------------------------------------------------


@pytest.mark.parametrize(("kv", "number_bytes"), [("bf16", 2), ("fp8", 1)])
def test_one_latent_and_one_rotary_key_are_cached_per_token_and_layer(kv, number_bytes):
    """61 (512 + 64) numbers: 70,272 bytes in bf16, 35,136 in FP8."""
    precision = Precision("bf16", kv, "bf16", "bf16")
    for deepseek in (DEEPSEEK_V3, read_transformer("deepseek-v3")):
        assert kv_bytes_per_token(deepseek, precision, ALONE) == 35_136 * number_bytes


@pytest.mark.parametrize("tp", [1, 2, 8, 16, 128])
def test_the_latent_is_on_every_rank_in_full(tp):
    """70,272 bytes per token on each rank, 562,176 on eight; not 8,784 each."""
    p = Parallelism(tp=tp)
    for deepseek in (DEEPSEEK_V3, read_transformer("deepseek-v3")):
        assert kv_bytes_per_token(deepseek, BF16, p) == 70_272


@pytest.mark.parametrize(("c", "expected"), [(2, 35_136), (4, 17_568), (8, 8_784)])
def test_the_latent_is_split_where_that_is_asked_for(c, expected):
    assert kv_bytes_per_token(DEEPSEEK_V3, BF16, Parallelism(tp=8, kv_parallel=c)) == expected
    with pytest.raises(UserError, match=r"kv_parallel.*divide the 8 ranks .*allowed: 1, 2, 4, 8"):
        check_parallelism(DEEPSEEK_V3, Parallelism(tp=8, kv_parallel=3), "decode.{}")


def test_expanded_latents_are_not_split():
    """Every rank would need the whole cache to expand it."""
    p = Parallelism(tp=8, kv_parallel=2, absorb_latent=False)
    with pytest.raises(UserError, match=r"^decode.kv_parallel: .* not expanded .*allowed: 1$"):
        check_parallelism(DEEPSEEK_V3, p, "decode.{}")


def test_attention_of_deepseek_v3_has_its_published_parameters():
    """7168 (1536 + 576) down, 1536 * 128 * 192 and 512 * 128 * 256 up, 128 * 128 * 7168 out, and
    norms of the two latents: 187,107,328.
    """
    rows = stages(DEEPSEEK_V3, ALONE, decode=True)[0]
    attention = [o for _, o in rows if o.part == "attention" and o.name != "elementwise"]
    assert sum(o.held + o.vectors for o in attention) == 187_107_328


# --- every operator by hand ---------------------------------------------------------------------

# h = 11, six heads on three ranks: q = 2. Query latent 5, cached latent r = 7, head parts: 3
# without position, 2 rotary, values 4. Keys of 5 numbers, cache of 9.
MLA = LatentAttention(6, 5, 7, 3, 2, 4)
TP3 = dict(tp=3)

DOWN = Operator("qkv_down", depth=11, quantised_per_token=11, held=154, read=154, vectors=5 + 7,
             flop_per_token=2 * 11 * 14,
                moved_per_token=11 + 5, cached_per_token=9)  # fmt: skip
# 2 (2 + 1) 2 numbers to rotate two queries and the key
Q_UP = Operator("q_up", depth=5, quantised_per_token=5, passes=1, passed_per_token=12, held=50,
                read=50, flop_per_token=2 * 5 * 10, moved_per_token=5 + 10)  # fmt: skip
# a ring of three sends 4/3 of 11 numbers in four steps
OUTPUT = Operator("output", depth=8, quantised_per_token=8, held=88, read=88,
             flop_per_token=2 * 8 * 11, moved_per_token=8 + 11,
                  exchange=Exchange(1, 4, 11, Fraction(44, 3)))  # fmt: skip

# Keys and values of two heads, 2 (3 + 4) numbers, made of each latent of 7. The rotary part is in
# the cache of 9. Then scores of 5 and values of 4 per head, 2 FLOPs each.
AS_WRITTEN = [
    DOWN,
    Q_UP,
    Operator("kv_up", depth=7, held=98, read=98, flop_per_context=2 * 7 * 14, cached_per_context=9,
             moved_per_context=14),
    Operator("attention", flop_per_pair=2 * 2 * (5 + 4), moved_per_token=2 * (5 + 4),
             moved_per_context=2 * (5 + 4)),
    OUTPUT,
]  # fmt: skip

# Two products per head: 3 x 7 takes the query to the latent, 7 x 4 takes the result out of it.
# Scores over 7 + 2 numbers, values over 7, and all heads read one cache of 9.
ABSORBED = [
    DOWN,
    Q_UP,
    Operator("kv_up", launches=2, depth=7, held=98, read=98, flop_per_token=2 * 2 * (3 * 7 + 7 * 4),
             moved_per_token=2 * (3 + 7 + 7 + 4)),
    Operator("attention", flop_per_pair=2 * 2 * (9 + 7), moved_per_token=2 * (9 + 7),
             cached_per_context=9),
    OUTPUT,
]  # fmt: skip

# The cache of a sequence over all three ranks: each gathers the queries of six heads, 54 numbers,
# 2/3 of them from elsewhere in two steps, and they add up 6 (7 + 1) numbers.
SPLIT_CACHE = [
    replace(DOWN, cached_per_token=3),
    Q_UP,
    replace(ABSORBED[2], exchange=Exchange(1, 2, 54, 36)),
    replace(ABSORBED[3], moved_per_token=6 * (9 + 7), cached_per_context=3,
            exchange=Exchange(1, 2, 48, 32)),
    OUTPUT,
]  # fmt: skip

# Prefill has all latents at hand and keeps a third.
SPLIT_CACHE_PREFILL = [replace(DOWN, cached_per_token=3), *AS_WRITTEN[1:]]

WITHOUT_QUERY_LATENT = [
    Operator("qkv_down", depth=11, quantised_per_token=11, held=99, read=99, vectors=7,
             flop_per_token=2 * 11 * 9,
             moved_per_token=11, cached_per_token=9),
    Operator("q_up", depth=11, quantised_per_token=11, passes=1, passed_per_token=12, held=110,
             read=110, flop_per_token=2 * 11 * 10, moved_per_token=11 + 10),
]  # fmt: skip


def attention_rows(attention, way, decode):
    rows = stages(model(attention), Parallelism(**way), decode=decode)[0]
    return [o for _, o in rows if o.part == "attention" and o.name != "elementwise"]


@pytest.mark.parametrize(
    ("way", "decode", "expected"),
    [
        (TP3, True, ABSORBED),
        (TP3, False, AS_WRITTEN),
        (TP3 | dict(absorb_latent=True), False, ABSORBED),
        (TP3 | dict(absorb_latent=False), True, AS_WRITTEN),
        (TP3 | dict(kv_parallel=3), True, SPLIT_CACHE),
        (TP3 | dict(kv_parallel=3), False, SPLIT_CACHE_PREFILL),
    ],
)
def test_every_operator_equals_the_hand_count(way, decode, expected):
    assert attention_rows(MLA, way, decode) == expected


@pytest.mark.parametrize(("decode", "rest"), [(True, ABSORBED[2:]), (False, AS_WRITTEN[2:])])
def test_every_operator_without_a_query_latent(decode, rest):
    attention = replace(MLA, query_rank=None)
    assert attention_rows(attention, TP3, decode) == WITHOUT_QUERY_LATENT + rest


def test_parameters_of_the_small_model():
    """Attention down, up to queries, up to keys and values, out, norms of latents; MLP 2 * 66."""
    attention = 154 + 3 * 50 + 3 * 98 + 3 * 88 + 12
    assert parameter_counts(model(MLA)).total == attention + 132 + 3 * 11 + 2 * 13 * 11
    # without a query latent: 5 columns and 5 norm parameters fewer, queries from 11 and not from 5
    without = model(replace(MLA, query_rank=None))
    assert parameter_counts(model(MLA)).total - parameter_counts(without).total == (
        11 * 5 + 5 - 6 * 6 * 5
    )


# --- as arrays ----------------------------------------------------------------------------------


def counted(phase, decode, **lengths):
    """Name -> column -> value of the hand-counted model on three ranks, one byte in the cache."""
    p = Parallelism(tp=3)
    served = make_workload(model(MLA), Precision("bf16", "fp8", "bf16", "bf16"), **lengths)
    counts = phase(served, p)
    names = operator_names(model(MLA), p, decode=decode)
    columns = ("tflop_bf16_per_seq", "tflop_attention_per_seq", "traffic_gb_per_seq", "weight_gb")
    values = {column: np.asarray(getattr(counts, column)) for column in columns}
    return {
        name: tuple(float(values[column][n]) for column in columns) for n, name in enumerate(names)
    }


def test_a_prompt_makes_keys_and_values_of_each_of_its_tokens():
    """S = 5: 196 FLOPs, 9 cached bytes and 14 numbers a token; 15 pairs of 36 FLOPs."""
    rows = counted(prefill_counts, False, prompt_tokens=5, output_tokens=4)
    assert rows["kv_up"] == pytest.approx(
        (5 * 196 / 1e12, 0, 5 * (9 + 2 * 14) / 1e9, 196 / 1e9), rel=1e-12
    )
    assert rows["attention"] == pytest.approx(
        (0, 15 * 36 / 1e12, 5 * 2 * (18 + 18) / 1e9, 0), rel=1e-12
    )
    assert rows["qkv_down"] == pytest.approx(
        (5 * 308 / 1e12, 0, 5 * (2 * 16 + 9) / 1e9, 2 * (154 + 12) / 1e9), rel=1e-12
    )


def test_a_decode_step_reads_the_latents_of_the_context_once_for_all_heads():
    """L = 5 + 4/2 = 7: 7 pairs of 64 FLOPs, 32 numbers moved and 7 * 9 cached bytes read."""
    rows = counted(decode_counts, True, prompt_tokens=5, output_tokens=4)
    assert rows["attention"] == pytest.approx(
        (0, 7 * 64 / 1e12, (2 * 32 + 7 * 9) / 1e9, 0), rel=1e-12
    )
    assert rows["kv_up"] == pytest.approx((196 / 1e12, 0, 2 * 42 / 1e9, 196 / 1e9), rel=1e-12)
