"""Pinned parameter, byte and operation counts of dense models.

Sources: public `config.json` files and the reported faults named at each test; the values follow
from the arithmetic shown there. A failure of the parameter tests points at `families/` or
`catalog/models`, of the byte tests at `memory.py`, of the rest at `operators.py`.
"""

import json
from typing import Any

import numpy as np
import pytest

from litegpu_opt.errors import UserError
from litegpu_opt.workload.collectives import all_gather_wire, all_reduce_wire
from litegpu_opt.workload.huggingface import builtin_models, model_aliases, read_transformer
from litegpu_opt.workload.memory import kv_bytes_per_token, weight_bytes_per_device
from litegpu_opt.workload.operators import decode_operators, prefill_operators
from litegpu_opt.workload.pool import build_pools
from litegpu_opt.workload.precision import Precision
from litegpu_opt.workload.traffic import NO_LIMIT_MS, make_workload
from litegpu_opt.workload.transformer import Transformer


BF16 = Precision("bf16", "bf16", "bf16", "bf16")
FP8 = Precision("fp8", "fp8", "bf16", "bf16")

PARAMETERS = {
    "llama-2-7b": 6_738_415_616,  # jranaraki/vllm-fit 8
    "llama-2-70b": 68_976_648_192,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,  # arXiv 2407.21783: 8.03 B
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "opt-175b": 174_604_468_224,  # tied, biases, 2050 positions
    # 96 (12 h^2 + 13 h) + 50257 h + 2048 h + 2h with h = 12288
    "gpt-3-175b": 174_604_259_328,
}


def workload(model="llama-3.1-70b", prompt=8191.0, output=2.0, precision=BF16, **options):
    """A prompt of 8191 and 2 output tokens: the decode context S + T/2 is 8192."""
    return make_workload(
        read_transformer(model), precision, prompt_tokens=prompt, output_tokens=output, **options
    )


def total(operators, field):
    """Sum over the phase of one field, repeats included."""
    return float(np.sum(operators.repeats * getattr(operators, field)))


def row(operators, name, field):
    return float(getattr(operators, field)[operators.names.index(name)])


def variant(**changes):
    """A Llama-like transformer of small size with some fields replaced."""
    fields: dict[str, Any] = dict(
        name="variant", family="llama", layers=1, hidden=1024, heads=64, kv_heads=8, head_dim=128,
        ffn=4096, vocab=1000, gated_mlp=True, tied_embeddings=False, attention_bias=False,
        output_bias=False, mlp_bias=False, norm_parameters=1024, position_rows=0,
    )  # fmt: skip
    return Transformer(**(fields | changes))


# --- parameters ---------------------------------------------------------------------------------


def test_every_built_in_model_has_a_pinned_parameter_count():
    assert set(builtin_models()) == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_built_in_model_has_its_published_parameter_count(name):
    model = read_transformer(name)
    assert model.name == name
    assert model.parameters_total == model.parameters_active == PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_advertised_size_in_the_name_is_met_within_four_percent(name):
    advertised = float(name.rsplit("-", 1)[1].removesuffix("b")) * 1e9
    assert abs(read_transformer(name).parameters_total / advertised - 1) < 0.04


# GenZ-LLM-Analyzer's alias of Llama-3.1-70B gave Llama-2-70B.
ALIASES = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Llama-2-7b-chat-hf": "llama-2-7b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b",
    "meta-llama/Llama-2-70b-chat-hf": "llama-2-70b",
    "meta-llama/Meta-Llama-3-70B": "llama-3-70b",
    "meta-llama/Meta-Llama-3-70B-Instruct": "llama-3-70b",
    "Llama3-70B": "llama-3-70b",
    "meta-llama/Meta-Llama-3.1-8B": "llama-3.1-8b",
    "meta-llama/Meta-Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "meta-llama/Meta-Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Meta-Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama-3.1-70b",
    "meta-llama/Meta-Llama-3.1-405B": "llama-3.1-405b",
    "meta-llama/Meta-Llama-3.1-405B-Instruct": "llama-3.1-405b",
    "meta-llama/Llama-3.1-405B": "llama-3.1-405b",
    "meta-llama/Llama-3.1-405B-Instruct": "llama-3.1-405b",
    "Llama3-405B": "llama-3.1-405b",
    "facebook/opt-175b": "opt-175b",
    "GPT3-175B": "gpt-3-175b",
}


def test_every_alias_is_checked_below():
    assert set(model_aliases()) == {alias.lower() for alias in ALIASES}


@pytest.mark.parametrize("alias", ALIASES)
def test_alias_gives_the_model_that_it_names(alias):
    assert read_transformer(alias) == read_transformer(ALIASES[alias])


def test_llama_3_1_70b_by_hub_id_has_its_own_vocabulary():
    model = read_transformer("meta-llama/Meta-Llama-3.1-70B")
    assert (model.vocab, model.parameters_total) == (128_256, 70_553_706_496)


def test_gated_mlp_has_three_matrices():
    # vllm-fit 8 and 20, inference-sim 561
    assert read_transformer("llama-3.1-70b").mlp_matrix_parameters == 704_643_072
    small = read_transformer("llama-2-7b")
    assert small.layer_matrix_parameters == 4 * 4096**2 + 3 * 4096 * 11008
    assert small.vocabulary_parameters == 2 * 32_000 * 4096


def test_gpt_3_has_a_plain_mlp():
    # LLMCompass 10: 96 * 12 h^2; a gated default would give 231,928,233,984
    model = read_transformer("gpt-3-175b")
    assert model.layers * model.layer_matrix_parameters == 173_946_175_488


def test_tied_head_is_stored_once_and_multiplied_all_the_same():
    # huggingface/trl 6708, at the vocabulary of Gemma-2-27B
    sizes = dict(hidden=4608, vocab=256_000, norm_parameters=4608)
    tied, untied = (variant(tied_embeddings=flag, **sizes) for flag in (True, False))
    assert untied.parameters_total - tied.parameters_total == 256_000 * 4608
    for model in (tied, untied):
        served = make_workload(model, BF16, prompt_tokens=100, output_tokens=10)
        counts = decode_operators(served, 1)
        assert row(counts, "lm_head", "tflop_bf16_per_seq") * 1e12 == 2_359_296_000
        assert row(counts, "embedding", "tflop_bf16_per_seq") == 0


def test_opt_by_its_own_key_names(tmp_path):
    # ggml-org/llama.cpp 9754: ffn_dim, no key/value heads
    path = tmp_path / "config.json"
    fields = dict(
        model_type="opt", hidden_size=12288, word_embed_proj_dim=12288, ffn_dim=49152,
        max_position_embeddings=2048, num_attention_heads=96, num_hidden_layers=96,
        vocab_size=50272, activation_function="relu", torch_dtype="float16",
    )  # fmt: skip
    path.write_text(json.dumps(fields))
    model = read_transformer(path)
    assert model.kv_heads == 96
    assert model.parameters_total == 174_604_468_224
    assert "tie_word_embeddings = true" in model.assumed


# --- bytes --------------------------------------------------------------------------------------


def test_weights_of_one_of_eight_devices_include_vocabulary_and_full_norms():
    # vidur's param_counter leaves out both; llm-analysis 19 divides the norms
    model = read_transformer("llama-3-70b")
    assert model.norm_parameters_total == 1_318_912
    assert weight_bytes_per_device(model, BF16, 8) == 2 * 8_820_367_360


def test_fp8_checkpoint_keeps_vocabulary_and_norms_in_two_bytes():
    # llm-d-benchmark 345: 67.67 GiB against 67.72 GiB measured
    model = read_transformer("llama-3.1-70b")
    assert weight_bytes_per_device(model, FP8, 1) == 72_656_371_712
    assert weight_bytes_per_device(model, BF16, 1) == 2 * 70_553_706_496


def test_kv_cache_counts_key_value_heads():
    # LLM-Viewer 12
    model = read_transformer("llama-3.1-70b")
    assert 4096 * kv_bytes_per_token(model, BF16, 1) == 1_342_177_280
    # vllm-fit 2
    assert kv_bytes_per_token(read_transformer("llama-2-7b"), BF16, 1) == 524_288


@pytest.mark.parametrize("tp", [8, 16, 32, 64])
def test_key_value_heads_replicate_beyond_their_number(tp):
    # vllm 1640: 40,960 bytes per token on every device
    model = read_transformer("llama-3.1-70b")
    assert kv_bytes_per_token(model, BF16, tp) == 40_960
    _, decode = build_pools(workload(), 8, tp)
    assert float(decode.kv_gb_per_seq) == pytest.approx(40_960 * 8193 / 1e9, rel=1e-14)
    # their projections replicate too
    weights = 8192 * (64 // tp + 2) * 128 * 2
    counts = decode_operators(workload(), tp)
    assert row(counts, "qkv", "weight_gb") * 1e9 == pytest.approx(weights, rel=1e-14)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        # Mistral-Small-24B, Qwen3-235B and the case of ai-dynamo/dynamo 14431
        (dict(num_hidden_layers=40, num_key_value_heads=8, head_dim=128, hidden_size=5120,
              num_attention_heads=32), 163_840),
        (dict(num_hidden_layers=94, num_key_value_heads=4, head_dim=128, hidden_size=4096,
              num_attention_heads=64), 192_512),
        (dict(num_hidden_layers=1, num_key_value_heads=8, head_dim=256, hidden_size=3584,
              num_attention_heads=16), 8_192),
    ],
)  # fmt: skip
def test_head_dim_is_read_where_the_file_states_it(tmp_path, shape, expected):
    path = tmp_path / "config.json"
    rest = dict(model_type="llama", intermediate_size=16384, vocab_size=1000)
    path.write_text(json.dumps(rest | shape))
    assert kv_bytes_per_token(read_transformer(path), BF16, 1) == expected


def test_decode_step_reads_all_weights_but_the_input_embedding():
    # ninfer-3090 50
    counts = decode_operators(workload(), 1)
    assert total(counts, "weight_gb") * 1e9 == pytest.approx(139_006_066_688, rel=1e-14)
    assert row(counts, "embedding", "weight_gb") == 0
    # the row that is read, and written on
    assert row(counts, "embedding", "traffic_gb_per_seq") * 1e9 == pytest.approx(2 * 16_384)


# --- operations ---------------------------------------------------------------------------------


def test_lm_head_counts_multiply_and_add_for_every_sequence():
    # LLM-Viewer's post_process: half the FLOPs, logits of one sequence
    counts = decode_operators(workload(), 1)
    assert 32 * row(counts, "lm_head", "tflop_bf16_per_seq") * 1e12 == 67_243_081_728
    logits = row(counts, "lm_head", "traffic_gb_per_seq") * 1e9 - 8192 * 2
    assert 32 * logits == pytest.approx(8_208_384, rel=1e-12)


def test_prefill_attention_is_causal_and_the_head_runs_for_the_last_token():
    # maxtext 1972, Megatron-LM 831
    counts = prefill_operators(workload(prompt=8192.0), 1)
    attention = total(counts, "tflop_attention_per_seq") * 1e12
    assert attention == pytest.approx(4 * (8192 * 8193 // 2) * 64 * 128 * 80, rel=1e-14)
    assert attention == pytest.approx(8.7972e13, rel=1e-4)
    head = row(counts, "lm_head", "tflop_bf16_per_seq") * 1e12
    assert head == pytest.approx(2 * 128_256 * 8192, rel=1e-14)
    linear = total(counts, "tflop_bf16_per_seq") * 1e12 - head
    assert linear == pytest.approx(2 * 68_451_041_280 * 8192, rel=1e-14)
    # the hand bound of vidur 60: 152.8 ms on eight devices of 989.4 TFLOP/s
    assert (linear + attention + head) / (8 * 989.4e12) == pytest.approx(0.1528, rel=3e-4)


def test_decode_attention_sees_the_whole_cache():
    counts = decode_operators(workload(), 1)
    flop = total(counts, "tflop_attention_per_seq") * 1e12
    assert flop == pytest.approx(4 * 8192 * 8192 * 80, rel=1e-14)
    queries_and_result = 2 * 64 * 128 * 2 * 80
    cache = row(counts, "attention", "traffic_gb_per_seq") * 80 * 1e9 - queries_and_result
    assert cache == pytest.approx(2_684_354_560, rel=1e-12)
    assert flop / cache == pytest.approx(8.0, rel=1e-12)


def test_eight_bit_weights_move_the_linear_layers_only():
    wide, narrow = (decode_operators(workload(precision=p), 8) for p in (BF16, FP8))
    head = row(wide, "lm_head", "tflop_bf16_per_seq")
    assert total(narrow, "tflop_bf16_per_seq") == head
    assert total(narrow, "tflop_fp8_per_seq") + head == pytest.approx(
        total(wide, "tflop_bf16_per_seq"), rel=1e-14
    )
    assert row(narrow, "lm_head", "weight_gb") == row(wide, "lm_head", "weight_gb")
    assert row(narrow, "up", "weight_gb") * 2 == row(wide, "up", "weight_gb")


# --- every operator by hand ---------------------------------------------------------------------

# On one of two devices: h = 16, q = 2, k = 1, e = 8, f = 12, V = 51 (of 101, padded), two norms of
# 32 parameters; two bytes a number, one byte in the cache and on the wire; S = 5, T = 4, L = 7.
# name: FLOPs, weight bytes, traffic bytes, message bytes, wire bytes (in-network: 3/2, gather: 1/2)
PREFILL_BY_HAND = {
    "embedding": (0, 0, 320, 80, 120),
    "qkv": (5120, 1088, 5 * (32 + 32 + 16), 0, 0),
    "attention": (960, 0, 320 + 80, 0, 0),
    "output": (2560, 544, 320, 80, 120),
    "up": (3840, 816, 280, 0, 0),
    "down": (1920, 416, 280, 80, 120),
    "elementwise": (0, 128, 1280, 0, 0),
    "lm_head": (1632, 1696, 134, 101, 50.5),
}
DECODE_BY_HAND = {
    "embedding": (0, 0, 64, 16, 24),
    "qkv": (1024, 1088, 80, 0, 0),
    "attention": (448, 0, 64 + 112, 0, 0),
    "output": (512, 544, 64, 16, 24),
    "up": (768, 816, 56, 0, 0),
    "down": (384, 416, 56, 16, 24),
    "elementwise": (0, 128, 256, 0, 0),
    "lm_head": (1632, 1696, 134, 101, 50.5),
}


@pytest.mark.parametrize(
    ("phase", "expected"),
    [(prefill_operators, PREFILL_BY_HAND), (decode_operators, DECODE_BY_HAND)],
)
def test_every_operator_equals_the_hand_count(phase, expected):
    model = variant(
        layers=3, hidden=16, heads=4, kv_heads=1, head_dim=8, ffn=24, vocab=101,
        tied_embeddings=True, attention_bias=True, output_bias=True, mlp_bias=True,
        norm_parameters=32,
    )  # fmt: skip
    precision = Precision(weights="bf16", kv="fp8", activations="fp16", wire="fp8")
    assert kv_bytes_per_token(model, precision, 2) == 2 * 3 * 8
    served = make_workload(model, precision, prompt_tokens=5, output_tokens=4)
    counts = phase(served, 2, "in-network")
    assert counts.names == tuple(expected)
    for name, (flop, weight, traffic, message, wire) in expected.items():
        kind = "tflop_attention_per_seq" if name == "attention" else "tflop_bf16_per_seq"
        flops = sum(
            row(counts, name, field) for field in ("tflop_bf16_per_seq", "tflop_attention_per_seq")
        )
        assert row(counts, name, kind) == flops == pytest.approx(flop / 1e12)
        assert row(counts, name, "weight_gb") == pytest.approx(weight / 1e9)
        assert row(counts, name, "traffic_gb_per_seq") == pytest.approx(traffic / 1e9)
        assert row(counts, name, "message_mb_per_seq") == pytest.approx(message / 1e6)
        assert row(counts, name, "wire_gb_per_seq") == pytest.approx(wire / 1e9)
        assert row(counts, name, "ranks") == (2 if message else 1)
        assert row(counts, name, "repeats") == (1 if name in ("embedding", "lm_head") else 3)
        assert row(counts, name, "launches") == (2 if name == "elementwise" else 1)


# --- collectives --------------------------------------------------------------------------------


def test_all_reduce_bytes_of_both_algorithms():
    # nccl-tests 212, 238, 274, 279; 64 tokens of Llama-3.1-70B
    message = 64 * 8192 * 2
    assert all_reduce_wire(message, 8) == all_reduce_wire(message, 8, "ring") == 1_835_008
    assert all_reduce_wire(message, 8, "in-network") == 1_179_648
    assert all_gather_wire(message, 8) == 917_504


@pytest.mark.parametrize("algorithm", ["ring", "in-network"])
def test_one_device_sends_nothing(algorithm):
    assert all_reduce_wire(1e6, 1, algorithm) == 0
    assert all_gather_wire(1e6, 1) == 0


def test_unknown_all_reduce_is_refused_with_the_nearest_name():
    with pytest.raises(UserError, match="did you mean ring"):
        all_reduce_wire(1.0, 8, "rings")
    with pytest.raises(UserError, match="in-network"):
        build_pools(workload(), 1, 1, collective="tree")


@pytest.mark.parametrize(("algorithm", "per_layer"), [("ring", 2 * 28_672), ("in-network", 36_864)])
def test_decode_step_sends_two_messages_a_layer(algorithm, per_layer):
    # 64 sequences: 2 * 80 times 1,835,008 bytes with the ring
    counts = decode_operators(workload(), 8, algorithm)
    sent = row(counts, "output", "wire_gb_per_seq") + row(counts, "down", "wire_gb_per_seq")
    assert sent * 1e9 == pytest.approx(per_layer, rel=1e-14)
    assert row(counts, "down", "message_mb_per_seq") * 1e6 == pytest.approx(8192 * 2, rel=1e-14)


@pytest.mark.parametrize("phase", [prefill_operators, decode_operators])
def test_161_all_reduces_and_a_gather_per_step(phase):
    # aiconfigurator 604 and 1064
    counts = phase(workload(), 8)
    calls = dict(zip(counts.names, counts.repeats * counts.collectives, strict=True))
    assert calls.pop("lm_head") == 1
    assert sum(calls.values()) == 161
    assert row(counts, "lm_head", "message_mb_per_seq") * 1e6 == pytest.approx(128_256 * 2)
    assert row(counts, "lm_head", "wire_gb_per_seq") * 1e9 == pytest.approx(128_256 * 2 * 7 / 8)
    alone = phase(workload(), 1)
    assert total(alone, "collectives") == 0
    assert total(alone, "wire_gb_per_seq") == 0
    assert set(np.asarray(alone.ranks)) == {1.0}


# --- tensor-parallel degrees --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heads", "tp", "valid"),
    [(64, 3, (1, 2, 4, 8, 16, 32, 64)), (52, 8, (1, 2, 4, 13, 26, 52))],
)
def test_degree_that_does_not_divide_the_heads_is_refused(heads, tp, valid):
    # vllm 596, 2652, 5003
    model = variant(heads=heads, kv_heads=4, ffn=heads * 32)
    assert model.tensor_parallel_degrees(1000) == valid
    assert model.tensor_parallel_degrees(8) == tuple(n for n in valid if n <= 8)
    with pytest.raises(UserError) as caught:
        model.check_tensor_parallel(tp, "--tp")
    message = str(caught.value)
    assert message.startswith("--tp:")
    assert "num_attention_heads" in message
    assert ", ".join(map(str, valid)) in message


def test_degree_that_does_not_divide_the_mlp_is_refused():
    model = variant(heads=64, ffn=4096 + 4)
    with pytest.raises(UserError, match=r"intermediate_size 4100 .* allowed: 1, 2, 4$"):
        model.check_tensor_parallel(8)


@pytest.mark.parametrize("tp", [3, 0, -8, True, 8.0, "8", None, 128])
def test_no_count_is_given_for_an_impossible_degree(tp):
    model = read_transformer("llama-3.1-70b")
    for count in (weight_bytes_per_device, kv_bytes_per_token):
        with pytest.raises(UserError):
            count(model, BF16, tp)
    for phase in (prefill_operators, decode_operators):
        with pytest.raises(UserError):
            phase(workload(), tp)
    with pytest.raises(UserError, match="tp_decode"):
        build_pools(workload(), 1, tp)


# --- pools --------------------------------------------------------------------------------------


def test_pools_hold_and_run_what_the_request_needs():
    served = workload(prompt=1500.0, output=500.0, precision=FP8, ttft_ms=1000.0, tbt_ms=50.0)
    prefill, decode = build_pools(served, 2, 8)
    model = served.transformer
    for pool, tp in ((prefill, 2), (decode, 8)):
        assert float(pool.devices) == tp
        assert float(pool.weights_gb) * 1e9 == weight_bytes_per_device(model, FP8, tp)
    # 2 * 80 * 128 bytes per token and head: four heads in prefill, one in decode
    assert float(prefill.kv_gb_per_seq) * 1e9 == pytest.approx(1500 * 81_920)
    assert float(decode.kv_gb_per_seq) * 1e9 == pytest.approx(2000 * 20_480)
    assert float(prefill.sent_gb_per_seq) == float(prefill.kv_gb_per_seq)
    assert float(prefill.handover_gb_per_seq) == float(prefill.kv_gb_per_seq)
    assert float(decode.sent_gb_per_seq) == float(decode.handover_gb_per_seq) == 0
    assert float(prefill.executions_per_token) == 1 / 500
    assert float(decode.executions_per_token) == pytest.approx(499 / 500)
    assert (float(prefill.limit_ms), float(decode.limit_ms)) == (1000, 50)


def test_hand_over_is_bound_by_the_end_with_more_cache_per_device():
    served = workload(prompt=1500.0, output=500.0)
    prefill, _ = build_pools(served, 8, 2)
    assert float(prefill.handover_gb_per_seq) == pytest.approx(4 * float(prefill.kv_gb_per_seq))
    assert float(prefill.sent_gb_per_seq) == float(prefill.kv_gb_per_seq)


def test_decode_alone_leaves_a_prefill_pool_that_never_binds():
    prefill, decode = build_pools(workload(pools="decode", ttft_ms=1.0), 1, 8)
    assert float(prefill.executions_per_token) == 0
    assert float(decode.executions_per_token) == 1
    assert float(prefill.limit_ms) == NO_LIMIT_MS
    assert float(prefill.sent_gb_per_seq) == float(prefill.handover_gb_per_seq) == 0
    assert max(float(prefill.weights_gb), float(prefill.kv_gb_per_seq)) < 1e-20


def test_one_output_token_needs_no_decode():
    # aiconfigurator 1229
    prefill, decode = build_pools(workload(output=1.0), 1, 1)
    assert float(prefill.executions_per_token) == 1
    assert float(decode.executions_per_token) == 0
