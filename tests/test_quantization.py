"""Formats that quantised checkpoints ask for: exact bits by part, and one-line refusals.

Lists and settings are shortened copies of published files, whose names stand beside them.
"""

import subprocess
import sys
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litegpu_opt.errors import UserError
from litegpu_opt.workload.config_file import ConfigFile
from litegpu_opt.workload.formats import FORMATS, PARTS
from litegpu_opt.workload.quantization import read_quantization
from litegpu_opt.workload.quantization_methods import ALGORITHMS, METHODS
from litegpu_opt.workload.transformer import (
    DenseMlp,
    Experts,
    GroupedAttention,
    LatentAttention,
    Layer,
    Transformer,
)


GROUPED = GroupedAttention(heads=8, kv_heads=8, head_dim=8)
LATENT = LatentAttention(
    heads=8, query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128
)
DENSE_MLP = DenseMlp(width=64, gated=True)


def model_of(*layers, tied=False):
    return Transformer("drawn", "drawn", 64, 100, layers, 64, tied_embeddings=tied)


def experts(count, **more):
    return Experts(count, per_token=1, width=64, **more)


DENSE = model_of(*[Layer(GROUPED, DENSE_MLP)] * 3)
MIXTRAL = model_of(*[Layer(GROUPED, experts(8))] * 3)
QWEN = model_of(*[Layer(GROUPED, experts(128))] * 3)
DEEPSEEK = model_of(
    *[Layer(LATENT, DENSE_MLP)] * 3, *[Layer(LATENT, experts(256, shared_width=64))] * 2
)
GPT_OSS = model_of(*[Layer(GROUPED, experts(128))] * 36)
BLOCKS = ("attention", "mlp")


def read(model, table=None, beside=None):
    """Parts with their formats, and the format of the KV cache."""
    config = ConfigFile(dict(quantization_config=table), "config.json", "drawn")
    other = beside and ConfigFile(beside, "hf_quant_config.json", "drawn")
    parts, kv = read_quantization(model, config, other)
    assert len(dict(parts)) == len(parts)
    assert set(dict(parts)) <= set(PARTS) - {"embedding"}
    return dict(parts), kv


def bits(model, table=None, beside=None):
    return {part: item.bits for part, item in read(model, table, beside)[0].items()}


def same(parts, value):
    return dict.fromkeys(parts, Fraction(value))


def refusal(model, table=None, beside=None) -> str:
    with pytest.raises(UserError) as caught:
        read(model, table, beside)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(("config.json:", "hf_quant_config.json:"))
    return message


def compressed(*, ignore=("lm_head",), targets=("Linear",), activations=None, **weights):
    weights = dict(num_bits=8, type="float") | weights
    group = dict(targets=list(targets), weights=weights, input_activations=activations)
    return dict(
        quant_method="compressed-tensors", format="float-quantized", ignore=list(ignore),
        config_groups=dict(group_0=group), quantization_status="compressed",
    )  # fmt: skip


def modelopt(algorithm, exclude=("lm_head",), **more):
    """An hf_quant_config.json."""
    stated = dict(quant_algo=algorithm, exclude_modules=list(exclude)) | more
    return dict(producer=dict(name="modelopt", version="0.23.0"), quantization=stated)


# --- golden numbers -----------------------------------------------------------------------------


def test_gpt_oss_experts_to_the_byte():
    """Weight total 65,248,815,744 B in the output of alvarobartt/hf-mem issue 60."""
    keep = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"]
    table = dict(quant_method="mxfp4", modules_to_not_convert=[*keep, "lm_head"])
    parts, kv = read(GPT_OSS, table)
    assert parts == {"experts": FORMATS["mxfp4"]} and kv is None
    experts = 36 * 128 * 3 * 2880**2
    assert experts == 114_661_785_600
    assert experts * parts["experts"].bytes == 60_914_073_600
    assert 60_914_073_600 + 2 * (116_829_156_672 - experts) == 65_248_815_744


def test_llama_fp8_dynamic_to_the_byte():
    """Llama-3.3-70B-Instruct-FP8-dynamic: vLLM loads 67.72 GiB (llm-d-benchmark issue 345)."""
    table = compressed(strategy="channel", activations=dict(num_bits=8, type="float"))
    parts, kv = read(DENSE, table)
    assert parts == dict.fromkeys(BLOCKS, FORMATS["fp8"]) and kv is None
    total = 68_451_041_280 * parts["mlp"].bytes + 2 * (2 * 1_050_673_152 + 1_318_912)
    assert total == 72_656_371_712


def test_llama_fp8_of_modelopt():
    """nvidia/Llama-3.1-70B-Instruct-FP8 has nothing in its config.json."""
    parts, kv = read(DENSE, beside=modelopt("FP8", kv_cache_quant_algo="FP8"))
    assert parts == dict.fromkeys(BLOCKS, FORMATS["fp8"])
    assert kv == FORMATS["fp8"] and parts["mlp"].eight_bit_math


def test_deepseek_blocks():
    table = dict(
        quant_method="fp8", weight_block_size=[128, 128], activation_scheme="dynamic", fmt="e4m3"
    )
    parts, kv = read(DEEPSEEK, table)
    assert parts == dict.fromkeys((*BLOCKS, "experts"), FORMATS["fp8-block128"]) and kv is None
    assert parts["experts"].bits == Fraction(4097, 512)


# --- every method, exact bits -------------------------------------------------------------------


def test_nothing_said_is_nothing_quantised():
    for nothing in (None, {}):
        assert read(DENSE, nothing) == ({}, None)
    assert read_quantization(DENSE, ConfigFile({}, "config.json", "drawn"), None) == ((), None)


@pytest.mark.parametrize(
    "block, expected", [(None, 8), ([64, 256], 8 + Fraction(32, 64 * 256)), ([1, 128], 8.25)]
)
def test_fp8(block, expected):
    table = dict(quant_method="fp8", weight_block_size=block, activation_scheme="static")
    parts, _ = read(MIXTRAL, table)
    assert bits(MIXTRAL, table) == same(("attention", "experts"), expected)
    assert all(item.eight_bit_math for item in parts.values())


@pytest.mark.parametrize("method", ["gptq", "awq"])
@pytest.mark.parametrize(
    "size, expected, name",
    [(128, 4.15625, "int4-g128"), (32, 4.625, "int4-g32"), (-1, 4, "int4")],
)
def test_gptq_and_awq(method, size, expected, name):
    table = dict(quant_method=method, bits=4, group_size=size, zero_point=True, version="gemm")
    parts, kv = read(DENSE, table)
    assert bits(DENSE, table) == same(BLOCKS, expected) and kv is None
    assert {item.name for item in parts.values()} == {name}
    assert bits(DENSE, table | dict(lm_head=True)) == same((*BLOCKS, "head"), expected)
    assert bits(DENSE, table | dict(lm_head=False)) == same(BLOCKS, expected)


@pytest.mark.parametrize("width", [2, 3, 4, 8])
def test_gptq_widths(width):
    table = dict(quant_method="gptq", bits=width, group_size=64, sym=True, desc_act=True)
    assert bits(DENSE, table) == same(BLOCKS, width + Fraction(16 + width, 64))


def test_bitsandbytes():
    base = dict(quant_method="bitsandbytes", llm_int8_threshold=6.0, load_in_8bit=False)
    four = base | dict(load_in_4bit=True, _load_in_4bit=True, bnb_4bit_quant_type="nf4")
    assert bits(DENSE, four) == same(BLOCKS, 4.5)
    double = four | dict(bnb_4bit_use_double_quant=True)
    assert bits(DENSE, double) == same(BLOCKS, 4 + Fraction(8, 64) + Fraction(32, 64 * 256))
    assert read(DENSE, double)[0]["mlp"].name == "nf4-double"
    eight = dict(quant_method="bitsandbytes", load_in_8bit=True, llm_int8_skip_modules=["lm_head"])
    assert read(DENSE, eight)[0] == dict.fromkeys(BLOCKS, FORMATS["int8"])


@pytest.mark.parametrize(
    "weights, expected, name",
    [
        (dict(), 8, "fp8-a16"),
        (dict(strategy="channel", type="int"), 8, "int8"),
        (dict(num_bits=4, type="int", group_size=128, strategy="group"), 4.125, "int4-g128"),
        (dict(num_bits=4, type="int", group_size=128, symmetric=False), 4.15625, "int4-g128"),
        (dict(num_bits=4, type="int", group_size=-1, strategy="channel"), 4, "int4"),
        (dict(num_bits=4, group_size=16, strategy="tensor_group"), 4.5, "nvfp4"),
        (dict(num_bits=4, group_size=32, scale_dtype="torch.uint8"), 4.25, "mxfp4"),
        (dict(group_size=32, scale_dtype="torch.uint8"), 8.25, "fp8-g32-a16"),
        (dict(group_size=128, scale_dtype="torch.float32"), 8.25, "fp8-g128-a16"),
        (
            dict(strategy="block", block_structure=[128, 128]),
            Fraction(4097, 512),
            "fp8-block128-a16",
        ),
    ],
)
def test_compressed_tensors(weights, expected, name):
    table = compressed(**weights)
    assert bits(DENSE, table) == same(BLOCKS, expected)
    assert {item.name for item in read(DENSE, table)[0].values()} == {name}
    assert bits(DENSE, compressed(ignore=(), **weights)) == same((*BLOCKS, "head"), expected)


@pytest.mark.parametrize(
    "weights, name",
    [
        (dict(), "fp8"),
        (dict(strategy="block", block_structure=[128, 128]), "fp8-block128"),
        (dict(type="int", strategy="channel"), "int8-a8"),
        (dict(num_bits=4, type="int", group_size=128), "int4-g128-a8"),
    ],
)
def test_eight_bit_activations(weights, name):
    table = compressed(activations=dict(num_bits=8, type="float", dynamic=True), **weights)
    item = read(DENSE, table)[0]["mlp"]
    assert item.eight_bit_math and item.name == name
    assert item.name not in FORMATS or item == FORMATS[item.name]
    narrow = compressed(activations=dict(num_bits=4), num_bits=4, group_size=16)
    assert read(DENSE, narrow)[0]["mlp"] == FORMATS["nvfp4"]


def test_groups_with_formats_of_their_own():
    table = compressed()
    groups = table["config_groups"]
    groups["group_1"] = dict(
        targets=["re:.*self_attn.(q|k|v|o)_proj$"],
        weights=dict(num_bits=4, type="int", group_size=128),
    )
    assert bits(DENSE, table) == {"attention": Fraction("4.125"), "mlp": 8}
    del groups["group_0"]
    assert bits(DENSE, table) == {"attention": Fraction("4.125")}


@pytest.mark.parametrize(
    "scheme, expected",
    [
        (None, None),
        (dict(num_bits=8, type="float", strategy="tensor", dynamic=False), "fp8"),
        (dict(num_bits=8, type="int"), "int8"),
        ("FP8", "fp8"),
        ("NVFP4", "nvfp4"),
    ],
)
def test_kv_cache(scheme, expected):
    table = compressed() | dict(kv_cache_scheme=scheme)
    assert read(DENSE, table)[1] == (expected and FORMATS[expected])


@pytest.mark.parametrize(
    "algorithm, more, expected, name",
    [
        ("FP8", {}, 8, "fp8"),
        ("FP8_PER_CHANNEL_PER_TOKEN", {}, 8, "fp8"),
        ("FP8_PB_WO", {}, Fraction(4097, 512), "fp8-block128-a16"),
        ("MXFP8", {}, 8.25, "fp8-g32"),
        ("NVFP4", dict(group_size=16), 4.5, "nvfp4"),
        ("NVFP4", {}, 4.5, "nvfp4"),
        ("NVFP4", dict(group_size=32), 4.25, "mxfp4"),
        ("W4A16_NVFP4", {}, 4.5, "nvfp4"),
        ("NVFP4_AWQ", dict(has_zero_point=False, pre_quant_scale=True), 4.5, "nvfp4"),
        ("W4A8_MXFP4_FP8", {}, 4.25, "mxfp4-a8"),
        ("W4A16_AWQ", dict(group_size=128, has_zero_point=False), 4.125, "int4-g128"),
        ("W4A16_AWQ", dict(group_size=64, has_zero_point=False), 4.25, "int4-g64"),
        ("W4A8_AWQ", {}, 4.125, "int4-g128-a8"),
        ("W8A16", {}, 8, "int8"),
        ("W8A8_SQ_PER_CHANNEL", {}, 8, "int8-a8"),
    ],
)
def test_modelopt(algorithm, more, expected, name):
    beside = modelopt(algorithm, **more)
    parts, kv = read(DENSE, beside=beside)
    assert bits(DENSE, beside=beside) == same(BLOCKS, expected) and kv is None
    assert {item.name for item in parts.values()} == {name}


def test_every_algorithm_and_method_is_tested_here():
    tested = test_modelopt.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {case[0] for case in tested} == set(ALGORITHMS)
    assert set(METHODS) == {case["quant_method"] for case in VALID} | {"modelopt_fp4"}


def test_cache_alone():
    parts, kv = read(DENSE, beside=modelopt(None, kv_cache_quant_algo="INT8"))
    assert parts == {} and kv == FORMATS["int8"]


# --- lists of modules ---------------------------------------------------------------------------


def numbered(*names, layers=range(3)):
    return [f"model.layers.{layer}.{name}" for layer in layers for name in names]


@pytest.mark.parametrize(
    "model, ignore, expected",
    [
        (DENSE, ["lm_head"], BLOCKS),
        (DENSE, ["re:.*lm_head"], BLOCKS),
        (DENSE, ["language_model.lm_head", "re:vision_tower.*", "re:multi_modal.*"], BLOCKS),
        (DENSE, ["*lm_head*", "visual", "model.visual*", "model.vision_tower*"], BLOCKS),
        (DENSE, ["model.embed_tokens", "LlamaRMSNorm", "mtp*"], (*BLOCKS, "head")),
        (DENSE, ["lm_head", "model.layers.*.self_attn"], ("mlp",)),
        (DENSE, ["lm_head", "*self_attn*"], ("mlp",)),
        (DENSE, ["lm_head", "self_attn"], ("mlp",)),
        (DENSE, ["lm_head", *numbered("self_attn*")], ("mlp",)),
        (DENSE, ["lm_head", *numbered("self_attn.qkv_proj", "self_attn.o_proj")], ("mlp",)),
        (DENSE, ["re:.*"], ()),
        # Lists may name modules that a model does not have, and layers after its last.
        (DENSE, ["lm_head", "re:.*mlp.gate$", "*router*", "re:.*block_sparse_moe.gate"], BLOCKS),
        (DENSE, ["lm_head", "model.layers.3*", "model.layers.3.eh_proj"], BLOCKS),
        (MIXTRAL, ["lm_head", "re:.*block_sparse_moe.gate"], ("attention", "experts")),
        (MIXTRAL, ["lm_head", "gate"], ("attention", "experts")),
        (MIXTRAL, ["lm_head"], ("attention", "experts")),
        (MIXTRAL, ["lm_head", "re:.*block_sparse_moe.*"], ("attention",)),
        (QWEN, ["lm_head", *numbered("mlp.gate")], ("attention", "experts")),
        (QWEN, ["lm_head", "re:.*mlp.experts.*"], ("attention",)),
        (QWEN, ["lm_head", "re:.*mlp.experts$"], ("attention",)),
        (
            QWEN,
            ["lm_head"]
            + [
                f"model.layers.{layer}.mlp.experts.{expert}.{name}"
                for layer in range(3)
                for expert in range(128)
                for name in ("gate_proj", "up_proj", "down_proj")
            ],
            ("attention",),
        ),
        # moonshotai/Kimi-K2.5
        (
            DEEPSEEK,
            ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"]
            + ["re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
            ("experts",),
        ),
        # nvidia/GLM-5.1-NVFP4: dense layers and shared experts are left, one by one
        (
            DEEPSEEK,
            ["lm_head", "model.layers.0*", "model.layers.1.*", "model.layers.2.*"]
            + numbered("self_attn*", "mlp.shared_experts*", layers=(3, 4)),
            ("experts",),
        ),
        # nvidia/GLM-5-NVFP4
        (
            DEEPSEEK,
            ["lm_head", "model.layers.5*"]
            + [f"model.layers.{layer}.self_attn.indexer*" for layer in range(5)]
            + numbered(
                *("self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj", "self_attn.o_proj"),
                *("self_attn.q_a_proj", "self_attn.q_b_proj"),
                layers=range(5),
            ),
            ("mlp", "experts"),
        ),
    ],
)
def test_what_is_left_out(model, ignore, expected):
    assert bits(model, compressed(ignore=ignore)) == same(expected, 8)
    assert bits(model, beside=modelopt("FP8", ignore)) == same(expected, 8)


@pytest.mark.parametrize(
    "model, ignore",
    [
        (DENSE, "model.layers.0.self_attn"),
        (DENSE, "model.layers.1*"),
        (DENSE, "re:.*layers\\.0\\..*"),
        (DENSE, "re:.*down_proj"),
        (DENSE, "*.o_proj"),
        (DENSE, "re:model\\.layers\\.[0-1]\\.mlp.*"),
        (MIXTRAL, "*experts.0.*"),
        (MIXTRAL, "re:.*w2$"),
        (QWEN, "model.layers.1.mlp.experts"),
        (DEEPSEEK, "re:.*shared_experts.*"),
        (DEEPSEEK, "re:.*kv_b_proj"),
    ],
)
def test_pieces_of_a_part_are_refused(model, ignore):
    message = refusal(model, compressed(ignore=["lm_head", ignore]))
    assert "apart from the others" in message and "one format for all matrices" in message
    assert repr(ignore) in message and message.startswith("config.json:quantization_config.ignore")
    assert "hf_quant_config.json:quantization.exclude_modules:" in refusal(
        model, beside=modelopt("FP8", [ignore])
    )


def test_latent_attention_with_only_the_last_matrix_converted():
    """nvidia/DeepSeek-V3.1-NVFP4 converts o_proj, but not the others of attention."""
    names = ("kv_a_proj_with_mqa", "kv_b_proj", "q_a_proj", "q_b_proj")
    listed = numbered(*(f"self_attn.{name}" for name in names), layers=range(5))
    message = refusal(DEEPSEEK, beside=modelopt("NVFP4", ["lm_head", "model.layers.5*", *listed]))
    assert "matrices of attention" in message


@pytest.mark.parametrize(
    "model, ignore",
    [
        (DENSE, "lm_haed"),
        (DENSE, "model.layers.0.self_atn"),
        (DENSE, "*linear_attn*"),
        (DENSE, "re:.*mixer.*"),
        (DENSE, "model.layers.0.mlp.experts.5.foo"),
        (MIXTRAL, "*experts.5.*"),
    ],
)
def test_patterns_that_match_nothing_are_refused(model, ignore):
    message = refusal(model, compressed(ignore=[ignore]))
    assert repr(ignore) in message
    assert "matches no module that is known" in message or "not all are named" in message


def test_some_experts_are_refused():
    names = [f"model.layers.0.block_sparse_moe.experts.{expert}.w1" for expert in range(7)]
    assert "not all are named" in refusal(MIXTRAL, compressed(ignore=names))


def test_routers_are_converted_where_they_are_targets():
    assert "router" not in bits(MIXTRAL, compressed(ignore=()))
    targets = ("re:.*block_sparse_moe.gate$", "re:.*self_attn.*")
    assert bits(MIXTRAL, compressed(targets=targets)) == same(("attention", "router"), 8)


def test_tied_head_is_the_embedding():
    tied = model_of(*DENSE.layers, tied=True)
    assert bits(tied, compressed(ignore=())) == same(BLOCKS, 8)
    assert bits(tied, compressed(ignore=["lm_head"])) == same(BLOCKS, 8)


def test_methods_that_leave_routers_and_head_need_no_list():
    table = dict(quant_method="fp8", modules_to_not_convert=numbered("mlp.gate", layers=[1]))
    assert bits(QWEN, table) == same(("attention", "experts"), 8)


# --- regular expressions ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["re:(", "re:[", "re:*", "re:a{2,1}", "re:(?P<", "re:\\", "re:[[a]"]
)
def test_invalid_expressions_are_refused(text):
    assert "is not a regular expression" in refusal(DENSE, compressed(ignore=[text]))


@pytest.mark.parametrize(
    "text",
    [
        "re:(.*)*x",
        "re:(a|a)+$",
        "re:(?:[a-z.]+)+x",
        "re:(?x)(a|a) *x",
        "re:" + ".*" * 40 + "x",
        "re:" + ".?" * 40 + "x",
        "re:" + "(.|.)" * 40 + "x",
        "re:(.|.){40}x",
    ],
)
def test_expressions_that_could_take_forever_are_refused(text):
    assert "could take too long" in refusal(DENSE, compressed(ignore=[text]))


def test_expressions_in_use_are_not_among_them():
    listed = [
        "re:.*layers\\.(?:[0-9]|[1-9][0-9]+)\\.self_attn\\.(q|k|v|o)_proj$",
        "re:^(?!.*(self_attn|mlp)).*lm_head.*$",
        "re:.*mlp\\.experts\\.\\d+\\.(gate|up|down)_proj$",
    ]
    assert bits(QWEN, compressed(ignore=listed)) == {}


def test_long_and_many_patterns_are_bounded():
    assert "1 to 300" in refusal(DENSE, compressed(ignore=["re:" + "a" * 300]))
    assert "1 to 300" in refusal(DENSE, compressed(ignore=[""]))
    assert "1000" in refusal(DENSE, compressed(ignore=[f"*.x{n}" for n in range(1001)]))


# --- two files ----------------------------------------------------------------------------------


def test_two_files_that_agree():
    """config.json of Qwen/Qwen3-32B-FP8-Static-PerTensor: no method, and an algorithm's name."""
    activations = dict(dynamic=False, num_bits=8, type="float")
    group = dict(input_activations=activations, weights=activations)
    table = dict(
        config_groups=dict(group_0=group), ignore=["lm_head"], quant_algo="FP8",
        kv_cache_scheme="FP8", producer=dict(name="modelopt", version="0.31.0"),
    )  # fmt: skip
    beside = modelopt("FP8", kv_cache_quant_algo="FP8")
    alone, kv = read(DENSE, table)
    assert read(DENSE, table, beside) == (alone, kv) == read(DENSE, beside=beside)
    assert kv == FORMATS["fp8"]
    wrong = table | dict(quant_algo="NVFP4")
    assert "config_groups: contradicts quant_algo" in refusal(DENSE, wrong)
    both = table | dict(kv_cache_quant_algo="NVFP4")
    assert "contradicts kv_cache_quant_algo" in refusal(DENSE, both)


@pytest.mark.parametrize(
    "beside",
    [
        modelopt("NVFP4"),
        modelopt("FP8", []),
        modelopt("FP8", ["lm_head", "*self_attn*"]),
        modelopt("FP8", kv_cache_quant_algo="FP8"),
        modelopt(None),
    ],
)
def test_two_files_that_differ(beside):
    table = dict(quant_method="modelopt", quant_algo="FP8", ignore=["lm_head"])
    assert read(DENSE, table, modelopt("FP8")) == read(DENSE, table)
    message = refusal(DENSE, table, beside)
    assert "but in config.json: attention fp8, mlp fp8, KV cache not quantised" in message
    assert message.startswith("hf_quant_config.json:quantization: ")


# --- refusals -----------------------------------------------------------------------------------

VALID = [
    dict(quant_method="fp8", weight_block_size=[128, 128], modules_to_not_convert=["lm_head"]),
    dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn"]),
    dict(quant_method="gptq", bits=4, group_size=128, lm_head=False),
    dict(quant_method="awq", bits=4, group_size=128, modules_to_not_convert=["gate"]),
    dict(
        quant_method="bitsandbytes", load_in_4bit=True, load_in_8bit=False,
        bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, llm_int8_skip_modules=None,
    ),
    compressed(num_bits=4, group_size=32, strategy="group", symmetric=True, block_structure=None),
    dict(
        quant_method="modelopt", quant_algo="NVFP4", group_size=16, ignore=["lm_head"],
        kv_cache_scheme=dict(num_bits=8, type="float"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    "table, key, part",
    [
        ("fp8", "", "not a JSON object"),
        (dict(bits=4), "quant_method", "missing; allowed: fp8, mxfp4, gptq, awq, bitsandbytes"),
        (dict(quant_method="hqq"), "quant_method", "'hqq' is not understood; allowed: fp8"),
        (dict(quant_method=["fp8"]), "quant_method", "is not understood"),
        (VALID[0] | dict(weight_block_size=[128]), "weight_block_size", "not a block"),
        (VALID[0] | dict(weight_block_size=[128, 0]), "weight_block_size", "1 to 65535"),
        (VALID[0] | dict(weight_block_size=[128, True]), "weight_block_size", "True is not"),
        (VALID[0] | dict(weight_block_size=128), "weight_block_size", "128 is not a list"),
        (VALID[0] | dict(activation_scheme="some"), "activation_scheme", "dynamic, static"),
        *(
            (VALID[0] | dict(modules_to_not_convert=value), "modules_to_not_convert", "a list")
            for value in ("lm_head", "", 0, 1.5, {}, False, True)
        ),
        (VALID[0] | dict(modules_to_not_convert=[1]), "modules_to_not_convert", "a list"),
        (VALID[0] | dict(moe_quant_algo="NVFP4"), "moe_quant_algo", "may change sizes"),
        (dict(quant_method="gptq", group_size=128), "bits", "missing; allowed: 2, 3, 4, 8"),
        (VALID[2] | dict(bits=5), "bits", "5 is not understood; allowed: 2, 3, 4, 8"),
        (VALID[2] | dict(bits=4.0), "bits", "4.0 is not understood"),
        (VALID[3] | dict(bits=3), "bits", "allowed: 4, 8"),
        (VALID[2] | dict(group_size=0), "group_size", "allowed: 1 to 65535"),
        (VALID[2] | dict(group_size=-2), "group_size", "allowed: 1 to 65535"),
        (VALID[2] | dict(group_size=None), "group_size", "missing"),
        (VALID[2] | dict(group_size=True), "group_size", "True is not understood"),
        (VALID[2] | dict(lm_head=1), "lm_head", "not a boolean"),
        (VALID[2] | dict(dynamic={"+:.*": dict(bits=8)}), "dynamic", "may change sizes"),
        (VALID[4] | dict(load_in_8bit=True), "load_in_4bit", "one has to be true"),
        (VALID[4] | dict(load_in_4bit=False), "load_in_4bit", "one has to be true"),
        (VALID[4] | dict(load_in_4bit="yes"), "load_in_4bit", "true, false"),
        (VALID[4] | dict(bnb_4bit_quant_type="nf5"), "bnb_4bit_quant_type", "nf4, fp4"),
        (VALID[4] | dict(llm_int8_has_fp16_weight=True), "llm_int8_has_fp16_weight", "sizes"),
        (VALID[5] | dict(config_groups=None), "config_groups", "missing"),
        (VALID[5] | dict(config_groups=dict(a=1)), "config_groups.a", "not a JSON object"),
        (VALID[5] | dict(format="dense"), "format", "'dense' is not understood"),
        (VALID[5] | dict(format=None), "format", "missing"),
        (VALID[5] | dict(sparsity_config=dict(format="marlin-24")), "sparsity_config.format", ""),
        (VALID[5] | dict(transform_config=dict(a=1)), "transform_config", "may change sizes"),
        (compressed(num_bits=3), "config_groups.group_0.weights.num_bits", "allowed: 4, 8"),
        (compressed(type="complex"), "config_groups.group_0.weights.type", "int, float"),
        (compressed(strategy="group"), "config_groups.group_0.weights.strategy",
         "group: group_size or block_structure is missing"),
        (compressed(strategy="block"), "config_groups.group_0.weights.strategy",
         "block: group_size or block_structure is missing"),
        (compressed(strategy="tensor", group_size=64), "config_groups.group_0.weights.strategy",
         "tensor: group_size or block_structure is 64"),
        (compressed(group_size=64, scale_dtype="torch.int4"),
         "config_groups.group_0.weights.scale_dtype", "torch.uint8"),
        (compressed(activations=dict(num_bits=9)),
         "config_groups.group_0.input_activations.num_bits", "4, 8, 16"),
        (compressed(targets=["Linear", "Embedding"]), "config_groups.group_0.targets",
         "'Embedding' is converted: a quantised embedding is not understood"),
        (compressed(targets=["LinearBase"]), "config_groups.group_0.targets", "no module"),
        (compressed() | dict(kv_cache_scheme=dict(num_bits=4, type="int")),
         "kv_cache_scheme.num_bits", "allowed: 8"),
        (VALID[6] | dict(quant_algo="INT2"), "quant_algo", "allowed: FP8, FP8_PER_CHANNEL"),
        (VALID[6] | dict(quant_algo="NVFP4_SVD"), "quant_algo", "'NVFP4_SVD' is not understood"),
        (VALID[6] | dict(quant_algo="MIXED_PRECISION"), "quant_algo",
         "'MIXED_PRECISION' is not understood"),
        (VALID[6] | dict(quant_algo="FP8"), "group_size", "16 is not understood"),
        (VALID[6] | dict(kv_cache_scheme="INT3"), "kv_cache_scheme", "FP8, INT8, NVFP4"),
        (VALID[6] | dict(lora_rank=32), "lora_rank", "may change sizes"),
        (VALID[6] | dict(has_zero_point=True), "has_zero_point", "may change sizes"),
        (VALID[6] | dict(quantized_layers=dict(lm_head={})), "quantized_layers", "change sizes"),
    ],
)  # fmt: skip
def test_refusals_name_file_key_and_what_is_allowed(table, key, part):
    message = refusal(DENSE, table)
    assert message.startswith(f"config.json:quantization_config{'.' + key if key else ''}: ")
    assert part in message


def test_refusals_beside():
    assert refusal(DENSE, beside=dict(producer={})) == "hf_quant_config.json:quantization: missing"
    for wrong in ([], 3, "FP8"):
        assert "not a JSON object" in refusal(DENSE, beside=dict(quantization=wrong))
    assert "more: not understood" in refusal(DENSE, beside=modelopt("FP8") | dict(more=1))
    assert "hf_quant_config.json:quantization.quant_algo: 'X'" in refusal(
        DENSE, beside=modelopt("X")
    )


# --- robustness ---------------------------------------------------------------------------------

ODD = st.sampled_from(
    [0, -1, 8, 10**400, True, "", "Linear", "lm_head", "re:(.*)*", "re:.*", "*", "[", "?", "a..b",
     "model.layers.99999999999", "model.layers.0.mlp.experts.1", "\n\x00", "\ud800", 1e400, {}, []]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else []
    for key, item in inner if isinstance(value, dict) else enumerate(value or ()):
        if isinstance(item, dict | list):
            yield from places(item, (*path, key))
        else:
            yield (*path, key)


def replaced(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


def result_or_refusal(model, table=None, beside=None):
    config = ConfigFile(dict(quantization_config=table), "config.json", "drawn")
    other = None if beside is None else ConfigFile(beside, "hf_quant_config.json", "drawn")
    try:
        parts, kv = read_quantization(model, config, other)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert all(part in PARTS and 0 < item.bits < 16 for part, item in parts)
        assert kv is None or kv in FORMATS.values()


BESIDE = modelopt("NVFP4", kv_cache_quant_algo="FP8", group_size=16)


@given(st.data())
def test_any_value_anywhere_gives_a_result_or_one_line(data):
    model = data.draw(st.sampled_from([DENSE, MIXTRAL, QWEN, DEEPSEEK]))
    table = data.draw(st.sampled_from(VALID))
    path = data.draw(st.sampled_from(list(places(table))))
    result_or_refusal(model, replaced(table, path, data.draw(JSON)))


@given(st.data())
def test_any_value_beside_gives_a_result_or_one_line(data):
    path = data.draw(st.sampled_from([path for path in places(BESIDE) if path]))
    result_or_refusal(DENSE, beside=replaced(BESIDE, path, data.draw(JSON)))


@given(st.text("re:.*+?()[]{}|^$\\dw0_lm,-", max_size=40))
def test_any_pattern_is_matched_soon_or_refused(text):
    start = time.monotonic()
    result_or_refusal(DENSE, compressed(ignore=["re:" + text, text]))
    assert time.monotonic() - start < 30


def test_needs_no_jax():
    code = "import sys, litegpu_opt.workload.quantization; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
