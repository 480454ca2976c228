"""What holds for every kind of model and every way of parallelism."""

import dataclasses
import functools
import itertools
import math
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from litegpu_opt.catalog import load_accelerator
from litegpu_opt.errors import UserError
from litegpu_opt.execution.roofline import HardRoof, SoftRoof
from litegpu_opt.numerics import scalar, stack_padded
from litegpu_opt.serving import serve
from litegpu_opt.workload.collectives import (
    ALGORITHMS,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
)
from litegpu_opt.workload.counts import decode_counts, operator_names, prefill_counts
from litegpu_opt.workload.formats import FORMATS, PARTS
from litegpu_opt.workload.memory import (
    kv_bytes_per_sequence,
    kv_bytes_per_token,
    parameter_counts,
    weight_bytes_per_device,
)
from litegpu_opt.workload.operators import stages
from litegpu_opt.workload.parallelism import (
    Parallelism,
    check_parallelism,
    tensor_parallel_degrees,
)
from litegpu_opt.workload.pool import build_pools, decode_pool
from litegpu_opt.workload.precision import Precision, allowed_formats
from litegpu_opt.workload.traffic import Traffic, Workload, make_workload
from litegpu_opt.workload.transformer import (
    DenseMlp,
    Experts,
    GroupedAttention,
    LatentAttention,
    Layer,
    Transformer,
)


few = settings(max_examples=25, deadline=None)
many = settings(max_examples=100, deadline=None)
"""Exact whole numbers, no JAX."""

SMALL = Transformer(
    name="small",
    family="llama",
    hidden=64,
    vocab=100,
    layers=(Layer(GroupedAttention(4, 2, 16), DenseMlp(128, True)),) * 2,
    norm_parameters=64,
    tied_embeddings=False,
)
BF16 = Precision("bf16", "bf16", "bf16", "bf16")

precisions = st.builds(
    Precision,
    **{
        what: st.sampled_from(allowed_formats(what))
        for what in ("weights", "kv", "activations", "wire")
    },
)

PREFILL, DECODE = False, True
"""Values of `decode` in the functions of operators."""


KINDS_OF_STAGE, LONGEST = 3, 120
"""More than the models drawn here have: programs are compiled for this many."""


# --- random models and ways to run them -----------------------------------------------------------


@st.composite
def grouped_attentions(draw, heads, kv_heads):
    return GroupedAttention(
        heads,
        kv_heads,
        head_dim=draw(st.sampled_from([64, 80, 128, 256])),
        window=draw(st.sampled_from([None, 1, 128, 4096])),
        input_bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        head_norms=draw(st.booleans()),
        sinks=draw(st.booleans()),
    )


@st.composite
def latent_attentions(draw, heads):
    return LatentAttention(
        heads,
        query_rank=draw(st.sampled_from([None, 96, 1536])),
        kv_rank=draw(st.sampled_from([64, 512])),
        nope_dim=draw(st.sampled_from([64, 128])),
        rope_dim=draw(st.sampled_from([32, 64])),
        value_dim=draw(st.sampled_from([64, 128])),
    )


@st.composite
def dense_mlps(draw, heads):
    width = heads * draw(st.integers(1, 2000))
    return DenseMlp(width, gated=draw(st.booleans()), bias=draw(st.booleans()))


@st.composite
def experts_mlps(draw, heads):
    count = draw(st.sampled_from([4, 6, 8, 60, 128]))
    shared_width = heads * draw(st.sampled_from([0, 1, 32]))
    return Experts(
        count,
        per_token=draw(st.integers(1, count)),
        width=12 * heads * draw(st.integers(1, 50)),
        gated=draw(st.booleans()),
        bias=draw(st.booleans()),
        router_bias=draw(st.booleans()),
        shared_width=shared_width,
        shared_gate=shared_width > 0 and draw(st.booleans()),
    )


ATTENTIONS, MLPS = ("grouped", "latent"), ("dense", "experts")


@st.composite
def transformers(draw, attentions=ATTENTIONS, mlps=MLPS):
    """Up to three kinds of layer in any order; query heads are the same in all."""
    kv_heads = draw(st.sampled_from([1, 2, 3, 4, 8]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 4, 8]))
    attention = st.one_of(
        *([grouped_attentions(heads, kv_heads)] if "grouped" in attentions else []),
        *([latent_attentions(heads)] if "latent" in attentions else []),
    )
    mlp = st.one_of(
        *([dense_mlps(heads)] if "dense" in mlps else []),
        *([experts_mlps(heads)] if "experts" in mlps else []),
    )
    layer = st.builds(Layer, attention, mlp, norms=st.sampled_from([1, 2, 4]),
                      parallel=st.booleans())  # fmt: skip
    kinds = draw(st.lists(layer, min_size=1, max_size=3))
    order = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=9))
    hidden = draw(st.integers(1, 200)) * 64
    part = st.sampled_from(PARTS)
    return Transformer(
        name="drawn",
        family="none",
        hidden=hidden,
        vocab=draw(st.integers(1, 300_000)),
        layers=tuple(kinds[number] for number in order),
        norm_parameters=hidden * draw(st.sampled_from([1, 2])),
        tied_embeddings=draw(st.booleans()),
        position_rows=draw(st.sampled_from([0, 2048])),
        embedding_norm=draw(st.booleans()),
        quantized=tuple(
            draw(st.dictionaries(part, st.sampled_from(list(FORMATS.values())))).items()
        ),
        kv_format=draw(st.sampled_from([None, FORMATS["fp8"]])),
    )


def divisors(number):
    return [n for n in range(1, number + 1) if number % n == 0]


def kv_heads_held(a, tp):
    """Key/value heads that the query heads of the fullest rank need."""
    group, on_rank = a.heads // a.kv_heads, a.heads // tp
    ranks = [range(first, first + on_rank) for first in range(0, a.heads, on_rank)]
    return max(len({head // group for head in heads}) for heads in ranks)


def kv_copies(model, tp):
    """Ranks of which any divisor can share a cache in every layer."""
    common = 0
    for layer in model.layers:
        match layer.attention:
            case GroupedAttention(kv_heads=k):
                common = math.gcd(common, tp // k if tp % k == 0 else 1)
            case LatentAttention():
                common = math.gcd(common, tp)
    return common


@st.composite
def parallelisms(draw, model, stages=3, microbatches=3):
    """A way that the model allows."""
    tp = draw(st.sampled_from(divisors(model.heads)))
    dp = draw(st.sampled_from([1, 2, 3, 4]))
    ep = 1
    if model.has_experts and draw(st.booleans()):
        counts = math.gcd(*(mlp.count for mlp in mlps_of(model, Experts)))
        ep = draw(st.sampled_from([n for n in divisors(tp * dp) if counts % n == 0]))
    shared_by = draw(st.sampled_from(divisors(kv_copies(model, tp))))
    absorb: list[bool | None] = [None]
    if has_latents(model):
        # keys and values that are made of latents are not split over ranks
        absorb += [True] if shared_by > 1 else [True, False]
    return Parallelism(
        tp=tp,
        dp=dp,
        pp=draw(st.integers(1, min(stages, len(model.layers)))),
        ep=ep,
        kv_parallel=shared_by,
        microbatches=draw(st.integers(1, microbatches)),
        collective=draw(st.sampled_from(ALGORITHMS)),
        absorb_latent=draw(st.sampled_from(absorb)),
    )


def has_latents(model):
    return any(isinstance(layer.attention, LatentAttention) for layer in model.layers)


def mlps_of(model, kind):
    return [layer.mlp for layer in model.layers if isinstance(layer.mlp, kind)]


@st.composite
def cases(draw, models=None, **limits):
    """A workload and a way of parallelism that its model allows."""
    model = draw(transformers() if models is None else models)
    served = make_workload(
        model,
        draw(precisions),
        prompt_tokens=draw(st.floats(1, 1e6)),
        output_tokens=draw(st.floats(1, 1e5)),
    )
    return served, draw(parallelisms(model, **limits))


@st.composite
def one_stage(draw, models=None):
    return draw(cases(models, stages=1, microbatches=1))


def with_model(served, model):
    return Workload(model, served.traffic, served.slo, served.precision, served.pools)


def with_lengths(served, prompt, output):
    lengths = Traffic(prompt, output)
    return Workload(served.transformer, lengths, served.slo, served.precision, served.pools)


def counts_of(served, p, *, decode):
    return decode_counts(served, p) if decode else prefill_counts(served, p)


def totals(served, p, *, decode, field=None):
    """Operator name -> a field over all its executions on the average device of a group; FLOPs of
    matrices without a field.
    """
    counts = counts_of(served, p, decode=decode)
    if field is None:
        column = counts.tflop_bf16_per_seq + counts.tflop_fp8_per_seq
    else:
        column = getattr(counts, field)
    sums: Counter[str] = Counter()
    names = operator_names(served.transformer, p, decode=decode)
    runs = counts.device_share * counts.repeats
    for name, value in zip(names, np.asarray(runs * column), strict=True):
        sums[name.removeprefix("window_")] += float(value)
    return dict(sums)


def same(found, expected, rel=1e-12):
    assert found == pytest.approx(expected, rel=rel, abs=1e-300)


@few
@given(cases())
def test_what_is_drawn_is_allowed(case):
    served, p = case
    check_parallelism(served.transformer, p)
    assert tensor_parallel_degrees(served.transformer, 1000) == tuple(
        divisors(served.transformer.heads)
    )


# --- (a) weights ----------------------------------------------------------------------------------


def parts_of(model, p):
    """(parameters of a part of the model, format or vector, devices of a stage that hold it).

    With dp replicas of tp ranks: what tp splits is held dp times, what it does not tp dp times.
    With expert parallelism the ranks of all replicas hold the experts once.
    """
    h, norm = model.hidden, model.norm_parameters
    once, split, everywhere = 1, p.dp, p.tp * p.dp
    rows = p.tp * math.ceil(model.vocab / p.tp)
    parts = [
        (rows * h, "embedding", split),
        (model.position_rows * h, "embedding", everywhere),
        (model.embedding_norm * norm, "vector", everywhere),
        (norm, "vector", everywhere),
    ]
    if not model.tied_embeddings or p.pp > 1:
        # a tied head far from the embedding is a copy of its own
        parts.append((rows * h, "head", split))
    for layer in model.layers:
        parts.append((layer.norms * norm, "vector", everywhere))
        match layer.attention:
            case GroupedAttention(q, _, e) as a:
                columns = (q + 2 * p.tp * kv_heads_held(a, p.tp)) * e
                parts += [
                    (h * columns, "attention", split),
                    (a.input_bias * columns, "vector", split),
                    (q * e * h, "attention", split),
                    (a.output_bias * h, "vector", everywhere),
                    (a.head_norms * 2 * e, "vector", everywhere),
                    (a.sinks * q, "vector", split),
                ]
            case LatentAttention(q, query_rank, r, nope, rope, value):
                rank = query_rank or 0
                parts += [
                    (h * (rank + r + rope), "attention", everywhere),
                    (rank + r, "vector", everywhere),
                    ((rank or h) * q * (nope + rope), "attention", split),
                    (r * q * (nope + value), "attention", split),
                    (q * value * h, "attention", split),
                ]
        match layer.mlp:
            case DenseMlp(f) as mlp:
                m = 2 if mlp.gated else 1
                parts += [
                    ((m + 1) * h * f, "mlp", split),
                    (mlp.bias * m * f, "vector", split),
                    (mlp.bias * h, "vector", everywhere),
                ]
            case Experts() as mlp:
                count, f, m = mlp.count, mlp.width, 2 if mlp.gated else 1
                spread = p.ep > 1
                matrices = once if spread else split
                parts += [
                    (h * count, "router", everywhere),
                    (mlp.router_bias * count + mlp.shared_gate * h, "vector", everywhere),
                    (count * (m + 1) * h * f, "experts", matrices),
                    (mlp.bias * count * m * f, "vector", matrices),
                    # the bias of a sum is on every rank that has a share of it
                    (mlp.bias * count * h, "vector", everywhere // p.ep if spread else everywhere),
                    ((m + 1) * h * mlp.shared_width, "mlp", everywhere if spread else split),
                ]
    return parts


def bytes_of(part, precision, model):
    activations = FORMATS[precision.activations].bits / 8
    if part == "vector":
        return activations
    if precision.weights == "checkpoint":
        stored = dict(model.quantized).get(part)
        return activations if stored is None else stored.bits / 8
    in_blocks = part in ("attention", "mlp", "experts")
    return FORMATS[precision.weights].bits / 8 if in_blocks else activations


def group_bytes(served, p):
    """Held by all devices of a group, by the list of parts."""
    model = served.transformer
    return sum(
        size * bytes_of(part, served.precision, model) * copies
        for size, part, copies in parts_of(model, p)
    )


def held_bytes(served, stage):
    """Held by one device of a stage, operator by operator."""
    model, total = served.transformer, Fraction(0)
    for repeats, o in stage:
        one = o.held * bytes_of(o.part, served.precision, model)
        one += o.vectors * bytes_of("vector", served.precision, model)
        total += repeats * one * (o.routing.held if o.routing else 1)
    return total


@many
@given(one_stage())
def test_weights_over_all_devices_exceed_the_model_by_what_is_replicated(case):
    served, p = case
    on_each = Fraction(group_bytes(served, p)) / p.devices
    assert weight_bytes_per_device(served.transformer, served.precision, p) == math.ceil(on_each)


@many
@given(one_stage())
def test_the_excess_over_the_model_is_what_is_named(case):
    """Parameters of all devices = parameters of the model + copies, padding and key/value heads."""
    served, p = case
    model = served.transformer
    whole = parts_of(model, Parallelism())
    spread = parts_of(model, p)
    excess = sum(
        (copies - 1) * size + (size - alone)
        for (size, _, copies), (alone, _, _) in zip(spread, whole, strict=True)
    )
    total = parameter_counts(model).total
    assert sum(size for size, _, _ in whole) == total
    assert sum(size * copies for size, _, copies in spread) == total + excess
    if p.devices == 1:
        assert excess == 0


@many
@given(cases())
def test_stages_hold_the_model_once_and_a_tied_head_twice(case):
    served, p = case
    held = [held_bytes(served, stage) for stage in stages(served.transformer, p, decode=True)]
    assert len(held) == p.pp
    assert p.ranks * sum(held) == group_bytes(served, p)
    fullest = weight_bytes_per_device(served.transformer, served.precision, p)
    assert fullest == math.ceil(max(held))


@many
@given(cases())
def test_every_stage_has_as_many_layers_as_any_other_or_one_fewer(case):
    served, p = case
    rows = stages(served.transformer, p, decode=True)
    norms = {layer.norms for layer in served.transformer.layers}
    assume(len(norms) == 1)
    layers = [sum(n for n, o in stage if o.name == "elementwise") for stage in rows]
    assert sum(layers) == len(served.transformer.layers)
    assert layers == sorted(layers, reverse=True) and layers[0] - layers[-1] <= 1
    for number, stage in enumerate(rows):
        names = [o.name for _, o in stage]
        assert ("embedding" in names) == (number == 0)
        assert ("lm_head" in names) == (number == p.pp - 1)
        assert ("hand_on" in names) == (number < p.pp - 1)


@many
@given(cases())
def test_one_device_in_two_bytes_holds_every_parameter_once(case):
    model = case[0].transformer
    counts = parameter_counts(model)
    assert weight_bytes_per_device(model, BF16, Parallelism()) == 2 * counts.total
    idle = sum(
        (mlp.count - mlp.per_token)
        * ((mlp.input_matrices + 1) * model.hidden * mlp.width
           + mlp.bias * (mlp.input_matrices * mlp.width + model.hidden))
        for mlp in mlps_of(model, Experts)
    )  # fmt: skip
    assert counts.active == counts.total - idle
    assert counts.prediction == 0


@many
@given(transformers(), st.integers(1, 3))
def test_prediction_layers_are_counted_apart(model, number):
    more = dataclasses.replace(model, prediction_layers=model.layers[:1] * number)
    longer = dataclasses.replace(model, layers=model.layers + model.layers[:1] * number)
    plain = parameter_counts(model)
    counts = parameter_counts(more)
    assert (counts.total, counts.active) == (plain.total, plain.active)
    h = model.hidden
    blocks = parameter_counts(longer).total - plain.total
    assert counts.prediction == blocks + number * (2 * h * h + 3 * model.norm_parameters)


@few
@given(one_stage())
def test_a_step_reads_what_is_resident_but_the_look_up_tables(case):
    served, p = case
    model, precision = served.transformer, served.precision
    table = bytes_of("embedding", precision, model)
    head = bytes_of("head", precision, model)
    rows = math.ceil(model.vocab / p.tp)
    # a tied table is resident in the format of the embedding and read in that of the head
    unread = model.position_rows * table + rows * (table - head * model.tied_embeddings)
    resident = Fraction(group_bytes(served, p)) / p.devices
    expected = float(resident - unread * model.hidden)
    for decode in (PREFILL, DECODE):
        counts = counts_of(served, p, decode=decode)
        once = counts.weight_gb
        if counts.experts is not None:
            once = once + counts.experts.gb * counts.experts.held
        assert (counts.experts is not None) == model.has_experts
        same(float(jnp.sum(counts.repeats * once)) * 1e9, expected)


# --- (b) FLOPs over a group -----------------------------------------------------------------------


SPLIT = (
    "q_up kv_up output up down expert_up expert_down shared_up shared_down embedding combine "
    "elementwise"
).split()


@few
@given(cases())
def test_flops_over_all_devices_do_not_depend_on_the_way_of_parallelism(case):
    served, p = case
    model = served.transformer
    alone = Parallelism(absorb_latent=p.absorb_latent)
    for decode in (PREFILL, DECODE):
        one, group = (totals(served, way, decode=decode) for way in (alone, p))
        assert group.pop("hand_on", 0.0) == 0.0
        assert one.keys() == group.keys()
        # the ranks of a replica all do it; routers, unless each rank has tokens of its own
        copies = dict.fromkeys(SPLIT, 1) | {"qkv_down": p.tp, "router": 1 if p.ep > 1 else p.tp}
        assert group.keys() <= copies.keys() | {"qkv", "attention", "lm_head"}
        for name in group.keys() & copies.keys():
            same(p.devices * group[name], copies[name] * one[name])
        rows = p.tp * math.ceil(model.vocab / p.tp)
        same(p.devices * group["lm_head"], one["lm_head"] * rows / model.vocab)
        # query, key and value columns, with the key/value heads that are there several times
        kinds = [a for a in (layer.attention for layer in model.layers)
                 if isinstance(a, GroupedAttention)]  # fmt: skip
        if kinds:
            stored = p.tp * kv_heads_held(kinds[0], p.tp)
            there = sum((a.heads + 2 * stored) * a.head_dim for a in kinds)
            plain = sum((a.heads + 2 * a.kv_heads) * a.head_dim for a in kinds)
            same(p.devices * group["qkv"] / there, one["qkv"] / plain)
        field = "tflop_attention_per_seq"
        one, group = (
            totals(served, way, decode=decode, field=field)["attention"] for way in (alone, p)
        )
        assert one > 0
        same(p.devices * group, one)


@many
@given(cases())
def test_stages_do_together_what_one_would(case):
    """As operators: nothing is added but the hand-over, and a copy of a tied head."""
    served, p = case
    for decode in (PREFILL, DECODE):
        apart: Counter = Counter()
        for stage in stages(served.transformer, p, decode=decode):
            apart.update({o: n for n, o in stage if o.name != "hand_on"})
        plain = dataclasses.replace(p, pp=1)
        [whole] = stages(served.transformer, plain, decode=decode)
        together = Counter({o: n for n, o in whole})
        head = {True: [], False: []}
        for o in apart | together:
            if o.name == "lm_head":
                head[o in together].append(o)
        if served.transformer.tied_embeddings and p.pp > 1:
            [(mine,), (theirs,)] = head[True], head[False]
            assert dataclasses.replace(mine, held=theirs.held) == theirs
            assert theirs.held == theirs.read
            apart[mine] = apart.pop(theirs)
        assert apart == together


# --- (c) query heads ------------------------------------------------------------------------------


def with_heads(model, factor):
    """The model with more query heads; widths stay, since they are multiples of both."""

    def widened(layer):
        a = layer.attention
        return dataclasses.replace(layer, attention=dataclasses.replace(a, heads=factor * a.heads))

    return dataclasses.replace(model, layers=tuple(map(widened, model.layers)))


@few
@given(one_stage())
def test_doubling_the_query_heads_doubles_attention_and_leaves_the_cache(case):
    # aiconfigurator 1216
    served, p = case
    model, precision = served.transformer, served.precision
    doubled = with_heads(model, 2)
    wider = with_model(served, doubled)
    assert kv_bytes_per_token(doubled, precision, p) == kv_bytes_per_token(model, precision, p)
    for decode in (PREFILL, DECODE):
        field = "tflop_attention_per_seq"
        before, after = (totals(w, p, decode=decode, field=field) for w in (served, wider))
        same(after["attention"], 2 * before["attention"])
    if has_latents(model):
        return
    field = "traffic_gb_per_seq"
    before, after = (totals(w, p, decode=DECODE, field=field) for w in (served, wider))
    numbers = sum(2 * layer.attention.heads * layer.attention.head_dim for layer in model.layers)
    # the queries of all ranks that share a cache meet each part of it
    bytes_each = numbers / p.tp * p.kv_parallel * float(bytes_of("vector", precision, model))
    grown = (after["attention"] - before["attention"]) * 1e9 * p.dp
    scale = after["attention"] * 1e9 * p.dp
    assert grown == pytest.approx(bytes_each, rel=1e-9, abs=1e-12 * scale)


# --- (d) prefill against decode -------------------------------------------------------------------


@few
@given(one_stage())
def test_prefill_costs_as_many_linear_flops_as_decoding_the_prompt(case):
    served, p = case
    prefill = totals(served, p, decode=PREFILL)
    # one step, with latents absorbed: keys and values are not made again for all before
    absorbed = dataclasses.replace(p, absorb_latent=None)
    step = totals(served, absorbed, decode=DECODE)
    prompt = float(served.traffic.prompt_tokens)
    assert prefill.keys() == step.keys()
    for name, flop in prefill.items():
        same(flop, step[name] if name == "lm_head" else prompt * step[name])
    idle = ("embedding", "attention", "elementwise", "combine")
    assert all(flop > 0 for name, flop in step.items() if name not in idle)


@settings(max_examples=15, deadline=None)
@given(one_stage(), st.sampled_from([1, 2, 130]))
def test_pairs_of_a_prefill_are_those_of_its_tokens_one_by_one(case, prompt):
    served, p = case
    absorbed = p.absorb_latent is not False
    p = dataclasses.replace(p, absorb_latent=absorbed)

    def attention(prompt, output, decode):
        field = "tflop_attention_per_seq"
        return totals(with_lengths(served, prompt, output), p, decode=decode, field=field)[
            "attention"
        ]

    # token i sees i keys; the mean context of a step is prompt + output/2
    steps = sum(attention(i - 0.5, 1.0, DECODE) for i in range(1, prompt + 1))
    whole = attention(prompt, 1.0, PREFILL)
    same(whole, steps, rel=1e-11)
    flop = 0.0
    for layer in served.transformer.layers:
        seen = [min(i, layer.attention.window or i) for i in range(1, prompt + 1)]
        match layer.attention:
            case GroupedAttention(q, _, e):
                pair = 4 * q * e
            case LatentAttention(q, _, r, nope, rope, value):
                pair = 2 * q * ((2 * r + rope) if absorbed else (nope + rope + value))
        flop += pair * sum(seen)
    same(whole * 1e12, flop / p.devices, rel=1e-11)


# --- (e) experts ----------------------------------------------------------------------------------


with_experts = transformers(mlps=("experts",))


@few
@given(one_stage(with_experts), st.integers(1, 5000))
def test_the_experts_that_a_batch_touches(case, batch):
    served, p = case
    experts = decode_counts(served, p).experts
    names = operator_names(served.transformer, p, decode=DECODE)
    routed = [n for n, name in enumerate(names) if name.startswith("expert_")]
    per_token = np.zeros(len(names))
    count = np.zeros(len(names))
    [rows] = stages(served.transformer, p, decode=DECODE)
    for n in routed:
        per_token[n], count[n] = rows[n][1].routing.per_token, rows[n][1].routing.count
    assert {(k, e) for k, e in zip(per_token, count, strict=True) if e} == {
        (mlp.per_token, mlp.count) for mlp in mlps_of(served.transformer, Experts)
    }

    def touched(sequences):
        """By one device when each replica has so many sequences of its own."""
        return np.asarray(experts.touched(scalar(sequences)))

    # with expert parallelism the replicas meet in the same experts: one token in the whole group
    one = touched(1.0 if p.ep > 1 else p.dp)
    same(p.ep * one, per_token, rel=1e-9)
    held = np.asarray(experts.held)
    same(p.ep * held, count)
    # 1 - k/E is at most 127/128
    same(touched(1e7), held, rel=1e-12)
    # an average over even choices: (1 - k/E)^n miss
    n = batch if p.ep > 1 else batch / p.dp
    miss = np.divide(count - per_token, count, out=np.ones(len(names)), where=count > 0)
    same(touched(float(batch)), held * (1 - miss**n), rel=1e-9)


@jax.jit
def _touched(experts):
    """Batches, experts that they touch, and gradients forward and backward."""
    batches = jnp.geomspace(1.0, 1e9, 91)
    sums = jax.grad(lambda batch: jnp.sum(experts.touched(batch)))
    return (
        batches,
        jax.vmap(experts.touched)(batches),
        jax.vmap(jax.jacfwd(experts.touched))(batches),
        jax.vmap(sums)(batches),
    )


@few
@given(cases(with_experts))
def test_touched_experts_rise_ever_more_slowly_with_the_batch(case):
    served, p = case
    for decode in (PREFILL, DECODE):
        experts = counts_of(served, p, decode=decode).experts
        experts = jax.tree.map(lambda leaf: jnp.pad(leaf, (0, LONGEST - len(leaf))), experts)
        batches, found, gradient, backward = map(np.asarray, _touched(experts))
        assert np.all(np.diff(found, axis=0) >= 0)
        # chords from zero on
        rises, widths = np.diff(found, axis=0, prepend=0.0), np.diff(batches, prepend=0.0)
        slopes = rises / widths[:, None]
        assert np.all(np.diff(slopes, axis=0) <= 1e-14 * found[-1])
        assert np.all(np.isfinite(gradient)) and np.all(gradient >= 0)
        assert backward == pytest.approx(gradient.sum(axis=1), rel=1e-12, abs=1e-300)


def test_all_experts_are_read_where_every_token_goes_to_all():
    mlp = Experts(4, 4, 48)
    model = dataclasses.replace(SMALL, layers=(Layer(SMALL.first.attention, mlp),))
    served = make_workload(model, BF16, prompt_tokens=10, output_tokens=5)
    experts = decode_counts(served, Parallelism()).experts
    assert experts is not None
    for batch in (1.0, 8.0, 1e9):
        assert float(jnp.max(experts.touched(scalar(batch)))) == 4.0


# --- (f) collectives ------------------------------------------------------------------------------


@few
@given(cases(stages=1))
def test_one_rank_sends_exactly_nothing(case):
    served, p = case
    alone = dataclasses.replace(p, tp=1, ep=1, kv_parallel=1)
    for decode in (PREFILL, DECODE):
        counts = counts_of(served, alone, decode=decode)
        for field in ("collectives", "steps", "message_mb_per_seq", "wire_gb_per_seq"):
            assert np.all(np.asarray(getattr(counts, field)) == 0.0)


@few
@given(cases())
def test_a_ring_sends_least_in_most_steps(case):
    served, p = case
    for decode in (PREFILL, DECODE):
        ways = {
            name: counts_of(served, dataclasses.replace(p, collective=name), decode=decode)
            for name in ALGORITHMS
        }
        ring, one_shot, two_shot = (ways[n] for n in ("ring", "one-shot", "two-shot"))
        assert np.all(one_shot.wire_gb_per_seq >= ring.wire_gb_per_seq * (1 - 1e-15))
        assert np.all(two_shot.wire_gb_per_seq == ring.wire_gb_per_seq)
        for other in ways.values():
            assert np.all(other.steps <= ring.steps)
            for field in ("collectives", "message_mb_per_seq", "launches", "traffic_gb_per_seq"):
                np.testing.assert_array_equal(getattr(other, field), getattr(ring, field))


@many
@given(st.integers(1, 10**9), st.integers(1, 600), st.sampled_from(ALGORITHMS))
def test_the_table_of_collectives(size, n, algorithm):
    """S is the whole tensor; for all-to-all what a rank has for all, itself included."""
    share = Fraction((n - 1) * size, n)
    shares = {"ring": n - 1}.get(algorithm, 1)
    expected = {
        all_reduce: {
            "ring": (2 * share, 2 * (n - 1)),
            "in-network": (size + Fraction(size, n), 2),
            "one-shot": ((n - 1) * size, 1),
            "two-shot": (2 * share, 2),
        }[algorithm],
        reduce_scatter: (size if algorithm == "in-network" else share, shares),
        all_gather: (share, shares),
        all_to_all: (share, shares),
    }
    for collective, (sent, steps) in expected.items():
        found = collective(size, n, algorithm)
        row = (found.calls, found.steps, found.message, found.wire)
        assert row == ((1, steps, size, sent) if n > 1 else (0, 0, 0, 0))


@many
@given(st.integers(1, 10**9), st.integers(2, 600), st.sampled_from(ALGORITHMS))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(size, n, algorithm):
    whole = all_reduce(size, n, algorithm)
    halves = reduce_scatter(size, n, algorithm), all_gather(size, n, algorithm)
    wire, steps = (sum(getattr(half, name) for half in halves) for name in ("wire", "steps"))
    if algorithm == "one-shot":
        assert whole.steps == 1 and whole.wire >= wire
    elif algorithm == "in-network":
        assert whole.steps == steps and whole.wire <= wire
    else:
        assert whole.steps == steps and whole.wire == wire


@pytest.mark.parametrize("collective", [all_reduce, reduce_scatter, all_gather, all_to_all])
def test_an_unknown_collective_is_refused(collective):
    with pytest.raises(UserError, match="unknown collective 'rign', did you mean ring"):
        collective(1, 4, "rign")


# --- (g) stages and microbatches, (k) replicas ----------------------------------------------------


def padded(pool):
    """A pool with idle operators and stages behind."""
    idle = jax.tree.map(lambda leaf: jnp.zeros(LONGEST) if jnp.ndim(leaf) else leaf, pool)
    idle = eqx.tree_at(
        lambda blank: (blank.operators.stage, blank.operators.stages),
        idle,
        (jnp.zeros((KINDS_OF_STAGE, LONGEST)), jnp.zeros(KINDS_OF_STAGE)),
    )
    return jax.tree.map(lambda leaf: leaf[0], stack_padded([pool, idle]))


@functools.cache
def h100():
    chip = load_accelerator("h100-sxm")
    return chip.design(), chip.technology()


@eqx.filter_jit
def _served(pool, batch, roof, design, technology):
    return serve(pool, batch, scalar(1.5), roof, design, scalar(700.0), scalar(1e-3), technology)


def service_of(served, p, batch, *, decode):
    """Either pool at a batch on an H100; the prefill pool hands its cache to itself."""
    return _served(pool_of(served, p, decode=decode), scalar(batch), SoftRoof(2.0), *h100())


def pool_of(served, p, *, decode):
    return padded(jax.tree.map(lambda leaf: leaf[int(decode)], build_pools(served, p, p)))


@settings(max_examples=12, deadline=None)
@given(cases(), st.floats(1, 1000))
def test_one_stage_and_one_microbatch_are_the_plain_case(case, batch):
    served, p = case
    plain = dataclasses.replace(p, pp=1, microbatches=1)
    for decode in (PREFILL, DECODE):
        assert "hand_on" not in operator_names(served.transformer, plain, decode=decode)
        pool = pool_of(served, plain, decode=decode)
        found = [float(x) for x in (pool.devices, pool.microbatches, pool.waits_for_itself)]
        assert found == [p.tp * p.dp, 1.0, float(decode)]
        assert np.asarray(pool.operators.stages).tolist() == [1.0, 0.0, 0.0]
        one = service_of(served, plain, batch, decode=decode)
        # m microbatches of B/m through one stage follow each other
        m = p.microbatches
        many = dataclasses.replace(plain, microbatches=m)
        split = service_of(served, many, m * batch, decode=decode)
        same(float(split.time_ms), m * float(one.time_ms))
        same(float(split.device_j), m * float(one.device_j))
        same(float(split.usd_per_token), float(one.usd_per_token))


def ends(times, parts, rounds, *, again):
    """When every round of parts leaves the last stage, part by part through all stages.

    With `again`, a part begins a round when it has ended the one before.
    """
    free = [0.0] * len(times)
    ended = [0.0] * parts
    of_rounds = []
    for _ in range(rounds):
        for part in range(parts):
            now = ended[part] if again else 0.0
            for stage, time in enumerate(times):
                now = free[stage] = max(now, free[stage]) + time
            ended[part] = now
        of_rounds.append(max(ended))
    return of_rounds


@settings(max_examples=12, deadline=None)
@given(cases(microbatches=6), st.floats(1, 1000))
def test_a_batch_goes_through_its_stages_part_by_part(case, batch):
    served, p = case
    m = p.microbatches
    for decode in (PREFILL, DECODE):
        pool = pool_of(served, p, decode=decode)
        service = service_of(served, p, batch, decode=decode)
        of_operators = np.asarray(service.times.total_ms(SoftRoof(2.0)))
        of_kinds = np.asarray(pool.operators.stage) @ of_operators
        count = np.asarray(pool.operators.stages).astype(int)
        assert count.sum() == p.pp
        of_stages = np.repeat(of_kinds, count).tolist()
        first, *_, last_but_nine, last = (
            ends(of_stages, m, 40, again=decode)[n] for n in (0, 1, 30, 39)
        )
        # from round to round, once the pipeline is full
        same(float(service.time_ms), (last - last_but_nine) / 9, rel=1e-9)
        before_ms = 0.0 if decode else float(h100()[1].execution.request_ms)
        through = float(service.latency_ms - service.handover_ms) - before_ms
        same(through, (last - last_but_nine) / 9 if decode else first, rel=1e-9)


@settings(max_examples=12, deadline=None)
@given(cases(), st.floats(1, 1000), st.integers(2, 3))
def test_more_replicas_serve_more_sequences_in_the_same_time(case, batch, factor):
    """Replicas that share no experts do not see each other."""
    served, p = case
    p = dataclasses.replace(p, ep=1)
    more = dataclasses.replace(p, dp=factor * p.dp)
    for decode in (PREFILL, DECODE):
        one = service_of(served, p, batch, decode=decode)
        two = service_of(served, more, factor * batch, decode=decode)
        for name in ("time_ms", "weights_gb", "memory_gb", "device_j", "cluster_j",
                     "usd_per_token"):  # fmt: skip
            same(float(getattr(two, name)), float(getattr(one, name)))


@few
@given(one_stage(with_experts), st.floats(1, 1000))
def test_experts_that_replicas_share_are_read_once_for_all(case, batch):
    served, p = case

    def without_bias(layer):
        # of a sum: every rank of an expert holds it
        return dataclasses.replace(layer, mlp=dataclasses.replace(layer.mlp, bias=False))

    model = served.transformer
    layers = tuple(map(without_bias, model.layers))
    served = with_model(served, dataclasses.replace(model, layers=layers))

    def read_gb(way):
        counts = decode_counts(served, way)
        touched = counts.experts.gb * counts.experts.touched(scalar(batch))
        return float(jnp.sum(counts.repeats * touched))

    assert read_gb(p) <= read_gb(dataclasses.replace(p, ep=1)) * (1 + 1e-12)


# --- (h) the cache --------------------------------------------------------------------------------


@few
@given(cases(), st.integers(1, 10_000))
def test_ranks_that_share_a_cache_hold_a_part_each(case, tokens):
    served, p = case
    model, precision = served.transformer, served.precision
    c = p.kv_parallel
    whole = dataclasses.replace(p, kv_parallel=1)
    assert c * kv_bytes_per_token(model, precision, p) == kv_bytes_per_token(
        model, precision, whole
    )
    assert c * kv_bytes_per_sequence(model, precision, p, tokens) == kv_bytes_per_sequence(
        model, precision, whole, tokens
    )
    mine, theirs = build_pools(served, p, p), build_pools(served, whole, whole)
    for name in ("kv_gb_per_seq", "sent_gb_per_seq", "handover_gb_per_seq"):
        same(c * np.asarray(getattr(mine, name)), np.asarray(getattr(theirs, name)))
    for name in ("weights_gb", "devices", "limit_ms"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))


@few
@given(cases(), st.integers(1, 10_000))
def test_the_cache_of_a_sequence_by_hand(case, tokens):
    served, p = case
    model, precision = served.transformer, served.precision
    if precision.kv == "checkpoint":
        number = (model.kv_format or FORMATS[precision.activations]).bits / 8
    else:
        number = FORMATS[precision.kv].bits / 8
    least, longer = divmod(len(model.layers), p.pp)
    bounds = list(itertools.accumulate([least + 1] * longer + [least] * (p.pp - longer), initial=0))
    of_stages = []
    for begin, end in itertools.pairwise(bounds):
        total = Fraction(0)
        for layer in model.layers[begin:end]:
            match layer.attention:
                case GroupedAttention(_, _, e, window) as a:
                    kept = min(tokens, window or tokens)
                    total += kept * 2 * kv_heads_held(a, p.tp) * e
                case LatentAttention(_, _, r, _, rope, _):
                    total += tokens * (r + rope)
        of_stages.append(total * number / p.kv_parallel)
    expected = max(of_stages)
    assert kv_bytes_per_sequence(model, precision, p, tokens) == expected
    pool = decode_pool(with_lengths(served, tokens - 0.5, 0.5), p)
    same(float(pool.kv_gb_per_seq) * 1e9 * p.dp, float(expected))


# --- (i) idle operators ---------------------------------------------------------------------------


@eqx.filter_jit
def _values_and_slopes(pool, roof, design, technology):
    """Time, energy, memory and cost with their gradients in batch, bandwidth and network."""

    def results(logs):
        batch, memory, network = jnp.exp(logs)
        there = eqx.tree_at(
            lambda d: (d.memory_stacks, d.network_gb_s),
            design,
            (design.memory_stacks * memory, design.network_gb_s * network),
        )
        found = serve(
            pool, batch, scalar(1.5), roof, there, scalar(700.0), scalar(1e-3), technology
        )
        names = ("time_ms", "device_j", "cluster_j", "memory_gb", "usd_per_token")
        return jnp.stack([getattr(found, name) for name in names])

    at = jnp.log(jnp.array([16.0, 1.0, 1.0]))
    return results(at), jax.jacrev(results)(at)


@settings(max_examples=6, deadline=None)
@given(cases(), st.sampled_from([SoftRoof(2.0), SoftRoof(1024.0), HardRoof()]))
def test_operators_of_padding_change_nothing(case, roof):
    served, p = case
    pool = decode_pool(served, p)
    filled = padded(pool)
    assert filled.operators.stage.shape == (KINDS_OF_STAGE, LONGEST)
    assert float(jnp.sum(filled.operators.repeats)) == float(jnp.sum(pool.operators.repeats))
    plain, more = (_values_and_slopes(each, roof, *h100()) for each in (pool, filled))
    for a, b in zip(plain, more, strict=True):
        assert np.all(np.isfinite(b))
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-15)


def test_stacking_fills_with_zeros_at_the_end():
    short, long = {"a": np.array([1.0, 2.0]), "b": np.float64(3)}, {"a": np.ones(4), "b": 5.0}
    for module in (np, jnp):
        stacked = stack_padded([short, long], module)
        assert np.asarray(stacked["a"]).tolist() == [[1, 2, 0, 0], [1, 1, 1, 1]]
        assert np.asarray(stacked["b"]).tolist() == [3, 5]


# --- (j) shapes and gradients ---------------------------------------------------------------------


@few
@given(cases())
def test_counts_are_finite_float64_of_one_shape(case):
    served, p = case
    for decode in (PREFILL, DECODE):
        counts = counts_of(served, p, decode=decode)
        size = len(operator_names(served.transformer, p, decode=decode))
        for name, leaf in vars(counts).items():
            if name not in ("experts", "stage", "stages"):
                assert leaf.shape == (size,)
                assert np.all(np.asarray(leaf) >= 0)
        kinds = counts.stages.shape[0]
        assert counts.stage.shape == (kinds, size)
        # every operator is of one kind of stage
        assert np.asarray(counts.stage).sum(axis=0).tolist() == [1.0] * size
        assert float(jnp.sum(counts.stages)) == p.pp
    # either phase on its own group
    for pools in (build_pools(served, p, Parallelism()), build_pools(served, Parallelism(), p)):
        for leaf in jax.tree.leaves(pools):
            assert leaf.dtype == jnp.float64 and leaf.shape[0] == 2
            assert np.all(np.isfinite(leaf))


KINDS = list(itertools.product(ATTENTIONS, MLPS))


@eqx.filter_jit
def _slopes(pool, log_batch, design, technology):
    """Gradient of everything that a pool does in its counts and in the batch."""

    def everything(point):
        pool, log_batch = point
        found = serve(
            pool, jnp.exp(log_batch), scalar(1.5), SoftRoof(2.0), design, scalar(700.0),
            scalar(1e-3), technology,
        )  # fmt: skip
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(found))

    return jax.value_and_grad(everything)((pool, log_batch))


@pytest.mark.parametrize(("attention", "mlp"), KINDS)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_gradients_in_lengths_and_batch_are_finite(attention, mlp, data):
    served, p = data.draw(cases(transformers((attention,), (mlp,))))

    def pools_at(traffic):
        moved = Workload(served.transformer, traffic, served.slo, served.precision, served.pools)
        return jax.vmap(padded)(build_pools(moved, p, p))

    pools, back = jax.vjp(pools_at, served.traffic)
    for batch in (1.0, 64.0, 1e6):
        slopes = []
        for pool in (jax.tree.map(lambda leaf, n=n: leaf[n], pools) for n in range(2)):
            value, (of_pool, of_batch) = _slopes(pool, scalar(math.log(batch)), *h100())
            assert np.isfinite(value) and np.isfinite(of_batch)
            assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(of_pool))
            slopes.append(of_pool)
        [of_lengths] = back(jax.tree.map(lambda *leaves: jnp.stack(leaves), *slopes))
        assert np.all(np.isfinite(jax.tree.leaves(of_lengths)))


@settings(max_examples=6, deadline=None)
@given(cases())
def test_gradients_with_respect_to_the_lengths_are_finite(case):
    served, p = case

    def everything(traffic):
        moved = Workload(served.transformer, traffic, served.slo, served.precision, served.pools)
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(build_pools(moved, p, p)))

    gradient = jax.grad(everything)(served.traffic)
    assert np.all(np.isfinite(jax.tree.leaves(gradient)))


def test_lengths_are_traced_without_recompiling():
    served = make_workload(SMALL, BF16, prompt_tokens=10, output_tokens=5)
    traces = []

    @jax.jit
    def cache_gb(traffic):
        traces.append(traffic)
        moved = Workload(SMALL, traffic, served.slo, BF16, served.pools)
        return build_pools(moved, Parallelism(2), Parallelism(4)).kv_gb_per_seq[1]

    values = [float(cache_gb(Traffic(prompt, 5))) for prompt in (10, 20)]
    assert values[1] / values[0] == pytest.approx(25 / 15)
    assert len(traces) == 1


BAD_VALUES = [
    ("prompt_tokens", 0), ("prompt_tokens", 0.5), ("prompt_tokens", -1),
    ("prompt_tokens", math.nan), ("prompt_tokens", math.inf), ("prompt_tokens", "1500"),
    ("prompt_tokens", True), ("prompt_tokens", 10**400), ("tbt_ms", 10**400),
    ("prompt_tokens", None), ("output_tokens", 0),
    ("output_tokens", math.nan), ("ttft_ms", 0), ("ttft_ms", -1), ("tbt_ms", math.inf),
    ("tbt_ms", "50 ms"), ("pools", "decod"), ("pools", None),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), BAD_VALUES)
def test_bad_value_of_a_workload_is_refused_by_name(key, value):
    good: dict[str, Any] = dict(prompt_tokens=10, output_tokens=5)
    with pytest.raises(UserError, match=f"^study.toml:{key}: "):
        make_workload(SMALL, BF16, where="study.toml", **(good | {key: value}))


def test_decode_alone_needs_something_to_decode():
    with pytest.raises(UserError, match="output_tokens"):
        make_workload(SMALL, BF16, prompt_tokens=10, output_tokens=1, pools="decode")


ALLOWED = {
    "weights": "bf16, checkpoint, fp16, fp8, fp8-block128, int8, mxfp4, nvfp4",
    "kv": "bf16, checkpoint, fp16, fp8, int8",
    "activations": "bf16, fp16",
    "wire": "bf16, fp16, fp32, fp8, int8",
}


@pytest.mark.parametrize("field", ALLOWED)
@pytest.mark.parametrize("value", ["fp4", "FP8 ", "", None, 2])
def test_unknown_number_format_is_refused_by_field(field, value):
    good = dict(weights="fp8", kv="fp8", activations="bf16", wire="bf16")
    with pytest.raises(UserError, match=f"^{field}: .*; allowed: {re.escape(ALLOWED[field])}$"):
        Precision(**(good | {field: value}))


def test_eight_bit_activations_are_refused_with_the_reason():
    with pytest.raises(UserError, match="attention"):
        Precision("fp8", "fp8", "fp8", "fp8")


def test_reading_a_model_does_not_import_jax():
    code = (
        "import sys; from litegpu_opt.workload import huggingface, memory, precision; "
        "huggingface.read_transformer('llama-3-70b'); sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
