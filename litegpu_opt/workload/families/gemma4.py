"""Gemma 4, dense and mixtures of experts: other heads where a layer sees all tokens.

Layers that see all tokens have heads, and key/value heads, of their own size; with
`attention_k_eq_v` one projection makes their keys and values. A layer with experts has the dense
MLP beside them. The smallest models, with embeddings for every layer and a cache that layers share,
are refused. Source: huggingface/transformers, models/gemma4/modeling_gemma4.py.
"""

from dataclasses import replace

from ..config_file import ConfigFile
from ..transformer import GroupedAttention, Layer, Transformer
from .family import (
    EXPERTS,
    GROUPED,
    SHAPE,
    WINDOWS,
    Family,
    gated_experts,
    gated_mlp,
    grouped_attention,
    rms_model,
    stated_biases,
    windows_but_every,
    words,
)


PERIOD = 6
NORMS, NORMS_OF_EXPERTS = 4, 4
"""Of a layer, and those beside them in a layer with experts: one before the experts, one after each
of both MLPs, one of the router."""


def _read(config: ConfigFile) -> Transformer:
    _refuse_the_smallest(config)
    config.assume("RMS norms of queries and keys, shared by the heads")
    local = grouped_attention(config, head_norms=True, **stated_biases(config))
    wide = _global_attention(config, local)
    if config.flag("enable_moe_block", default=False):
        config.assume("every expert weight has a factor of its own, every layer 4 more norms")
        norms = NORMS + NORMS_OF_EXPERTS
        shared = config.count("intermediate_size")
        mlp = gated_experts(
            config, width="moe_intermediate_size", shared_width=shared, router_bias=True
        )
    else:
        norms, mlp = NORMS, gated_mlp(config)
    layers = [
        Layer(wide if window is None else replace(local, window=window), mlp, norms)
        for window in windows_but_every(config, PERIOD)
    ]
    return rms_model(config, layers, tied=True)


def _global_attention(config: ConfigFile, local: GroupedAttention) -> GroupedAttention:
    """Attention of the layers that see all tokens."""
    one = config.flag("attention_k_eq_v", default=False)
    kv_heads = config.count("num_global_key_value_heads") if one else local.kv_heads
    if local.heads % kv_heads:
        what = f"{kv_heads} does not divide num_attention_heads {local.heads}"
        raise config.error("num_global_key_value_heads", what)
    head_dim = config.count("global_head_dim")
    return replace(local, kv_heads=kv_heads, head_dim=head_dim, keys_are_values=one)


def _refuse_the_smallest(config: ConfigFile) -> None:
    embedded, shared = "hidden_size_per_layer_input", "num_kv_shared_layers"
    if not config.states(embedded):
        raise config.error(embedded, "missing", allowed="0, null")
    for key, size in (
        (embedded, config.optional_count(embedded, least=0)),
        (shared, config.count(shared, default=0, least=0)),
    ):
        if size:
            raise config.error(key, "is not modelled", allowed="0")
    config.require("use_double_wide_mlp", expected=False)
    if config.fields.get("use_bidirectional_attention") not in (None, "vision"):
        raise config.error("use_bidirectional_attention", "is not modelled", allowed="vision, null")


GEMMA4 = Family(
    model_types=("gemma4_text",),
    wrappers=("gemma4",),
    read=_read,
    fields=SHAPE
    | GROUPED
    | WINDOWS
    | EXPERTS
    | words(
        "attention_bias attention_k_eq_v enable_moe_block global_head_dim "
        "hidden_size_per_layer_input moe_intermediate_size num_global_key_value_heads "
        "num_kv_shared_layers use_bidirectional_attention use_double_wide_mlp"
    ),
    harmless=words(
        "audio_token_id boa_token_id boi_token_id eoa_token_id eoa_token_index eoi_token_id "
        "final_logit_softcapping hidden_activation image_token_id video_token_id "
        "vision_soft_tokens_per_image vocab_size_per_layer_input"
    ),
)
