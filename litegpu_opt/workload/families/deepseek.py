"""DeepSeek-V2 and V3: latent attention, dense layers first, then experts with shared ones.

Kimi K2 has the block of DeepSeek-V3, whose code its files name.
"""

from ..config_file import ConfigFile
from ..transformer import LatentAttention, Layer, Transformer
from .family import (
    EXPERTS,
    ROUTING,
    SHAPE,
    Family,
    gated_experts,
    layer_count,
    rms_model,
    some_sparse,
    words,
)


BIASED_ROUTER = "noaux_tc"
"""`topk_method` that corrects the scores of the experts: one parameter for each."""

_BY_SCORE = ("greedy", "group_limited_greedy")


def _read_v2(config: ConfigFile) -> Transformer:
    config.choice("topk_method", _BY_SCORE)
    return _model(config, router_bias=False)


def _read_v3(config: ConfigFile) -> Transformer:
    method = config.choice("topk_method", (BIASED_ROUTER, *_BY_SCORE))
    return _model(config, router_bias=method == BIASED_ROUTER)


def _model(config: ConfigFile, *, router_bias: bool) -> Transformer:
    """Layers with experts: those from `first_k_dense_replace` that `moe_layer_freq` divides."""
    layers = layer_count(config)
    first = config.count("first_k_dense_replace", least=0, most=layers)
    step = config.count("moe_layer_freq", default=1)
    config.require("attention_bias", expected=False)
    attention = LatentAttention(
        heads=config.count("num_attention_heads"),
        query_rank=_query_rank(config),
        kv_rank=config.count("kv_lora_rank"),
        nope_dim=config.count("qk_nope_head_dim"),
        rope_dim=config.count("qk_rope_head_dim"),
        value_dim=config.count("v_head_dim"),
    )
    experts = gated_experts(
        config,
        width="moe_intermediate_size",
        router_bias=router_bias,
        shared_width=config.count("n_shared_experts", least=0)
        * config.count("moe_intermediate_size"),
    )
    sparse = [layer >= first and layer % step == 0 for layer in range(layers)]
    return rms_model(
        config,
        [Layer(attention, mlp) for mlp in some_sparse(config, experts, sparse)],
        predictions=config.count("num_nextn_predict_layers", default=0, least=0, most=layers),
    )


def _query_rank(config: ConfigFile) -> int | None:
    """Null says that queries have no latent; a file that is silent leaves it open."""
    if not config.states("q_lora_rank"):
        raise config.error("q_lora_rank", "missing", allowed="a positive whole number, null")
    return config.optional_count("q_lora_rank")


_FIELDS = (
    SHAPE
    | EXPERTS
    | words(
        "attention_bias first_k_dense_replace kv_lora_rank moe_intermediate_size moe_layer_freq "
        "n_shared_experts num_nextn_predict_layers q_lora_rank qk_nope_head_dim qk_rope_head_dim "
        "topk_method v_head_dim"
    )
)
_HARMLESS = ROUTING | words(
    "aux_loss_alpha ep_size head_dim n_group num_key_value_heads qk_head_dim rope_interleave "
    "routed_scaling_factor scoring_func seq_aux topk_group"
)

DEEPSEEK_V2 = Family(
    model_types=("deepseek_v2",), read=_read_v2, fields=_FIELDS, harmless=_HARMLESS
)

DEEPSEEK_V3 = Family(
    model_types=("deepseek_v3",), read=_read_v3, fields=_FIELDS, harmless=_HARMLESS
)

KIMI_K2 = Family(
    model_types=("kimi_k2",),
    read=_read_v3,
    fields=_FIELDS,
    harmless=_HARMLESS,
    also_named=("deepseek_v3",),
)
