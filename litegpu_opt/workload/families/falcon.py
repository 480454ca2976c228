"""Falcon: plain MLP beside the attention, few key/value heads, layer norms with bias.

The first generation (7B) has one key/value head and one norm per layer, the second (40B, 180B)
groups of heads and a norm each for attention and MLP.
"""

from ..config_file import ConfigFile
from ..transformer import GroupedAttention, Transformer
from .family import (
    GROUPED,
    SHAPE,
    Family,
    grouped_attention,
    head_dimension,
    layer_norm_model,
    words,
)


def _read(config: ConfigFile) -> Transformer:
    grouped = config.flag("new_decoder_architecture", default=False)
    parallel = config.flag("parallel_attn", default=True) or grouped
    norms = 2
    if parallel:
        norms = config.count("num_ln_in_parallel_attn", default=2 if grouped else 1, most=2)
    bias = config.flag("bias", default=False)
    return layer_norm_model(
        config,
        _attention(config, grouped=grouped, bias=bias),
        norms=norms,
        parallel=parallel,
        bias=bias,
        wide=True,
    )


def _attention(config: ConfigFile, *, grouped: bool, bias: bool) -> GroupedAttention:
    """`num_kv_heads` counts where heads are grouped; else there is one, or one per query head."""
    heads = config.count("num_attention_heads")
    if grouped:
        return grouped_attention(config, kv_heads=heads, input_bias=bias, output_bias=bias)
    kv_heads = 1 if config.flag("multi_query", default=True) else heads
    config.assume(f"key/value heads = {kv_heads}, as multi_query says")
    return GroupedAttention(
        heads, kv_heads, head_dimension(config), input_bias=bias, output_bias=bias
    )


FALCON = Family(
    model_types=("falcon",),
    read=_read,
    fields=SHAPE
    | GROUPED
    | words("bias multi_query new_decoder_architecture num_ln_in_parallel_attn parallel_attn"),
    harmless=words("activation alibi apply_residual_connection_post_layernorm ff_factor"),
)
