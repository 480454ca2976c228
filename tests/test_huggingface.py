"""Files and names that cannot be understood: one line with file and key, never anything else."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_families import CONFIGS, FLAT

import litegpu_opt
from litegpu_opt.errors import UserError
from litegpu_opt.workload.config_file import SPELLINGS, every_spelling
from litegpu_opt.workload.families import FAMILIES
from litegpu_opt.workload.formats import FORMATS
from litegpu_opt.workload.huggingface import read_transformer
from litegpu_opt.workload.memory import parameter_counts
from litegpu_opt.workload.transformer import GroupedAttention


LLAMA, OPT, GPT2 = CONFIGS["llama"], CONFIGS["opt"], CONFIGS["gpt2"]

COUNTS = [
    (family, key) for family in FLAT for key, value in CONFIGS[family].items() if type(value) is int
]
FLAGS = [
    (family, key)
    for family in FLAT
    for key, value in CONFIGS[family].items()
    if type(value) is bool
]
CANONICAL = {other: key for key, others in SPELLINGS.items() for other in others}
OPTIONAL = {
    "head_dim", "word_embed_proj_dim", "num_ln_in_parallel_attn", "decoder_sparse_step",
    "moe_layer_freq", "sliding_window_pattern",
}  # fmt: skip
"""Sizes that a family fixes."""
OPTIONAL_IN = {
    "num_key_value_heads": {"llama", "phi3", "gemma3_text"},
    "num_kv_heads": {"falcon"},
    "num_attention_heads": {"gemma3_text"},
    "vocab_size": {"gemma3_text"},
    "n_inner": {"gpt2", "bloom"},
    "ffn_hidden_size": {"falcon"},
    "num_nextn_predict_layers": {"deepseek_v2", "deepseek_v3", "glm4_moe", "kimi_k2"},
    "num_kv_shared_layers": {"gemma4_text"},
}
"""Sizes that only some families fix."""
QWEN = {"qwen2", "qwen3", "qwen2_moe", "qwen3_moe"}
OFF = {"sliding_window": {"phi3", *QWEN}, "max_window_layers": QWEN}
"""Sizes of what is off where they are missing."""
ZERO = {
    "sliding_window", "max_window_layers", "first_k_dense_replace", "n_shared_experts",
    "num_nextn_predict_layers", "num_kv_shared_layers", "hidden_size_per_layer_input",
}  # fmt: skip
"""Sizes that can be 0."""


@pytest.fixture
def write(tmp_path):
    """Write a config.json into a folder called `drawn` and return its path."""
    folder = tmp_path / "drawn"
    folder.mkdir()

    def write_config(content):
        path = folder / "config.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write_config


def total(model) -> int:
    return parameter_counts(model).total


def refusal(path) -> str:
    with pytest.raises(UserError) as caught:
        read_transformer(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- what is read -------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FLAT)
def test_file_and_folder_give_the_same_model_named_after_the_folder(write, family):
    path = write(CONFIGS[family])
    model = read_transformer(path)
    assert model == read_transformer(path.parent) == read_transformer(str(path))
    assert (model.name, model.family) == ("drawn", family)
    assert (len(model.layers), model.hidden, model.heads) == (2, 64, 8)


def test_file_of_another_name_names_the_model(tmp_path):
    for name in ("my-model", "x" * 250):  # with no room for .hf_quant_config.json
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(LLAMA))
        assert read_transformer(path).name == name


def test_llama_biases_are_counted(write):
    plain = read_transformer(write(LLAMA))
    biased = read_transformer(write(LLAMA | dict(attention_bias=True, mlp_bias=True)))
    per_layer = (8 + 2 * 2) * 8 + 64 + 2 * 128 + 64
    assert total(biased) - total(plain) == 2 * per_layer


def test_llama_defaults_are_echoed(write):
    optional = ("num_key_value_heads", "head_dim", "attention_bias", "mlp_bias")
    left_out = {k: v for k, v in LLAMA.items() if k not in (*optional, "tie_word_embeddings")}
    model = read_transformer(write(left_out))
    attention = model.first.attention
    assert isinstance(attention, GroupedAttention)
    assert attention == GroupedAttention(heads=8, kv_heads=8, head_dim=8)
    assert not model.tied_embeddings
    for fact in (
        "num_key_value_heads = 8",
        "head_dim = 8 (hidden_size / num_attention_heads)",
        "attention_bias = false",
        "mlp_bias = false",
        "tie_word_embeddings = false",
    ):
        assert fact in model.assumed
    assert not any("=" in fact for fact in read_transformer(write(LLAMA)).assumed)


def test_null_stands_for_a_missing_optional_field(write):
    model = read_transformer(write(LLAMA | dict(head_dim=None, num_key_value_heads=None)))
    assert model.first.attention == GroupedAttention(heads=8, kv_heads=8, head_dim=8)


def test_gpt2_defaults_and_both_spellings(write):
    spelt = dict(
        model_type="gpt2", num_hidden_layers=2, hidden_size=64, num_attention_heads=8,
        max_position_embeddings=16, vocab_size=100,
    )  # fmt: skip
    model = read_transformer(write(spelt))
    assert "intermediate_size = 256" in model.assumed
    assert "tie_word_embeddings = true" in model.assumed
    # layers of 4h^2 + 8h^2 and 13h, a last norm, 100 tied rows and 16 positions
    assert total(model) == 2 * (12 * 64**2 + 13 * 64) + 128 + 116 * 64
    assert total(read_transformer(write(GPT2))) == total(model)


def test_opt_without_biases_keeps_those_of_its_norms(write):
    with_bias, without = (read_transformer(write(OPT | dict(enable_bias=b))) for b in (True, False))
    assert total(with_bias) - total(without) == 2 * (4 * 64 + 256 + 64)
    assert with_bias.position_rows == 18


@pytest.mark.parametrize("family", FLAT)
def test_field_that_is_off_is_ignored(write, family):
    expected = read_transformer(write(CONFIGS[family]))
    for off in (None, False, 0, {}, []):
        assert read_transformer(write(CONFIGS[family] | dict(moe_router_window=off))) == expected


def test_field_that_is_not_known_and_looks_harmless_is_echoed(write):
    model = read_transformer(write(LLAMA | dict(tuned_by="somebody")))
    assert "'tuned_by' is not understood, and taken to change no count" in model.assumed


# --- number formats -----------------------------------------------------------------------------


FP8 = dict(quant_method="fp8", activation_scheme="dynamic")


def formats(model) -> dict[str, str]:
    return {part: item.name for part, item in model.quantized}


@pytest.mark.parametrize("family", FLAT)
def test_quantization_of_every_family_is_read(write, family):
    plain = read_transformer(write(CONFIGS[family]))
    model = read_transformer(write(CONFIGS[family] | dict(quantization_config=FP8)))
    assert formats(plain) == {}
    assert formats(model)["attention"] == "fp8"
    assert replace(model, quantized=(), assumed=()) == replace(plain, assumed=())


def test_quantization_inside_or_outside_of_the_nested_text_model(write):
    nested = CONFIGS["gemma3"]
    for place in ("text_config", "llm_config"):
        text = nested["text_config"]
        base = {key: value for key, value in nested.items() if key != "text_config"}
        inside = base | {place: text | dict(quantization_config=FP8)}
        outside = base | {place: text, "quantization_config": FP8}
        for config in (inside, outside):
            assert formats(read_transformer(write(config)))["mlp"] == "fp8"
    bad = dict(quantization_config=dict(quant_method="guess"))
    path = write(nested | bad)
    assert refusal(path).startswith(f"{path}:quantization_config.quant_method: ")
    path = write(nested | dict(text_config=nested["text_config"] | bad))
    assert refusal(path).startswith(f"{path}:text_config.quantization_config.quant_method: ")


BESIDE = dict(quantization=dict(quant_algo="FP8", kv_cache_quant_algo="FP8"))


def test_formats_in_the_file_beside(write, tmp_path):
    path = write(LLAMA)
    (path.parent / "hf_quant_config.json").write_text(json.dumps(BESIDE))
    model = read_transformer(path.parent)
    assert formats(model)["mlp"] == "fp8"
    assert model.kv_format == FORMATS["fp8"]
    named = tmp_path / "mine.json"
    named.write_text(json.dumps(LLAMA))
    assert read_transformer(named).quantized == ()
    (tmp_path / "mine.hf_quant_config.json").write_text(json.dumps(BESIDE))
    assert read_transformer(named).kv_format == FORMATS["fp8"]


@pytest.mark.parametrize("text", ["", "[]", "5", "{}", '{"quantization": {"quant_algo": "FP7"}}'])
def test_bad_file_beside_is_refused_with_its_name(write, text):
    beside = write(LLAMA).parent / "hf_quant_config.json"
    beside.write_text(text)
    assert refusal(beside.parent).startswith(f"{beside}:")


# --- what is refused ----------------------------------------------------------------------------


def test_contradicting_spellings_are_refused(write):
    assert ":num_hidden_layers: contradicts n_layer" in refusal(
        write(GPT2 | dict(num_hidden_layers=3))
    )


NOT_SIZES = [
    0, -1, 8.0, 1.5, True, "64", "", [], {}, [64], 10**8, 10**400, float("nan"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "key"), COUNTS)
def test_bad_size_is_refused_with_file_and_key(write, family, key):
    for value in NOT_SIZES[1:] if key in ZERO else NOT_SIZES:
        path = write(CONFIGS[family] | {key: value})
        assert refusal(path).startswith(f"{path}:{key}: "), value


@pytest.mark.parametrize(("family", "key"), [pair for pair in COUNTS if pair[1] in ZERO])
def test_size_that_can_be_zero(write, family, key):
    read_transformer(write(CONFIGS[family] | {key: 0}))


@pytest.mark.parametrize(("family", "key"), COUNTS)
def test_missing_size_is_refused_or_echoed(write, family, key):
    path = write({k: v for k, v in CONFIGS[family].items() if k != key})
    canonical = CANONICAL.get(key, key)
    if family in OFF.get(key, ()):
        assert read_transformer(path).first.attention.window is None
    elif key in OPTIONAL or family in OPTIONAL_IN.get(key, ()):
        facts = read_transformer(path).assumed
        assert any(fact.startswith(f"{canonical} = ") for fact in facts)
    else:
        assert refusal(path).startswith(f"{path}:{canonical}: missing")


def test_too_many_layers_are_refused(write):
    # every layer is an entry of a tuple
    assert len(read_transformer(write(LLAMA | dict(num_hidden_layers=1000))).layers) == 1000
    path = write(LLAMA | dict(num_hidden_layers=1001))
    assert refusal(path).endswith("allowed: a whole number from 1 to 1000")


@pytest.mark.parametrize(("family", "key"), FLAGS)
def test_bad_flag_is_refused_with_file_and_key(write, family, key):
    for value in (0, 1, "true", [], {}, 1.0):
        path = write(CONFIGS[family] | {key: value})
        assert refusal(path).startswith(f"{path}:{key}: "), value


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (LLAMA | dict(num_key_value_heads=3), "num_key_value_heads"),
        (LLAMA | dict(num_key_value_heads=16), "num_key_value_heads"),
        (LLAMA | dict(head_dim=None, hidden_size=65), "num_attention_heads"),
        (OPT | dict(word_embed_proj_dim=32), "word_embed_proj_dim"),
        (OPT | dict(do_layer_norm_before=False), "do_layer_norm_before"),
        (OPT | dict(layer_norm_elementwise_affine=False), "layer_norm_elementwise_affine"),
        (OPT | dict(_remove_final_layer_norm=True), "_remove_final_layer_norm"),
        (OPT | dict(num_attention_heads=7), "num_attention_heads"),
        (OPT | dict(num_key_value_heads=2), "num_key_value_heads"),
        (GPT2 | dict(add_cross_attention=True), "add_cross_attention"),
        (GPT2 | dict(head_dim=32), "head_dim"),
    ],
)
def test_variant_that_would_be_counted_wrong_is_refused(write, config, key):
    path = write(config)
    assert refusal(path).startswith(f"{path}:{key}: ")


FOREIGN = dict(
    text_config={"a": 1}, vision_config={"b": 1}, num_experts=8, kv_lora_rank=512,
    first_k_dense_replace=3, sliding_window=4096, layer_types=["full_attention"],
    is_encoder_decoder=True, num_nextn_predict_layers=1, block_configs=[{}], mamba_d_state=16,
    lm_head_bias=True, qk_layernorm=True, use_bidirectional_attention=True, index_topk_heads=2,
)  # fmt: skip
NOT_UNDERSTOOD = [
    (family, key) for family in FLAT for key in FOREIGN if key not in FAMILIES[family].understood
]


@pytest.mark.parametrize(("family", "key"), NOT_UNDERSTOOD)
def test_field_of_another_architecture_is_refused(write, family, key):
    path = write(CONFIGS[family] | {key: FOREIGN[key]})
    assert refusal(path).startswith(f"{path}:{key}: not understood")


@pytest.mark.parametrize(("family", "key"), NOT_UNDERSTOOD)
def test_field_of_another_architecture_that_is_null_is_off(write, family, key):
    expected = read_transformer(write(CONFIGS[family]))
    assert read_transformer(write(CONFIGS[family] | {key: None})) == expected


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("foo_moe", dict(foo_experts=4)),
        ("llama4", dict(text_config={"hidden_size": 5376}, interleave_moe_layer_step=1)),
        ("qwen3_next", dict(linear_num_key_heads=16, full_attention_interval=4)),
        ("mamba", dict(state_size=16, conv_kernel=4)),
        ("gemma", {}),
        ("Llama", {}),
        ("", {}),
        (None, dict(text_config={})),
        (5, {}),
        (["llama"], {}),
    ],
)
def test_other_model_types_are_refused_with_type_and_fields(write, model_type, fields):
    """An unknown model was priced as Llama-2-7B."""
    path = write(LLAMA | fields | dict(model_type=model_type))
    message = refusal(path)
    assert message.startswith(f"{path}:model_type: ")
    assert "missing" in message if model_type is None else str(model_type)[:10] in message
    assert all(key in message for key, value in fields.items() if value)
    assert ", ".join(sorted(CONFIGS)) in message


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "5", "null", '"llama"', "[" * 100_000, '{"a": ' + "9" * 5000 + "}"]
)
def test_content_that_is_no_json_object_is_refused_with_the_file(write, text):
    path = write(text)
    assert str(path) in refusal(path)


def test_binary_file_is_refused(write):
    path = write("")
    path.write_bytes(b"\xff\xfe\x00\x81")
    assert "not UTF-8" in refusal(path)


def test_missing_file_is_refused_with_its_path(tmp_path):
    path = tmp_path / "nowhere" / "config.json"
    assert refusal(path).startswith(f"{path}: ")
    assert refusal(tmp_path).startswith(f"{tmp_path}/config.json: ")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("llama-3-70", "llama-3-70b"),
        ("LLAMA3.1-405B", "llama-3.1-405b"),
        ("opt175b", "opt-175b"),
        ("gpt-3", "gpt-3-175b"),
    ],
)
def test_unknown_name_is_refused_with_the_nearest(name, nearest):
    assert f"did you mean {nearest}?" in refusal(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "\0",
        "\0.json",
        "x" * 5000,
        "x" * 5000 + ".json",
        "meta-llama/Nope",
        "~no-such-user/x",
        "~no-such-user",
        "é",
    ],
)
def test_strange_names_are_refused(name):
    refusal(name)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
keys = st.sampled_from(
    sorted(
        {key for family in FAMILIES.values() for key in every_spelling(family.fields)}
        | set(FOREIGN)
        | {"model_type", "text_config", "llm_config", "vision_config", "quantization_config"}
    )
)
changes = st.dictionaries(keys, values | st.sampled_from(sorted(CONFIGS)), max_size=4)


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(family=st.sampled_from(sorted(CONFIGS)), changed=changes, inside=changes, gone=st.sets(keys))
def test_any_file_gives_a_model_or_a_user_error(write, family, changed, inside, gone):
    config = CONFIGS[family] | changed
    if isinstance(config.get("text_config"), dict):
        config["text_config"] = config["text_config"] | inside
    path = write({key: value for key, value in config.items() if key not in gone})
    try:
        model = read_transformer(path)
    except UserError as error:
        assert str(path) in str(error)
    else:
        assert total(model) > 0


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(family=st.sampled_from(sorted(CONFIGS)), data=st.data())
def test_any_single_change_gives_a_model_or_a_user_error(write, family, data):
    config = CONFIGS[family]
    key = data.draw(st.sampled_from(sorted(config)))
    path = write(config | {key: data.draw(values)})
    try:
        model = read_transformer(path)
    except UserError as error:
        assert str(path) in str(error)
    else:
        assert total(model) > 0


def test_name_that_stands_twice_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "hidden_size": 8, "hidden_size": 16}')
    with pytest.raises(UserError, match="'hidden_size' stands there twice"):
        read_transformer(path)


@pytest.mark.parametrize(
    "named", [["Qwen2ForCausalLM"], ["LlamaForSequenceClassification"], "LlamaForCausalLM", [7]]
)
def test_architectures_that_contradict_the_type_are_refused(write, named):
    with pytest.raises(UserError, match="architectures: .* does not go with model_type 'llama'"):
        read_transformer(write(CONFIGS["llama"] | {"architectures": named}))


def test_architectures_of_the_type_are_no_news(write):
    named = CONFIGS["llama"] | {"architectures": ["LlamaForCausalLM"]}
    assert read_transformer(write(named)) == read_transformer(write(CONFIGS["llama"]))


def test_architectures_may_be_those_of_the_type_whose_code_runs(write):
    """Files of Kimi K2 name DeepSeek-V3's, which others may not."""
    named = {"architectures": ["DeepseekV3ForCausalLM"]}
    kimi = CONFIGS["kimi_k2"]
    assert read_transformer(write(kimi | named)) == read_transformer(write(kimi))
    path = write(CONFIGS["glm4_moe"] | named)
    assert refusal(path).startswith(f"{path}:architectures: ")


CODER = dict(
    architectures=["Qwen3MoeForCausalLM"], decoder_sparse_step=1, head_dim=128, hidden_size=6144,
    intermediate_size=8192, max_window_layers=62, mlp_only_layers=[], model_type="qwen3_moe",
    moe_intermediate_size=2560, num_attention_heads=96, num_experts=160, num_experts_per_tok=8,
    num_hidden_layers=62, num_key_value_heads=8, qkv_bias=False, shared_expert_intermediate_size=0,
    sliding_window=None, tie_word_embeddings=False, use_qk_norm=True, use_sliding_window=False,
    vocab_size=151936,
)  # fmt: skip
PHI_4 = dict(
    architectures=["Phi3ForCausalLM"], attention_bias=False, hidden_size=5120,
    intermediate_size=17920, max_position_embeddings=16384, model_type="phi3",
    num_attention_heads=40, num_hidden_layers=40, num_key_value_heads=10,
    original_max_position_embeddings=16384, sliding_window=None, tie_word_embeddings=False,
    vocab_size=100352,
)  # fmt: skip
NEMO = dict(
    architectures=["MistralForCausalLM"], head_dim=128, hidden_size=5120, intermediate_size=14336,
    model_type="mistral", num_attention_heads=32, num_hidden_layers=40, num_key_value_heads=8,
    sliding_window=None, tie_word_embeddings=False, vocab_size=131072,
)  # fmt: skip

SMALL_3_2 = dict(
    architectures=["Mistral3ForConditionalGeneration"], dtype="bfloat16", image_token_index=10,
    model_type="mistral3", multimodal_projector_bias=False, projector_hidden_act="gelu",
    spatial_merge_size=2, vision_feature_layer=-1,
    text_config=dict(
        head_dim=128, hidden_size=5120, intermediate_size=32768, model_type="mistral",
        num_attention_heads=32, num_hidden_layers=40, num_key_value_heads=8, sliding_window=None,
        vocab_size=131072,
    ),
    vision_config=dict(hidden_size=1024, model_type="pixtral", num_hidden_layers=24),
)  # fmt: skip


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # 62 (2 * 96 * 128 h + 2 * 8 * 128 h + 256 + 160 * 3 * 2560 h + 160 h + 2h) + 2 V h + h
        (CODER, 480_154_875_392),
        # 40 (2 h^2 + 2 * 10 * 128 h + 3 * 17920 h + 2h) + 2 * 100352 h + h
        (PHI_4, 14_659_507_200),
        # 40 (2 * 32 * 128 h + 2 * 8 * 128 h + 3 * 14336 h + 2h) + 2 * 131072 h + h
        (NEMO, 12_247_782_400),
        # the text model of Mistral-Small-24B
        (SMALL_3_2, 23_572_403_200),
    ],
)
def test_files_of_newer_models_of_a_family(write, config, expected):
    """Qwen3-Coder-480B says that it has no shared expert, Phi-4 is a Phi-3, Mistral-Nemo has heads
    of their own size, Mistral Small 3.2 a vision tower. Published: 480 B, 14.7 B, 12.2 B, 24 B with
    the tower.
    """
    assert total(read_transformer(write(config))) == expected


def test_a_new_family_is_one_file(tmp_path):
    """A copy of the package with one more module reads, counts and lists the new type."""
    package = Path(litegpu_opt.__file__).parent
    copy = tmp_path / "litegpu_opt"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "workload" / "families" / "novel.py").write_text(NOVEL)
    (tmp_path / "config.json").write_text(json.dumps(NOVEL_FILE))
    (tmp_path / "bad.json").write_text(json.dumps(NOVEL_FILE | {"novel_window_size": 4}))
    done = subprocess.run(
        [sys.executable, "-c", READ_NOVEL], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.stderr == ""
    count, listed, refused = done.stdout.splitlines()
    # two layers of attention 2 * 4 * 8 h + 2 * 2 * 8 h, MLP 3 * 32 h beside it, one norm of h and
    # 16 parameters of heads; tied vocabulary of 50, last norm
    h = 16
    assert int(count) == 2 * (64 * h + 32 * h + 96 * h + h + 16) + 50 * h + h
    assert listed == "True"
    assert "bad.json:novel_window_size: not understood in a model of type 'novel'" in refused


NOVEL = """
from ..transformer import Layer
from .family import Family, SHAPE, gated_mlp, grouped_attention, layer_count, rms_model, words


def _read(config):
    kv_heads = config.count("novel_groups")
    heads = grouped_attention(config, kv_heads=kv_heads, head_dim=8, head_norms=True)
    layer = Layer(heads, gated_mlp(config), norms=1, parallel=True)
    return rms_model(config, [layer] * layer_count(config))


NOVEL = Family(("novel",), _read, fields=SHAPE | words("num_key_value_heads head_dim novel_groups"))
"""
NOVEL_FILE = dict(
    model_type="novel", num_hidden_layers=2, hidden_size=16, num_attention_heads=4, novel_groups=2,
    intermediate_size=32, vocab_size=50, tie_word_embeddings=True,
)  # fmt: skip
READ_NOVEL = """
from litegpu_opt.errors import UserError
from litegpu_opt.workload.families import FAMILIES
from litegpu_opt.workload.huggingface import read_transformer
from litegpu_opt.workload.memory import parameter_counts
print(parameter_counts(read_transformer("config.json")).total)
print("novel" in FAMILIES)
try:
    read_transformer("bad.json")
except UserError as error:
    print(error)
"""


def test_method_that_converts_nothing_is_echoed(write):
    idle = CONFIGS["llama"] | {"quantization_config": {"quant_method": "mxfp4"}}
    assert "quantization_config converts no matrix" in read_transformer(write(idle)).assumed
