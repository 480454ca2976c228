"""What holds for every model and every degree."""

import dataclasses
import math
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litegpu_opt.errors import UserError
from litegpu_opt.workload.memory import kv_bytes_per_token, weight_bytes_per_device
from litegpu_opt.workload.operators import decode_operators, prefill_operators
from litegpu_opt.workload.pool import build_pools
from litegpu_opt.workload.precision import BYTES, Precision
from litegpu_opt.workload.traffic import Traffic, Workload, make_workload
from litegpu_opt.workload.transformer import Transformer


few = settings(max_examples=25, deadline=None)

SMALL = Transformer(
    "small", "llama", 2, 64, 4, 2, 16, 128, 100, True, False, False, False, False, 64, 0
)
BF16 = Precision("bf16", "bf16", "bf16", "bf16")

TWO_BYTES = [name for name, size in BYTES.items() if size == 2]

precisions = st.builds(
    Precision,
    weights=st.sampled_from(sorted(BYTES)),
    kv=st.sampled_from(sorted(BYTES)),
    activations=st.sampled_from(TWO_BYTES),
    wire=st.sampled_from(sorted(BYTES)),
)


@st.composite
def transformers(draw):
    kv_heads = draw(st.sampled_from([1, 2, 3, 4, 8]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 4, 8]))
    hidden = draw(st.integers(1, 200)) * 64
    return Transformer(
        name="drawn",
        family="llama",
        layers=draw(st.integers(1, 130)),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([64, 80, 128, 256])),
        ffn=heads * draw(st.integers(1, 2000)),
        vocab=draw(st.integers(1, 300_000)),
        gated_mlp=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        attention_bias=draw(st.booleans()),
        output_bias=draw(st.booleans()),
        mlp_bias=draw(st.booleans()),
        norm_parameters=hidden * draw(st.sampled_from([1, 2])),
        position_rows=draw(st.sampled_from([0, 2048])),
    )


@st.composite
def cases(draw):
    """A workload and a degree that its model allows."""
    model = draw(transformers())
    served = make_workload(
        model,
        draw(precisions),
        prompt_tokens=draw(st.floats(1, 1e6)),
        output_tokens=draw(st.floats(1, 1e5)),
    )
    return served, draw(st.sampled_from(model.tensor_parallel_degrees(model.heads)))


def row(operators, name, field):
    return float(getattr(operators, field)[operators.names.index(name)])


LINEAR = ("qkv", "output", "up", "down")


def linear_tflop(operators, name):
    return row(operators, name, "tflop_bf16_per_seq") + row(operators, name, "tflop_fp8_per_seq")


@few
@given(cases())
def test_weights_over_all_devices_exceed_the_model_by_what_is_replicated(case):
    served, tp = case
    model, precision = served.transformer, served.precision
    a, w, e, h = precision.activation_bytes, precision.weight_bytes, model.head_dim, model.hidden
    extra_kv_heads = tp * max(1, math.ceil(model.kv_heads / tp)) - model.kv_heads
    padded_rows = tp * math.ceil(model.vocab / tp) - model.vocab
    copies = tp - 1
    replicated = (
        copies * a * (model.norm_parameters_total + model.position_parameters)
        + copies * a * model.layers * h * (model.output_bias + model.mlp_bias)
        + model.layers * 2 * extra_kv_heads * e * (h * w + model.attention_bias * a)
        + (1 if model.tied_embeddings else 2) * padded_rows * h * a
    )
    one = weight_bytes_per_device(model, precision, 1)
    assert tp * weight_bytes_per_device(model, precision, tp) == one + replicated


@few
@given(cases())
def test_one_device_in_two_bytes_holds_every_parameter_once(case):
    model = case[0].transformer
    assert weight_bytes_per_device(model, BF16, 1) == 2 * model.parameters_total


@few
@given(cases())
def test_a_step_reads_what_is_resident_but_the_look_up_tables(case):
    served, tp = case
    model, precision = served.transformer, served.precision
    tables = model.position_parameters
    if not model.tied_embeddings:
        tables += model.vocab_per_device(tp) * model.hidden
    resident = weight_bytes_per_device(model, precision, tp)
    expected = resident - tables * precision.activation_bytes
    for phase in (prefill_operators, decode_operators):
        counts = phase(served, tp)
        read = float(jnp.sum(counts.repeats * counts.weight_gb)) * 1e9
        assert read == pytest.approx(expected, rel=1e-12)


@few
@given(cases())
def test_flops_over_all_devices_do_not_depend_on_the_degree(case):
    served, tp = case
    for phase in (prefill_operators, decode_operators):
        one, many = phase(served, 1), phase(served, tp)
        for name in ("output", "up", "down"):
            assert tp * linear_tflop(many, name) == pytest.approx(linear_tflop(one, name))
        attention = tp * row(many, "attention", "tflop_attention_per_seq")
        assert attention == pytest.approx(row(one, "attention", "tflop_attention_per_seq"))


@few
@given(cases())
def test_prefill_costs_as_many_linear_flops_as_decoding_the_prompt(case):
    served, tp = case
    prefill, decode = prefill_operators(served, tp), decode_operators(served, tp)
    prompt = float(served.traffic.prompt_tokens)
    for name in LINEAR:
        assert linear_tflop(decode, name) > 0
        assert linear_tflop(prefill, name) == pytest.approx(prompt * linear_tflop(decode, name))
    assert linear_tflop(prefill, "lm_head") == linear_tflop(decode, "lm_head")


@few
@given(cases())
def test_doubling_the_query_heads_doubles_attention_and_leaves_the_cache(case):
    # aiconfigurator 1216
    served, tp = case
    model, precision = served.transformer, served.precision
    doubled = dataclasses.replace(model, heads=2 * model.heads, ffn=2 * model.ffn)
    wider = Workload(doubled, served.traffic, served.slo, precision, served.pools)
    assert kv_bytes_per_token(doubled, precision, tp) == kv_bytes_per_token(model, precision, tp)
    before, after = decode_operators(served, tp), decode_operators(wider, tp)
    flop = "tflop_attention_per_seq"
    assert row(after, "attention", flop) == pytest.approx(2 * row(before, "attention", flop))
    grown = row(after, "attention", "traffic_gb_per_seq")
    grown -= row(before, "attention", "traffic_gb_per_seq")
    queries_and_result = 2 * model.heads / tp * model.head_dim * precision.activation_bytes
    assert grown * 1e9 == pytest.approx(queries_and_result, rel=1e-6)


@few
@given(cases())
def test_counts_are_finite_float64_of_one_shape_and_order(case):
    served, tp = case
    pools = build_pools(served, tp, 1)
    assert pools[0].operators.names == pools[1].operators.names
    for pool in pools:
        size = len(pool.operators.names)
        for leaf in jax.tree.leaves(pool.operators):
            assert leaf.shape == (size,)
        for leaf in jax.tree.leaves(pool):
            assert leaf.dtype == jnp.float64
            assert np.all(np.isfinite(leaf)) and np.all(leaf >= 0)


@settings(max_examples=6, deadline=None)
@given(cases())
def test_gradients_with_respect_to_the_lengths_are_finite(case):
    served, tp = case

    def everything(traffic):
        moved = Workload(served.transformer, traffic, served.slo, served.precision, served.pools)
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(build_pools(moved, tp, tp)))

    gradient = jax.grad(everything)(served.traffic)
    assert np.all(np.isfinite(jax.tree.leaves(gradient)))


def test_lengths_are_traced_without_recompiling():
    served = make_workload(SMALL, BF16, prompt_tokens=10, output_tokens=5)
    traces = []

    @jax.jit
    def cache_gb(traffic):
        traces.append(traffic)
        moved = Workload(SMALL, traffic, served.slo, BF16, served.pools)
        return build_pools(moved, 2, 4)[1].kv_gb_per_seq

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


@pytest.mark.parametrize("field", ["weights", "kv", "activations", "wire"])
@pytest.mark.parametrize("value", ["fp4", "FP8 ", "", None, 2])
def test_unknown_number_format_is_refused_by_field(field, value):
    good = dict(weights="fp8", kv="fp8", activations="bf16", wire="bf16")
    with pytest.raises(UserError, match=f"^{field}: .*bf16, fp16, fp8"):
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
