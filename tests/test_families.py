"""Shapes that small files of every family give, derived by hand from the published architectures.

A failure points at the family's module, or at what `families/family.py` shares between them.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from litegpu_opt.errors import UserError
from litegpu_opt.workload.config_file import ConfigFile, every_spelling
from litegpu_opt.workload.families import FAMILIES
from litegpu_opt.workload.huggingface import read_transformer
from litegpu_opt.workload.operators import stages
from litegpu_opt.workload.parallelism import Parallelism
from litegpu_opt.workload.transformer import (
    DenseMlp,
    Experts,
    GroupedAttention,
    LatentAttention,
    Layer,
)


SIZES = dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=8, vocab_size=100)
GATED = SIZES | dict(intermediate_size=128, num_key_value_heads=2, head_dim=8)
UNTIED = dict(tie_word_embeddings=False)
TIED = dict(tie_word_embeddings=True)
EXPERTS = dict(num_local_experts=4, num_experts_per_tok=2)
SLIDING_OFF = dict(sliding_window=32, use_sliding_window=False, max_window_layers=2)

CONFIGS: dict[str, dict[str, Any]] = dict(
    llama=GATED | UNTIED | dict(attention_bias=False, mlp_bias=False),
    mistral=GATED | UNTIED | dict(sliding_window=None),
    mixtral=GATED | UNTIED | EXPERTS | dict(sliding_window=None),
    phi3=GATED | UNTIED | dict(sliding_window=16),
    qwen2=GATED | UNTIED | SLIDING_OFF,
    qwen3=GATED | UNTIED | SLIDING_OFF | dict(attention_bias=False),
    qwen2_moe=GATED
    | UNTIED
    | SLIDING_OFF
    | EXPERTS
    | dict(
        moe_intermediate_size=32, shared_expert_intermediate_size=48, decoder_sparse_step=1,
        mlp_only_layers=[0], qkv_bias=True,
    ),
    qwen3_moe=GATED
    | UNTIED
    | SLIDING_OFF
    | EXPERTS
    | dict(
        moe_intermediate_size=32, decoder_sparse_step=2, mlp_only_layers=[], attention_bias=False
    ),
    deepseek_v2=SIZES
    | UNTIED
    | EXPERTS
    | dict(
        intermediate_size=128, moe_intermediate_size=32, n_shared_experts=2, moe_layer_freq=1,
        first_k_dense_replace=1, kv_lora_rank=24, q_lora_rank=None, qk_nope_head_dim=16,
        qk_rope_head_dim=4, v_head_dim=12, topk_method="greedy", attention_bias=False,
        num_nextn_predict_layers=0,
    ),
    deepseek_v3=SIZES
    | UNTIED
    | EXPERTS
    | dict(
        intermediate_size=128, moe_intermediate_size=32, n_shared_experts=1, moe_layer_freq=1,
        first_k_dense_replace=1, kv_lora_rank=24, q_lora_rank=40, qk_nope_head_dim=16,
        qk_rope_head_dim=4, v_head_dim=12, topk_method="noaux_tc", attention_bias=False,
        num_nextn_predict_layers=1,
    ),
    glm4_moe=GATED
    | UNTIED
    | EXPERTS
    | dict(
        moe_intermediate_size=32, n_shared_experts=2, first_k_dense_replace=1,
        attention_bias=True, use_qk_norm=True, num_nextn_predict_layers=1,
    ),
    gpt_oss=GATED | UNTIED | EXPERTS | dict(sliding_window=16, attention_bias=True),
    gemma2=GATED | TIED | dict(sliding_window=16, attention_bias=False),
    gemma3_text=GATED | TIED
    | dict(sliding_window=16, sliding_window_pattern=6, attention_bias=False),
    gemma3=dict(
        text_config=GATED | dict(model_type="gemma3_text", sliding_window=16, num_hidden_layers=7),
        vision_config=dict(hidden_size=1152, num_hidden_layers=27),
        mm_tokens_per_image=256,
    ),
    gemma4_text=GATED
    | TIED
    | EXPERTS
    | dict(
        sliding_window=16, global_head_dim=16,
        num_global_key_value_heads=1, attention_k_eq_v=True, enable_moe_block=True,
        moe_intermediate_size=32, attention_bias=False, hidden_size_per_layer_input=0,
        num_kv_shared_layers=0, use_double_wide_mlp=False,
    ),
    gemma4=dict(
        text_config=GATED
        | dict(sliding_window=16, num_hidden_layers=7, global_head_dim=16,
               hidden_size_per_layer_input=None),
        vision_config=dict(hidden_size=1152, num_hidden_layers=27),
        audio_config=None,
        image_token_id=258880,
    ),
    mistral3=dict(
        text_config=GATED | dict(model_type="mistral", sliding_window=None),
        vision_config=dict(hidden_size=1024, num_hidden_layers=24),
        spatial_merge_size=2,
    ),
    opt=SIZES
    | TIED
    | dict(
        ffn_dim=256, max_position_embeddings=16, word_embed_proj_dim=64, enable_bias=True,
        do_layer_norm_before=True, layer_norm_elementwise_affine=True,
        _remove_final_layer_norm=False,
    ),
    gpt2=TIED
    | dict(
        n_layer=2, n_embd=64, n_head=8, n_inner=256, n_positions=16, vocab_size=100,
        add_cross_attention=False,
    ),
    bloom=TIED
    | dict(n_layer=2, n_embed=64, num_attention_heads=8, vocab_size=100, n_inner=256),
    falcon=SIZES
    | TIED
    | dict(
        new_decoder_architecture=True, num_kv_heads=2, ffn_hidden_size=256, bias=False,
        parallel_attn=True, num_ln_in_parallel_attn=2, head_dim=8,
    ),
)  # fmt: skip
"""`model_type` -> a file that states everything, but for those with a nested text model, which rely
on defaults."""
CONFIGS["kimi_k2"] = CONFIGS["deepseek_v3"] | dict(num_nextn_predict_layers=0)
CONFIGS = {name: dict(model_type=name) | config for name, config in CONFIGS.items()}
NESTED = {"gemma3": "gemma3_text", "gemma4": "gemma4_text", "mistral3": "mistral"}
FLAT = [name for name in CONFIGS if name not in NESTED]


@pytest.fixture
def read(tmp_path):
    """Read a `config.json` with these fields."""
    path = tmp_path / "config.json"

    def read_fields(fields):
        path.write_text(json.dumps(fields))
        return read_transformer(path)

    return read_fields


def refusal(read, fields) -> str:
    with pytest.raises(UserError) as caught:
        read(fields)
    message = str(caught.value)
    assert "\n" not in message
    return message.split("config.json:", 1)[1]


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


def windows(model) -> list[int | None]:
    return [layer.attention.window for layer in model.layers]


GROUPED = GroupedAttention(heads=8, kv_heads=2, head_dim=8)
NORMED = replace(GROUPED, head_norms=True)
MULTI_HEAD = GroupedAttention(8, 8, 8, input_bias=True, output_bias=True)
MLP = DenseMlp(width=128, gated=True)
PLAIN = DenseMlp(width=256, gated=False, bias=True)


def latent(query_rank):
    return LatentAttention(8, query_rank, kv_rank=24, nope_dim=16, rope_dim=4, value_dim=12)


def slid(attention, window=16):
    return replace(attention, window=window)


QWEN2_ATTENTION = replace(GROUPED, input_bias=True)
OSS_ATTENTION = replace(GROUPED, input_bias=True, output_bias=True, sinks=True)
OSS_EXPERTS = Experts(4, 2, width=128, bias=True, router_bias=True)
GEMMA4_EXPERTS = Experts(4, 2, width=32, shared_width=128, router_bias=True)

LAYERS = dict(
    llama=[Layer(GROUPED, MLP)] * 2,
    mistral=[Layer(GROUPED, MLP)] * 2,
    mixtral=[Layer(GROUPED, Experts(4, 2, width=128))] * 2,
    phi3=[Layer(slid(GROUPED), MLP)] * 2,
    qwen2=[Layer(QWEN2_ATTENTION, MLP)] * 2,
    qwen3=[Layer(NORMED, MLP)] * 2,
    qwen2_moe=[
        Layer(QWEN2_ATTENTION, MLP),
        Layer(QWEN2_ATTENTION, Experts(4, 2, width=32, shared_width=48, shared_gate=True)),
    ],
    qwen3_moe=[Layer(NORMED, MLP), Layer(NORMED, Experts(4, 2, width=32))],
    deepseek_v2=[
        Layer(latent(None), MLP),
        Layer(latent(None), Experts(4, 2, width=32, shared_width=64)),
    ],
    deepseek_v3=[
        Layer(latent(40), MLP),
        Layer(latent(40), Experts(4, 2, width=32, shared_width=32, router_bias=True)),
    ],
    glm4_moe=[
        Layer(replace(NORMED, input_bias=True), MLP),
        Layer(
            replace(NORMED, input_bias=True),
            Experts(4, 2, width=32, shared_width=64, router_bias=True),
        ),
    ],
    gpt_oss=[Layer(slid(OSS_ATTENTION), OSS_EXPERTS), Layer(OSS_ATTENTION, OSS_EXPERTS)],
    gemma2=[Layer(slid(GROUPED), MLP, norms=4), Layer(GROUPED, MLP, norms=4)],
    gemma3_text=[Layer(slid(NORMED), MLP, norms=4)] * 2,
    gemma3=[
        *[Layer(slid(NORMED), MLP, norms=4)] * 5,
        Layer(NORMED, MLP, norms=4),
        Layer(slid(NORMED), MLP, norms=4),
    ],
    gemma4_text=[Layer(slid(NORMED), GEMMA4_EXPERTS, norms=8)] * 2,
    gemma4=[
        *[Layer(slid(NORMED), MLP, norms=4)] * 5,
        Layer(replace(NORMED, head_dim=16), MLP, norms=4),
        Layer(slid(NORMED), MLP, norms=4),
    ],
    mistral3=[Layer(GROUPED, MLP)] * 2,
    opt=[Layer(MULTI_HEAD, PLAIN)] * 2,
    gpt2=[Layer(MULTI_HEAD, PLAIN)] * 2,
    bloom=[Layer(MULTI_HEAD, PLAIN)] * 2,
    falcon=[Layer(GROUPED, replace(PLAIN, bias=False), norms=2, parallel=True)] * 2,
)
LAYERS["kimi_k2"] = LAYERS["deepseek_v3"]
LAYER_NORMS = {"opt", "gpt2", "bloom", "falcon"}
TIED_FAMILIES = {
    "opt", "gpt2", "bloom", "falcon", "gemma2", "gemma3_text", "gemma3", "gemma4_text", "gemma4",
}  # fmt: skip
POSITIONS = dict(opt=18, gpt2=16)


def test_every_family_is_tested_here():
    assert set(CONFIGS) == set(FAMILIES) == set(LAYERS)


@pytest.mark.parametrize("family", CONFIGS)
def test_shape(read, family):
    model = read(CONFIGS[family])
    assert model.layers == tuple(LAYERS[family])
    assert (model.hidden, model.vocab) == (64, 100)
    assert model.norm_parameters == (128 if family in LAYER_NORMS else 64)
    assert model.tied_embeddings is (family in TIED_FAMILIES)
    assert model.position_rows == POSITIONS.get(family, 0)
    assert model.embedding_norm is (family == "bloom")
    predicts = family in ("deepseek_v3", "glm4_moe")
    assert model.prediction_layers == (model.layers[-1:] if predicts else ())
    assert model.family == NESTED.get(family, family)


@pytest.mark.parametrize("family", CONFIGS)
def test_equal_layers_are_one_object(read, family):
    model = read(CONFIGS[family])
    layers = model.layers + model.prediction_layers
    assert len({id(layer) for layer in layers}) == len(set(layers))


@pytest.mark.parametrize("family", FLAT)
def test_file_that_states_everything_leaves_no_value_to_assume(read, family):
    derived = {"head_dim = 8 (hidden_size / num_attention_heads)"}
    stated = {fact for fact in read(CONFIGS[family]).assumed if " = " in fact}
    assert stated <= (derived if family in {"opt", "gpt2", "bloom"} else set())


# --- what a family reads ------------------------------------------------------------------------


class Watched(Mapping):
    """A table that notes which of its keys are asked for."""

    def __init__(self, fields):
        self.fields, self.asked = fields, set()

    def __getitem__(self, key):
        self.asked.add(key)
        return self.fields[key]

    def __iter__(self):
        return iter(self.fields)

    def __len__(self):
        return len(self.fields)


OTHER_FORMS = dict(falcon=without(CONFIGS["falcon"], "new_decoder_architecture"))


@pytest.mark.parametrize("family", FLAT)
def test_family_looks_at_the_fields_that_it_declares(family):
    asked = set()
    for config in (CONFIGS[family], OTHER_FORMS.get(family, CONFIGS[family])):
        fields = Watched(config)
        FAMILIES[family].read(ConfigFile(fields, path="config.json", name="drawn"))
        asked |= fields.asked
    assert asked - {"model_type"} == every_spelling(FAMILIES[family].fields)


@pytest.mark.parametrize("family", CONFIGS)
def test_harmless_fields_of_a_family_change_nothing(read, family):
    harmless = dict.fromkeys(sorted(FAMILIES[family].harmless - set(CONFIGS[family])), 7)
    assert read(CONFIGS[family] | harmless) == read(CONFIGS[family])


RENAMED = [
    ("llama", dict(hidden_size="n_embd", num_hidden_layers="n_layer")),
    ("llama", dict(hidden_size="n_embed", num_key_value_heads="n_head_kv")),
    ("mixtral", dict(num_local_experts="num_experts", num_experts_per_tok="experts_per_token")),
    ("gpt_oss", dict(num_experts_per_tok="experts_per_token")),
    ("qwen3_moe", dict(num_local_experts="num_experts")),
    ("deepseek_v3", dict(num_local_experts="n_routed_experts")),
    ("gpt2", dict(n_embd="hidden_size", n_layer="num_hidden_layers", n_head="num_attention_heads",
                  n_inner="intermediate_size", n_positions="max_position_embeddings")),
    ("opt", dict(ffn_dim="intermediate_size", max_position_embeddings="n_positions")),
    ("bloom", dict(n_embed="hidden_size", num_attention_heads="n_head")),
    ("falcon", dict(num_hidden_layers="n_layer", num_kv_heads="n_head_kv",
                    ffn_hidden_size="intermediate_size")),
    ("gemma2", dict(sliding_window="sliding_window_size")),
    ("gemma3_text", dict(sliding_window_pattern="_sliding_window_pattern")),
]  # fmt: skip


@pytest.mark.parametrize(("family", "renamed"), RENAMED)
def test_both_spellings(read, family, renamed):
    config = CONFIGS[family]
    expected = read(config)
    respelt = {renamed.get(key, key): value for key, value in config.items()}
    assert respelt != config
    assert read(respelt) == expected
    both = read(config | respelt)
    assert both == expected


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize(
    "fields",
    [
        dict(torch_dtype="bfloat16"),
        dict(dtype="bfloat16"),
        dict(rope_parameters=dict(rope_theta=1e6, rope_type="default")),
        dict(rope_theta=1e6, rope_scaling=dict(factor=8.0)),
    ],
)
def test_old_and_new_names_of_what_is_not_counted(read, family, fields):
    assert read(CONFIGS[family] | fields) == read(CONFIGS[family])


# --- facts that the family fixes ----------------------------------------------------------------


DEFAULTS = [
    ("llama", "num_key_value_heads", "num_key_value_heads = 8"),
    ("llama", "attention_bias", "attention_bias = false"),
    ("llama", "mlp_bias", "mlp_bias = false"),
    ("llama", "tie_word_embeddings", "tie_word_embeddings = false"),
    ("mistral", "head_dim", "head_dim = 8 (hidden_size / num_attention_heads)"),
    ("mistral", "sliding_window", "no sliding_window: every layer sees all tokens"),
    ("phi3", "num_key_value_heads", "num_key_value_heads = 8"),
    ("qwen2", "use_sliding_window", "use_sliding_window = false"),
    ("qwen2", "model", "bias of queries, keys and values, none of the attention's output"),
    ("qwen3", "head_dim", "head_dim = 128"),
    ("qwen3", "model", "RMS norms of queries and keys, shared by the heads"),
    ("qwen2_moe", "decoder_sparse_step", "decoder_sparse_step = 1"),
    ("qwen2_moe", "mlp_only_layers", "mlp_only_layers = []"),
    ("qwen2_moe", "qkv_bias", "qkv_bias = true"),
    ("qwen2_moe", "model", "a gate weighs the shared expert"),
    ("deepseek_v2", "topk_method", "topk_method = greedy"),
    ("deepseek_v3", "topk_method", "topk_method = noaux_tc"),
    ("deepseek_v3", "moe_layer_freq", "moe_layer_freq = 1"),
    ("deepseek_v3", "num_nextn_predict_layers", "num_nextn_predict_layers = 0"),
    ("gpt_oss", "attention_bias", "attention_bias = true"),
    ("gpt_oss", "head_dim", "head_dim = 64"),
    ("gpt_oss", "model", "one sink per query head"),
    ("gpt_oss", "model", "of every 2 layers the last sees all, the others sliding_window"),
    ("gemma2", "head_dim", "head_dim = 256"),
    ("gemma2", "tie_word_embeddings", "tie_word_embeddings = true"),
    ("gemma2", "model", "RMS norms without bias: 4 per layer and one after the last"),
    ("gemma3_text", "vocab_size", "vocab_size = 262208"),
    ("gemma3_text", "tie_word_embeddings", "tie_word_embeddings = true"),
    ("gemma3_text", "sliding_window_pattern", "sliding_window_pattern = 6"),
    ("gemma3_text", "num_attention_heads", "num_attention_heads = 8"),
    ("gemma3_text", "num_key_value_heads", "num_key_value_heads = 4"),
    ("gemma3", "model", "text model only; vision tower not counted"),
    ("gpt2", "n_inner", "intermediate_size = 256"),
    ("bloom", "n_inner", "intermediate_size = 256"),
    ("bloom", "tie_word_embeddings", "tie_word_embeddings = true"),
    ("bloom", "model", "layer norm with bias after the embedding"),
    ("falcon", "num_ln_in_parallel_attn", "num_ln_in_parallel_attn = 2"),
    ("falcon", "num_kv_heads", "num_key_value_heads = 8"),
    ("falcon", "parallel_attn", "parallel_attn = true"),
    ("falcon", "bias", "bias = false"),
    ("falcon", "ffn_hidden_size", "intermediate_size = 256"),
]


@pytest.mark.parametrize(("family", "left_out", "fact"), DEFAULTS)
def test_fact_that_the_file_does_not_state_is_echoed(read, family, left_out, fact):
    model = read(without(CONFIGS[family], left_out))
    assert model.assumed.count(fact) == 1


@pytest.mark.parametrize(
    ("family", "key"),
    [
        ("mistral", "num_key_value_heads"),
        ("mixtral", "num_local_experts"),
        ("mixtral", "num_experts_per_tok"),
        ("qwen3", "num_key_value_heads"),
        ("qwen2_moe", "moe_intermediate_size"),
        ("qwen2_moe", "shared_expert_intermediate_size"),
        ("qwen3_moe", "intermediate_size"),
        ("deepseek_v3", "q_lora_rank"),
        ("deepseek_v3", "first_k_dense_replace"),
        ("deepseek_v3", "n_shared_experts"),
        ("deepseek_v3", "kv_lora_rank"),
        ("gpt_oss", "sliding_window"),
        ("gemma2", "vocab_size"),
        ("gemma3_text", "sliding_window"),
        ("bloom", "vocab_size"),
    ],
)
def test_what_neither_file_nor_family_says_is_missing(read, family, key):
    assert refusal(read, without(CONFIGS[family], key)).startswith(f"{key}: missing")


def test_missing_field_names_its_other_spellings(read):
    message = refusal(read, without(CONFIGS["bloom"], "n_embed"))
    assert message.startswith("hidden_size: missing (also spelt n_embd, n_embed)")


def test_head_dimension_is_read_and_not_derived(read):
    # NVIDIA/Model-Optimizer 2482: n_embd // n_head although the file has head_dim
    for family in ("llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3_moe", "gpt_oss"):
        assert read(CONFIGS[family] | dict(head_dim=24)).first.attention.head_dim == 24


def test_experts_beside_the_dense_width(read):
    # inference-sim 561: intermediate_size in the place of moe_intermediate_size
    for family in ("qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3"):
        widths = [layer.mlp.width for layer in read(CONFIGS[family]).layers]
        assert widths == [128, 32]


@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_moe", "deepseek_v3"])
def test_dense_width_is_not_needed_where_no_layer_is_dense(read, family):
    sparse = dict(mlp_only_layers=[], decoder_sparse_step=1) | dict(first_k_dense_replace=0)
    known = {key: value for key, value in sparse.items() if key in CONFIGS[family]}
    model = read(without(CONFIGS[family], "intermediate_size") | known)
    assert all(isinstance(layer.mlp, Experts) for layer in model.layers)


# --- windows ------------------------------------------------------------------------------------


def test_mistral_slides_on_all_layers_or_on_none(read):
    config = CONFIGS["mistral"]
    assert windows(read(config)) == windows(read(without(config, "sliding_window"))) == [None] * 2
    assert windows(read(config | dict(sliding_window=16))) == [16, 16]
    assert windows(read(CONFIGS["mixtral"] | dict(sliding_window=16))) == [16, 16]


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen2_moe", "qwen3_moe"])
def test_window_that_is_present_but_off_is_off(read, family):
    config = CONFIGS[family]
    for off in (
        {},
        dict(sliding_window=0),
        dict(sliding_window=None),
        dict(use_sliding_window=None),
        dict(max_window_layers=0),
        dict(layer_types=["full_attention"] * 2),
    ):
        assert windows(read(config | off)) == [None, None]


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_slides_from_max_window_layers(read, family):
    config = CONFIGS[family] | dict(use_sliding_window=True, num_hidden_layers=5)
    assert windows(read(config)) == [None, None, 32, 32, 32]
    assert windows(read(config | dict(max_window_layers=5))) == [None] * 5
    assert windows(read(config | dict(sliding_window=None))) == [None] * 5
    assert refusal(read, without(config, "max_window_layers")).startswith("max_window_layers: miss")


@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_moe"])
def test_qwen_mixture_with_windows_must_state_which_layers_slide(read, family):
    config = CONFIGS[family] | dict(use_sliding_window=True)
    assert refusal(read, config).startswith("layer_types: missing")
    stated = dict(layer_types=["sliding_attention", "full_attention"])
    assert windows(read(config | stated)) == [32, None]


def test_gemma2_and_gpt_oss_alternate_beginning_with_a_window(read):
    for family in ("gemma2", "gpt_oss"):
        config = CONFIGS[family] | dict(num_hidden_layers=5)
        assert windows(read(config)) == [16, None, 16, None, 16]
        assert windows(read(config | dict(sliding_window=None))) == [None] * 5


def test_gemma4_layers_that_see_all_have_heads_of_their_own(read):
    kinds = dict(layer_types=["full_attention", "sliding_attention"])
    model = read(CONFIGS["gemma4_text"] | kinds)
    wide = replace(NORMED, kv_heads=1, head_dim=16, keys_are_values=True)
    assert [layer.attention for layer in model.layers] == [wide, slid(NORMED)]
    model = read(CONFIGS["gemma4_text"] | kinds | dict(attention_k_eq_v=False))
    assert model.layers[0].attention == replace(NORMED, head_dim=16)
    # on one of two ranks: 4 query heads and one key/value head of 16, by one projection
    alone = replace(model, layers=(Layer(wide, MLP),))
    (stage,) = stages(alone, Parallelism(tp=2), decode=True)
    assert {o.name: o.held for _, o in stage}["qkv"] == 64 * (4 + 1) * 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(hidden_size_per_layer_input=256), "hidden_size_per_layer_input: is not modelled"),
        (dict(num_kv_shared_layers=18), "num_kv_shared_layers: is not modelled"),
        (dict(use_double_wide_mlp=True), "use_double_wide_mlp: true is not understood"),
        (dict(use_bidirectional_attention="all"), "use_bidirectional_attention: is not modelled"),
        (dict(num_global_key_value_heads=3), "num_global_key_value_heads: 3 does not divide"),
    ],
)
def test_variants_of_gemma4_that_count_otherwise_are_refused(read, change, message):
    assert refusal(read, CONFIGS["gemma4_text"] | change).startswith(message)


def test_gemma3_every_sixth_layer_sees_all(read):
    # ollama 9987: sized as all-global. 62 layers: 10 see all, 52 slide
    model = read(CONFIGS["gemma3_text"] | dict(num_hidden_layers=62))
    assert [i for i, window in enumerate(windows(model)) if window is None] == [
        5, 11, 17, 23, 29, 35, 41, 47, 53, 59
    ]  # fmt: skip
    assert len({id(layer) for layer in model.layers}) == 2
    shorter = CONFIGS["gemma3_text"] | dict(num_hidden_layers=4, sliding_window_pattern=3)
    assert windows(read(shorter)) == [16, 16, None, 16]


WINDOWED = [
    "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gpt_oss", "gemma2",
    "gemma3_text",
]  # fmt: skip


@pytest.mark.parametrize("family", WINDOWED)
def test_layer_types_win_over_the_rule_of_the_family(read, family):
    on = CONFIGS[family] | dict(sliding_window=16)
    if "use_sliding_window" in on:
        on["use_sliding_window"] = True
    kinds = ["full_attention", "sliding_attention"]
    model = read(on | dict(layer_types=kinds))
    assert windows(model) == [None, 16]
    assert not any("of every" in fact for fact in model.assumed)


@pytest.mark.parametrize("family", WINDOWED)
@pytest.mark.parametrize(
    ("kinds", "what"),
    [
        (["full_attention"], "has 1 entries for 2 layers"),
        ([], "has 0 entries for 2 layers"),
        (["full_attention"] * 3, "has 3 entries for 2 layers"),
        (["full_attention", "chunked_attention"], "'chunked_attention' is not understood"),
        (["linear_attention", "full_attention"], "'linear_attention' is not understood"),
        (["full_attention", 1], "1 is not understood"),
        (["full_attention", ["sliding_attention"]], "['sliding_attention'] is not understood"),
        ("full_attention", "'full_attention' is not a list"),
        ({"0": "full_attention"}, "{'0': 'full_attention'} is not a list"),
    ],
)
def test_layer_types_are_checked(read, family, kinds, what):
    message = refusal(read, CONFIGS[family] | dict(layer_types=kinds))
    assert message.startswith(f"layer_types: {what}")


def test_layer_types_that_contradict_the_window_are_refused(read):
    sliding = dict(layer_types=["sliding_attention"] * 2)
    message = refusal(read, CONFIGS["mistral"] | sliding)
    assert message.startswith("sliding_window: missing, but layer_types has sliding_attention")
    message = refusal(read, CONFIGS["qwen2"] | sliding)
    assert message.startswith("layer_types: has sliding_attention, but use_sliding_window is not")


# --- variants of single families ----------------------------------------------------------------


def test_biases_of_the_attention(read):
    for family in ("llama", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "gpt_oss"):
        for bias in (True, False):
            attention = read(CONFIGS[family] | dict(attention_bias=bias)).first.attention
            assert (attention.input_bias, attention.output_bias) == (bias, bias)
    attention = read(CONFIGS["qwen2_moe"] | dict(qkv_bias=False)).first.attention
    assert (attention.input_bias, attention.output_bias) == (False, False)
    layer = read(CONFIGS["opt"] | dict(enable_bias=False)).first
    assert layer == Layer(GroupedAttention(8, 8, 8), replace(PLAIN, bias=False))


def test_sparse_layers_of_qwen(read):
    config = CONFIGS["qwen3_moe"] | dict(num_hidden_layers=6, mlp_only_layers=[3])
    sparse = [isinstance(layer.mlp, Experts) for layer in read(config).layers]
    assert sparse == [False, True, False, False, False, True]
    for bad, what in (([6], "6 is not"), ([-1], "-1 is not"), ([True], "True is not"), (3, "3 is")):
        message = refusal(read, config | dict(mlp_only_layers=bad))
        assert message.startswith(f"mlp_only_layers: {what}")


def test_sparse_layers_of_deepseek(read):
    config = CONFIGS["deepseek_v3"] | dict(
        num_hidden_layers=7, first_k_dense_replace=3, moe_layer_freq=2, num_nextn_predict_layers=2
    )
    model = read(config)
    sparse = [isinstance(layer.mlp, Experts) for layer in model.layers]
    assert sparse == [False, False, False, False, True, False, True]
    assert model.prediction_layers == (model.layers[6],) * 2
    without_shared = read(CONFIGS["deepseek_v3"] | dict(n_shared_experts=0))
    assert without_shared.layers[1].mlp == Experts(4, 2, width=32, router_bias=True)


def test_router_bias_of_deepseek(read):
    # 671,026,419,200 parameters include one for each of 58 x 256 experts
    def router_bias(family, **changed):
        return read(CONFIGS[family] | changed).layers[1].mlp.router_bias

    assert router_bias("deepseek_v3")
    assert not router_bias("deepseek_v3", topk_method="greedy")
    assert not router_bias("deepseek_v2", topk_method="group_limited_greedy")
    for bad in ("noaux_tc", "best", 1, ["greedy"]):
        message = refusal(read, CONFIGS["deepseek_v2"] | dict(topk_method=bad))
        assert message.startswith(f"topk_method: {bad!r} is not understood")


def test_more_experts_per_token_than_experts_are_refused(read):
    for family in ("mixtral", "qwen2_moe", "deepseek_v2", "gpt_oss"):
        message = refusal(read, CONFIGS[family] | dict(num_experts_per_tok=5))
        assert message.startswith("num_experts_per_tok: 5 is not a usable size; allowed: a whole")


SEVEN_B = without(
    CONFIGS["falcon"], "new_decoder_architecture", "num_kv_heads", "num_ln_in_parallel_attn"
)


def test_generations_of_falcon(read):
    mlp = replace(PLAIN, bias=False)
    one_head, all_heads = GroupedAttention(8, 1, 8), GroupedAttention(8, 8, 8)
    assert read(SEVEN_B).first == Layer(one_head, mlp, norms=1, parallel=True)
    # files of 7B have num_kv_heads 71, which counts for nothing there
    assert read(SEVEN_B | dict(num_kv_heads=8, multi_query=True)).first.attention == one_head
    assert read(SEVEN_B | dict(multi_query=False)).first.attention == all_heads
    assert read(SEVEN_B | dict(parallel_attn=False)).first == Layer(one_head, mlp, norms=2)
    one_norm = CONFIGS["falcon"] | dict(num_ln_in_parallel_attn=1)
    assert read(one_norm).first == Layer(GROUPED, mlp, norms=1, parallel=True)
    assert read(CONFIGS["falcon"] | dict(alibi=True)).position_rows == 0
    biased = read(CONFIGS["falcon"] | dict(bias=True)).first
    assert biased == Layer(
        replace(GROUPED, input_bias=True, output_bias=True), PLAIN, norms=2, parallel=True
    )


# --- a language model inside a multimodal one ---------------------------------------------------


def test_nested_text_model_is_the_text_model_alone(read):
    text = CONFIGS["gemma3_text"] | dict(num_hidden_layers=7)
    alone = read(text)
    for place in ("text_config", "llm_config", "language_config"):
        nested = read({"model_type": "gemma3", "vision_config": {"hidden_size": 3}, place: text})
        assert replace(nested, assumed=()) == replace(alone, assumed=())
        assert set(nested.assumed) - set(alone.assumed) == {
            "text model only; vision tower not counted"
        }


def test_nested_text_model_relies_on_the_defaults_of_its_family(read):
    # hf-mem 26: neither vocab_size nor the tie flag in the file of Gemma-3-27B
    text = without(
        CONFIGS["gemma3"]["text_config"],
        "vocab_size", "head_dim", "model_type", "num_attention_heads", "num_key_value_heads",
    )  # fmt: skip
    model = read(dict(model_type="gemma3", text_config=text))
    assert model.first.attention == GroupedAttention(8, 4, 256, window=16, head_norms=True)
    assert (model.vocab, model.tied_embeddings) == (262_208, True)
    assert {
        "vocab_size = 262208",
        "tie_word_embeddings = true",
        "head_dim = 256",
        "num_attention_heads = 8",
        "num_key_value_heads = 4",
    } <= set(model.assumed)


def test_tied_embedding_may_be_stated_outside_or_inside(read):
    nested = CONFIGS["gemma3"]
    assert not read(nested | UNTIED).tied_embeddings
    inside = nested | dict(text_config=nested["text_config"] | UNTIED)
    assert not read(inside).tied_embeddings
    assert refusal(read, nested | dict(tie_word_embeddings=1)).startswith("tie_word_embeddings: ")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(text_config=None), "text_config: missing (or llm_config, language_config)"),
        (dict(llm_config={"a": 1}), "text_config: beside llm_config"),
        (dict(text_config=[1]), "text_config: [1] is not a JSON object"),
        (dict(text_config={"model_type": "llama"}), "text_config.model_type: 'llama' is not under"),
        (dict(text_config={"model_type": ""}), "text_config.model_type: '' is not under"),
        (dict(text_config={"model_type": ["x"]}), "text_config.model_type: ['x'] is not under"),
        (dict(text_config={"hidden_size": 0}), "text_config.sliding_window: missing"),
        (dict(text_config={"num_experts": 8}), "text_config.num_experts: not understood in a"),
        (dict(audio_config={"hidden_size": 8}), "audio_config: not understood in a model of type"),
        (dict(num_experts=8), "num_experts: not understood in a model of type 'gemma3'"),
    ],
)
def test_nested_text_model_is_checked(read, changed, message):
    assert refusal(read, CONFIGS["gemma3"] | changed).startswith(message)


def test_family_that_is_not_multimodal_has_no_nested_text_model(read):
    nested = dict(text_config=CONFIGS["gemma3_text"])
    for family in ("llama", "gemma3_text"):
        message = refusal(read, CONFIGS[family] | nested)
        assert message.startswith("text_config: not understood")
