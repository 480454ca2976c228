"""Mixtures of experts: parameters, what a batch reads, and every operator counted by hand.

Many are of faults that users of other tools met; values follow from the arithmetic shown at each.
"""

import itertools
import json
import math
from dataclasses import replace
from fractions import Fraction
from functools import partial

import equinox as eqx
import numpy as np
import pytest

from litegpu_opt.errors import UserError
from litegpu_opt.execution.phase import moved_gb
from litegpu_opt.files import embedded
from litegpu_opt.numerics import scalar
from litegpu_opt.workload.collectives import Exchange
from litegpu_opt.workload.counts import ExpertCounts, decode_counts, operator_names, prefill_counts
from litegpu_opt.workload.formats import FORMATS
from litegpu_opt.workload.huggingface import read_transformer
from litegpu_opt.workload.memory import parameter_counts, weight_bytes_per_device
from litegpu_opt.workload.operators import Operator, Routing, stages
from litegpu_opt.workload.parallelism import Parallelism, check_parallelism
from litegpu_opt.workload.precision import Precision
from litegpu_opt.workload.traffic import make_workload
from litegpu_opt.workload.transformer import (
    DenseMlp,
    Experts,
    GroupedAttention,
    Layer,
    Transformer,
)


BF16 = Precision("bf16", "bf16", "bf16", "bf16")
ALONE = Parallelism()


def model(mlp, *, hidden=5, heads=2, layers=1, **fields):
    """A small transformer, every layer with the given MLP."""
    return Transformer(
        name="small",
        family="none",
        hidden=hidden,
        vocab=11,
        layers=(Layer(GroupedAttention(heads, 1, 3), mlp),) * layers,
        norm_parameters=hidden,
        tied_embeddings=False,
        **fields,
    )


MIXTRAL = replace(
    model(Experts(8, 2, 14_336), hidden=4096),
    vocab=32_000,
    layers=(Layer(GroupedAttention(32, 8, 128), Experts(8, 2, 14_336)),) * 32,
)


# --- parameters and capacity --------------------------------------------------------------------


def test_mixtral_holds_all_experts_and_computes_with_two():
    """46.7 B of capacity, 12.9 B of FLOPs, the untied head included."""
    for mixtral in (MIXTRAL, read_transformer("mixtral-8x7b")):
        counts = parameter_counts(mixtral)
        assert (counts.total, counts.active) == (46_702_792_704, 12_879_925_248)
        assert weight_bytes_per_device(mixtral, BF16, ALONE) == 2 * 46_702_792_704  # 93.41 GB


def test_deepseek_v3_has_dense_layers_first_shared_experts_and_a_prediction_layer_apart():
    """3 dense layers of 18432, 58 of 256 + 1 experts of 2048."""
    deepseek = read_transformer("deepseek-v3")
    mlps = [layer.mlp for layer in deepseek.layers]
    assert [mlp.width for mlp in mlps] == 3 * [18_432] + 58 * [2048]
    experts = mlps[-1]
    assert isinstance(experts, Experts)
    assert (experts.count, experts.per_token, experts.shared_width) == (256, 8, 2048)
    counts = parameter_counts(deepseek)
    assert (counts.total, counts.active) == (671_026_419_200, 37_552_297_472)
    # a layer of experts, a projection of two hidden states to one, three norms
    layer = (
        187_107_328  # attention: see test_latent.py
        + 2 * 7168  # its norms
        + 257 * 3 * 7168 * 2048
        + 256 * 7168 + 256  # router and the bias of its scores
    )  # fmt: skip
    assert counts.prediction == layer + 2 * 7168 * 7168 + 3 * 7168


@pytest.mark.parametrize("name", ["glm-4.5", "glm-4.5-air"])
def test_the_prediction_layer_of_glm_is_apart(name):
    """The hub's checkpoints hold it with two vocabulary matrices of its own: 358,337,791,296 and
    110,468,824,832 parameters.
    """
    glm = read_transformer(name)
    counts = parameter_counts(glm)
    whole = {"glm-4.5": 358_337_791_296, "glm-4.5-air": 110_468_824_832}[name]
    assert counts.total + counts.prediction + 2 * glm.vocab * glm.hidden == whole


def test_checkpoints_of_kimi_k2(tmp_path):
    """All tensors of the shards have 1,029,173,256,720 bytes with FP8 blocks, and 594,205,920,512
    with experts of four bits in groups of 32. They also hold halves of blocks, router corrections
    in four bytes, and shapes of packed matrices: 6e-8 and 1e-6 more.
    """
    checkpoint = Precision("checkpoint", "checkpoint", "bf16", "bf16")
    bytes_of = partial(weight_bytes_per_device, precision=checkpoint, parallelism=ALONE)
    assert bytes_of(read_transformer("kimi-k2")) == pytest.approx(1_029_173_256_720, rel=1e-7)
    fields = json.loads(embedded("models", "kimi-k2.json").read_text("utf-8"))
    weights = dict(num_bits=4, type="int", strategy="group", group_size=32, symmetric=True)
    fields["quantization_config"] = dict(
        quant_method="compressed-tensors",
        format="pack-quantized",
        config_groups=dict(group_0=dict(targets=["Linear"], weights=weights)),
        ignore=["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
                r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
    )  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    assert bytes_of(read_transformer(path)) == pytest.approx(594_205_920_512, rel=2e-6)


def test_gpt_oss_120b_in_its_own_format():
    """Experts at 4.25 bits, the rest in bf16: 65,248,815,744 bytes as hf-mem counts."""
    oss = read_transformer("gpt-oss-120b")
    counts = parameter_counts(oss)
    assert (counts.total, counts.active) == (116_829_156_672, 5_711_982_912)
    experts = 36 * 128 * 3 * 2880**2
    assert experts == 114_661_785_600
    assert counts.total - experts == 2_167_371_072
    checkpoint = Precision("checkpoint", "checkpoint", "bf16", "bf16")
    assert dict(oss.quantized) == {"experts": FORMATS["mxfp4"]}
    assert weight_bytes_per_device(oss, checkpoint, ALONE) == 60_914_073_600 + 4_334_742_144


def test_scales_of_blocks_are_bits_too():
    """MXFP4 4 + 8/32, NVFP4 4 + 8/16; a scale of 32 bits for 128 x 128 in FP8."""
    assert FORMATS["mxfp4"].bits == Fraction(17, 4)
    assert FORMATS["nvfp4"].bits == Fraction(9, 2)
    assert FORMATS["fp8-block128"].bits == 8 + Fraction(32, 128 * 128)
    experts = model(Experts(4, 1, 32), hidden=32)
    total = 4 * 3 * 32 * 32
    for name, sixteenths in (("mxfp4", Fraction(17, 4)), ("nvfp4", Fraction(9, 2))):
        part = replace(experts, quantized=(("experts", FORMATS[name]),))
        stored = Precision("checkpoint", "bf16", "bf16", "bf16")
        saved = weight_bytes_per_device(experts, stored, ALONE) - weight_bytes_per_device(
            part, stored, ALONE
        )
        assert saved == total * (16 - sixteenths) / 8


# --- experts that a batch reads -----------------------------------------------------------------


def touched(count, per_token, tokens):
    """Of a model with these experts, in one decode step of `tokens` sequences."""
    served = make_workload(
        model(Experts(count, per_token, 1)), BF16, prompt_tokens=10, output_tokens=2
    )
    experts = decode_counts(served, ALONE).experts
    assert experts is not None
    return max(float(n) for n in experts.touched(scalar(tokens)))


@pytest.mark.parametrize(
    ("count", "per_token", "batch", "expected", "digit"),
    [
        (8, 2, 3, 4.625, 1e-12),  # Mixtral
        (256, 8, 32, 163.3, 0.05),  # DeepSeek-V3: measured 164
        (256, 8, 64, 222.4, 0.05),  # measured 226
        (128, 8, 32, 111.8, 0.05),  # Qwen3-235B: measured 115
    ],
)
def test_distinct_experts_that_a_decode_step_reads(count, per_token, batch, expected, digit):
    """E (1 - (1 - k/E)^B), not min(E, B k) nor E."""
    assert touched(count, per_token, batch) == pytest.approx(expected, abs=digit)


@pytest.mark.parametrize(("count", "per_token"), [(8, 2), (256, 8), (128, 4), (7, 7), (5, 1)])
def test_one_token_reads_its_own_experts_and_many_read_all(count, per_token):
    """B = 1 gives k, B -> infinity gives E."""
    assert touched(count, per_token, 1) == pytest.approx(per_token, rel=1e-12)
    assert touched(count, per_token, 1e6) == pytest.approx(count, rel=1e-12)
    between = [touched(count, per_token, batch) for batch in (1, 1.5, 2, 10, 100)]
    assert between == sorted(between)


def test_a_prompt_reads_experts_for_each_of_its_tokens():
    served = make_workload(model(Experts(8, 2, 1)), BF16, prompt_tokens=3, output_tokens=2)
    experts = prefill_counts(served, ALONE).experts
    assert experts is not None
    assert max(map(float, experts.touched(scalar(1)))) == pytest.approx(4.625, rel=1e-12)
    # two prompts of three tokens: 8 (1 - (3/4)^6)
    assert max(map(float, experts.touched(scalar(2)))) == pytest.approx(
        8 * (1 - 729 / 4096), rel=1e-12
    )


@pytest.mark.parametrize(
    ("way", "held", "tokens"),
    [
        # 12 sequences; every replica of four holds all experts and has three sequences
        (dict(dp=4), 6, 3),
        # the tokens of all replicas meet in the experts
        (dict(dp=3, ep=3), 2, 12),
        (dict(tp=2, dp=3, ep=6), 1, 12),
        (dict(tp=2, dp=3, ep=3), 2, 12),
        # inside one replica
        (dict(tp=2, ep=2), 3, 12),
    ],
)
def test_tokens_of_all_replicas_meet_in_spread_experts(way, held, tokens):
    """Under parallelism: E/ep (1 - (1 - k/E)^n), n the tokens that the experts see."""
    served = make_workload(model(Experts(6, 2, 8)), BF16, prompt_tokens=10, output_tokens=2)
    experts = decode_counts(served, Parallelism(**way)).experts
    assert experts is not None
    assert max(map(float, experts.touched(scalar(12)))) == pytest.approx(
        held * (1 - (4 / 6) ** tokens), rel=1e-12
    )


def test_a_model_without_experts_has_no_such_counts():
    served = make_workload(model(DenseMlp(6, gated=True)), BF16, prompt_tokens=10, output_tokens=2)
    assert decode_counts(served, ALONE).experts is None


def test_mixtral_reads_its_active_parameters_at_batch_one():
    """25,497,706,496 bytes, 7.61 ms at 3.35 TB/s, 131 tokens/s."""
    served = make_workload(MIXTRAL, BF16, prompt_tokens=10, output_tokens=2)
    counts = decode_counts(served, ALONE)
    bare = weights_alone(counts)
    read_gb = float(np.sum(np.asarray(counts.repeats * moved_gb(bare, scalar(1)))))
    assert 1e9 * read_gb == pytest.approx(2 * (12_879_925_248 - 131_072_000), rel=1e-12)
    assert read_gb / 3.35 == pytest.approx(7.61, abs=5e-3)
    assert 1e3 / (read_gb / 3.35) == pytest.approx(131, abs=0.5)


def weights_alone(counts):
    """No activations and no cache."""
    return eqx.tree_at(lambda c: c.traffic_gb_per_seq, counts, 0.0 * counts.traffic_gb_per_seq)


# --- every operator by hand ---------------------------------------------------------------------

# h = 5, six experts of width 6 (gated, biases), two a token, a shared MLP of width 4 with a gate.
MIXTURE = Experts(
    6, 2, 6, bias=True, router_bias=True, shared_width=4, shared_gate=True
)  # fmt: skip

# name, part, held = read, vectors, FLOPs per token, moved per token; depth of the sums, inputs that
# 8-bit matrices need quantised; the activation as a pass of its own reads 2 f and writes f
ON_ONE_DEVICE = [
    Operator("router", "router", depth=5, held=30, read=30, vectors=6 + 5,
             flop_per_token=60 + 10, moved_per_token=5 + 6),
    Operator("expert_up", "experts",
             depth=5, quantised_per_token=5, passes=1, passed_per_token=2 * 3 * 6, held=60,
             read=60, vectors=12, routing=Routing(6, 6, 2, 1),
             flop_per_token=2 * 120, moved_per_token=2 * (5 + 6)),
    Operator("expert_down", "experts",
             depth=6, quantised_per_token=2 * 6, held=30, read=30, vectors=5, routing=Routing(6,
             6, 2, 1),
             flop_per_token=2 * 60, moved_per_token=2 * (6 + 5)),
    Operator("shared_up", "mlp",
             depth=5, quantised_per_token=5, passes=1, passed_per_token=3 * 4, held=40, read=40,
             flop_per_token=80, moved_per_token=5 + 4),
    Operator("shared_down", "mlp",
             depth=4, quantised_per_token=4, held=20, read=20, flop_per_token=40,
             moved_per_token=4 + 5),
    # two results and that of the shared MLP are read, their sum is written
    Operator("combine", "experts", moved_per_token=4 * 5),
]  # fmt: skip

# Every expert and the shared MLP split over two ranks, one sum at the end: a ring of two sends
# 2 * 1/2 of five numbers in two steps.
SPLIT = [
    ON_ONE_DEVICE[0],
    Operator("expert_up", "experts",
             depth=5, quantised_per_token=5, passes=1, passed_per_token=2 * 3 * 3, held=30,
             read=30, vectors=6, routing=Routing(6, 6, 2, 1),
             flop_per_token=2 * 60, moved_per_token=2 * (5 + 3)),
    Operator("expert_down", "experts",
             depth=3, quantised_per_token=2 * 3, held=15, read=15, vectors=5, routing=Routing(6,
             6, 2, 1),
             flop_per_token=2 * 30, moved_per_token=2 * (3 + 5)),
    Operator("shared_up", "mlp",
             depth=5, quantised_per_token=5, passes=1, passed_per_token=3 * 2, held=20, read=20,
             flop_per_token=40, moved_per_token=5 + 2),
    Operator("shared_down", "mlp",
             depth=2, quantised_per_token=2, held=10, read=10, flop_per_token=20,
             moved_per_token=2 + 5),
    Operator("combine", "experts", moved_per_token=4 * 5, exchange=Exchange(1, 2, 5, 5)),
]  # fmt: skip

# Six ranks (tp = 2, dp = 3) with one whole expert each. Per token of one replica: the three
# replicas have 3 * 2 visits, one to each expert. A rank has half a replica's tokens: half the
# router's work. It sends them to the ranks of two experts, which are always two:
# 1/2 * 2 * 5 = 5 numbers, of which 5/6 leave it, in a ring of five steps. The shared MLP is whole
# on every rank, for half the tokens; two results of five numbers, the shared one and their sum. Two
# ranks then exchange their halves.
TO_EACH_RANK = Exchange(1, 5, 5, Fraction(25, 6))
OWN_ROUTER = replace(ON_ONE_DEVICE[0], flop_per_token=35, moved_per_token=Fraction(11, 2))
ONE_EACH = [
    replace(OWN_ROUTER, exchange=TO_EACH_RANK),
    Operator("expert_up", "experts",
             depth=5, quantised_per_token=5, passes=1, passed_per_token=3 * 6, held=60, read=60,
             vectors=12, routing=Routing(1, 6, 2, 3),
             flop_per_token=120, moved_per_token=5 + 6),
    Operator("expert_down", "experts",
             depth=6, quantised_per_token=6, held=30, read=30, vectors=5, routing=Routing(1, 6, 2,
             3),
             flop_per_token=60, moved_per_token=6 + 5, exchange=TO_EACH_RANK),
    Operator("shared_up", "mlp",
             depth=5, quantised_per_token=Fraction(5, 2), passes=1, passed_per_token=6, held=40,
             read=40, flop_per_token=40,
             moved_per_token=Fraction(9, 2)),
    Operator("shared_down", "mlp",
             depth=4, quantised_per_token=2, held=20, read=20, flop_per_token=20,
             moved_per_token=Fraction(9, 2)),
    Operator("combine", "experts", moved_per_token=Fraction(20, 2),
             exchange=Exchange(1, 1, 5, Fraction(5, 2))),
]  # fmt: skip

# Four ranks (tp = 2, dp = 2), three experts on each pair, split in halves. Two replicas have
# 2 * 2 visits, two to each pair. Of the 15 pairs of experts, 3 + 3 are on one pair of ranks and 9
# on both: a token goes to 2 (6 + 2 * 9)/15 = 16/5 ranks. A rank sends half a replica's tokens:
# 1/2 * 16/5 * 5 = 8 numbers for four ranks, of which it is one: 6 leave it, in a ring of three
# steps.
TO_EACH_PAIR = Exchange(1, 3, 8, 6)
THREE_EACH_PAIR = [
    replace(OWN_ROUTER, exchange=TO_EACH_PAIR),
    Operator("expert_up", "experts",
             depth=5, quantised_per_token=8, passes=1, passed_per_token=2 * 3 * 3, held=30,
             read=30, vectors=6, routing=Routing(3, 6, 2, 2),
             flop_per_token=2 * 60, moved_per_token=2 * (5 + 3)),
    Operator("expert_down", "experts",
             depth=3, quantised_per_token=2 * 3, held=15, read=15, vectors=5, routing=Routing(3,
             6, 2, 2),
             flop_per_token=2 * 30, moved_per_token=2 * (3 + 5), exchange=TO_EACH_PAIR),
    *ONE_EACH[3:5],
    # results from 16/5 ranks, the shared one and their sum, for half the tokens
    Operator("combine", "experts", moved_per_token=Fraction(1, 2) * (Fraction(16, 5) + 2) * 5,
             exchange=Exchange(1, 1, 5, Fraction(5, 2))),
]  # fmt: skip


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (dict(), ON_ONE_DEVICE),
        (dict(dp=3), ON_ONE_DEVICE),
        (dict(tp=2), SPLIT),
        (dict(tp=2, dp=3, ep=6), ONE_EACH),
        (dict(tp=2, dp=2, ep=2), THREE_EACH_PAIR),
    ],
)
def test_every_operator_equals_the_hand_count(way, expected, decode):
    rows = stages(model(MIXTURE), Parallelism(**way), decode=decode)[0]
    names = [operator.name for operator in expected]
    found = [operator for repeats, operator in rows if operator.name in names and repeats == 1]
    assert found == expected


@pytest.mark.parametrize(
    ("count", "per_token", "way"),
    [
        (6, 2, dict(dp=6, ep=6)),
        (6, 2, dict(dp=3, ep=3)),
        (6, 2, dict(tp=2, ep=2)),
        (6, 2, dict(tp=2, dp=3, ep=3)),
        (6, 4, dict(dp=2, ep=2)),
        (8, 3, dict(tp=2, dp=4, ep=4)),
        (8, 8, dict(dp=4, ep=4)),
        (12, 5, dict(tp=2, dp=2, ep=4)),
    ],
)
def test_a_token_is_sent_once_to_each_rank_of_its_experts(count, per_token, way):
    """Every choice of experts, one by one; experts follow each other over the ranks. Dispatch and
    combine carry five numbers for each of the ranks.
    """
    p = Parallelism(**way)
    choices = list(itertools.combinations(range(count), per_token))
    groups = sum(len({expert // (count // p.ep) for expert in chosen}) for chosen in choices)
    ranks = Fraction(groups, len(choices)) * p.ranks / p.ep
    size = ranks * 5 / p.tp
    rows = stages(model(Experts(count, per_token, 6)), p, decode=True)[0]
    found = {operator.name: operator for _, operator in rows}
    expected = Exchange(1, p.ranks - 1, size, size * Fraction(p.ranks - 1, p.ranks))
    assert found["router"].exchange == found["expert_down"].exchange == expected


def test_a_token_of_deepseek_v3_meets_seven_ranks_of_32():
    """Eight experts of 256, eight on each rank: 32 (1 - 248/256 * 247/255 * ... * 241/249)."""
    deepseek = read_transformer("deepseek-v3")
    found = dict(
        (o.name, o) for _, o in stages(deepseek, Parallelism(dp=32, ep=32), decode=True)[0]
    )
    missed = math.prod(Fraction(248 - n, 256 - n) for n in range(8))
    ranks = 32 * (1 - missed)
    assert 7.2 < ranks < 7.3
    for name in ("router", "expert_down"):
        assert found[name].exchange.message == ranks * 7168
        assert found[name].exchange.wire == ranks * 7168 * Fraction(31, 32)


# Five numbers a token: a ring of two sends 2 * 1/2 of them in two steps to add them up everywhere,
# half of them in one step if every rank keeps a half. The switch gets all of them.
@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (dict(), Exchange()),
        (dict(tp=2), Exchange(1, 2, 5, 5)),
        (dict(tp=2, dp=3), Exchange(1, 2, 5, 5)),
        (dict(tp=2, ep=2), Exchange(1, 1, 5, Fraction(5, 2))),
        (dict(tp=2, dp=3, ep=6), Exchange(1, 1, 5, Fraction(5, 2))),
        (dict(tp=2, ep=2, collective="in-network"), Exchange(1, 1, 5, 5)),
        (dict(dp=3, ep=3), Exchange()),
    ],
)
@pytest.mark.parametrize("decode", [False, True])
def test_attention_before_spread_experts_leaves_each_rank_its_tokens(way, expected, decode):
    rows = stages(model(MIXTURE), Parallelism(**way), decode=decode)[0]
    assert [o.exchange for _, o in rows if o.name == "output"] == [expected]


@pytest.mark.parametrize(
    ("way", "rows"),
    [
        (dict(), 4 + 4 + 2 + 2),
        (dict(tp=2), 4 + 4 + 2 + 2),
        (dict(dp=3, ep=3), 4 + 4 + 2 + 2),
        # the norm before attention for all tokens, the three others for half of them
        (dict(tp=2, ep=2), 4 + (4 + 2 + 2) / 2),
        (dict(tp=2, dp=3, ep=6), 4 + (4 + 2 + 2) / 2),
    ],
)
def test_norms_after_attention_are_for_the_tokens_of_the_rank(way, rows):
    """Four norms of five parameters, each on every rank. The two that follow a sum read and write
    five numbers and the residual, the two after attention and after the MLP five numbers.
    """
    one = model(MIXTURE)
    four = replace(one, layers=tuple(replace(layer, norms=4) for layer in one.layers))
    found = {o.name: o for _, o in stages(four, Parallelism(**way), decode=True)[0]}["elementwise"]
    assert (found.launches, found.vectors) == (4, 4 * 5)
    assert found.moved_per_token == rows * 5


def test_attention_before_a_dense_mlp_is_summed_on_every_rank():
    """Also where the experts of another layer are spread."""
    one = model(MIXTURE)
    dense = replace(one.layers[0], mlp=DenseMlp(6, gated=True))
    both = replace(one, layers=(dense, *one.layers))
    rows = stages(both, Parallelism(tp=2, ep=2), decode=True)[0]
    found = [(n, o.exchange) for n, o in rows if o.name == "output"]
    assert found == [(1, Exchange(1, 2, 5, 5)), (1, Exchange(1, 1, 5, Fraction(5, 2)))]


def test_plain_experts_without_extras():
    """Two matrices an expert: 5 * 6 up, 6 * 5 down; no bias, no shared MLP."""
    rows = stages(model(Experts(6, 2, 6, gated=False)), ALONE, decode=True)[0]
    found = {operator.name: operator for _, operator in rows}
    assert "shared_up" not in found
    assert (found["expert_up"].held, found["expert_up"].vectors) == (30, 0)
    assert found["expert_up"].flop_per_token == 2 * 60
    assert (found["router"].vectors, found["router"].flop_per_token) == (0, 60)


def test_total_and_active_of_the_small_mixture():
    """Router 30, experts 6 of 60 + 30, biases 6 (12 + 5) + 6, shared 60, its gate 5."""
    attention = 5 * (2 + 2) * 3 + 6 * 5
    vocabulary, norms = 2 * 11 * 5, 3 * 5
    rest = attention + vocabulary + norms + 30 + 6 + 60 + 5
    counts = parameter_counts(model(MIXTURE))
    assert counts.total == rest + 6 * (90 + 17)
    assert counts.active == rest + 2 * (90 + 17)


@pytest.mark.parametrize(
    ("way", "experts"),
    [
        # bytes of the experts on a device: two each of 60 + 30 parameters and 12 + 5 biases
        (dict(), 2 * 6 * (90 + 17)),
        (dict(dp=3), 2 * 6 * (90 + 17)),
        # biases of the output are on both ranks
        (dict(tp=2), 2 * 6 * (45 + 6 + 5)),
        (dict(tp=2, dp=3, ep=6), 2 * 1 * (90 + 17)),
        (dict(tp=2, dp=3, ep=3), 2 * 2 * (45 + 6 + 5)),
        (dict(tp=2, dp=2, ep=2), 2 * 3 * (45 + 6 + 5)),
    ],
)
def test_resident_bytes_of_experts(way, experts):
    p = Parallelism(**way)
    mixture = model(MIXTURE)
    rows = stages(mixture, p, decode=True)[0]
    rest = sum(2 * n * (o.held + o.vectors) for n, o in rows if o.routing is None)
    assert weight_bytes_per_device(mixture, BF16, p) == rest + experts


# --- as arrays ----------------------------------------------------------------------------------


def test_hand_counts_meet_formats_and_lengths():
    """Prompts of 4 tokens, four bits and a quarter a parameter of the experts, tp = 2, dp = 3,
    ep = 6: a sequence of the group is a third of one in each replica.
    """
    mixture = replace(model(MIXTURE), quantized=(("experts", FORMATS["mxfp4"]),))
    precision = Precision("checkpoint", "bf16", "bf16", "fp8")
    served = make_workload(mixture, precision, prompt_tokens=4, output_tokens=2)
    p = Parallelism(tp=2, dp=3, ep=6)
    counts = prefill_counts(served, p)
    names = operator_names(mixture, p, decode=False)

    def row(name, column):
        return float(np.asarray(column)[names.index(name)])

    assert isinstance(counts.experts, ExpertCounts)
    assert row("expert_up", counts.experts.gb) * 1e9 == pytest.approx(
        60 * 17 / 32 + 12 * 2, rel=1e-12
    )
    assert row("expert_up", counts.experts.held) == 1
    assert row("expert_up", counts.weight_gb) == row("combine", counts.weight_gb) == 0
    assert row("router", counts.experts.gb) == row("router", counts.experts.held) == 0
    assert row("router", counts.weight_gb) * 1e9 == pytest.approx(2 * (30 + 11), rel=1e-12)
    assert row("shared_up", counts.weight_gb) * 1e9 == pytest.approx(2 * 40, rel=1e-12)
    flop = 4 / 3 * 120
    assert row("expert_up", counts.tflop_bf16_per_seq) * 1e12 == pytest.approx(flop, rel=1e-12)
    traffic = 4 / 3 * 2 * 11
    assert row("expert_up", counts.traffic_gb_per_seq) * 1e9 == pytest.approx(traffic, rel=1e-12)
    sent = 4 / 3 * 25 / 6  # one byte each on the wire
    for name in ("router", "expert_down"):
        assert row(name, counts.wire_gb_per_seq) * 1e9 == pytest.approx(sent, rel=1e-12)
        assert row(name, counts.message_mb_per_seq) * 1e6 == pytest.approx(4 / 3 * 5, rel=1e-12)
        assert row(name, counts.steps) == 5


# --- what cannot be spread ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mlp", "way", "message"),
    [
        (MIXTURE, dict(tp=2, ep=4), "x.ep: .* does not divide the tp dp = 2 ranks of a stage"),
        (MIXTURE, dict(dp=4, ep=4), "x.ep: .* does not divide the 6 experts.*; allowed: 1, 2$"),
        (MIXTURE, dict(dp=12, ep=3), "x.ep: .* leaves 4 ranks for an expert.*: 1, 2, 6$"),
        (MIXTURE, dict(tp=2, dp=5, ep=2), "x.ep: .* leaves 5 ranks for an expert"),
        (DenseMlp(6, gated=True), dict(dp=2, ep=2), "x.ep: .* is for experts.*; allowed: 1$"),
        (Experts(6, 2, 7), dict(tp=2), "x.tp: .* does not divide the feed-forward width 7"),
        (replace(MIXTURE, shared_width=5), dict(tp=2), "x.tp: .* feed-forward width 5"),
    ],
)
def test_an_impossible_spread_is_refused_with_the_reason(mlp, way, message):
    with pytest.raises(UserError, match=message):
        check_parallelism(model(mlp), Parallelism(**way), "x.{}")


def test_spread_experts_need_not_divide_by_tensor_parallelism():
    """Whole experts on each rank: their width 7 is not split, nor is the shared one."""
    mlp = replace(MIXTURE, width=7, shared_width=5)
    check_parallelism(model(mlp), Parallelism(tp=2, ep=2))
