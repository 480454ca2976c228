"""Llama: RMS norms, rotary positions, gated MLP, grouped key/value heads."""

from ..config_file import ConfigFile
from ..transformer import Layer, Transformer
from .family import (
    GROUPED,
    SHAPE,
    Family,
    gated_mlp,
    grouped_attention,
    layer_count,
    rms_model,
    words,
)


def _read(config: ConfigFile) -> Transformer:
    bias = config.flag("attention_bias", default=False)
    attention = grouped_attention(
        config,
        kv_heads=config.count("num_attention_heads"),
        input_bias=bias,
        output_bias=bias,
    )
    mlp = gated_mlp(config, bias=config.flag("mlp_bias", default=False))
    return rms_model(config, [Layer(attention, mlp)] * layer_count(config))


LLAMA = Family(
    model_types=("llama",),
    read=_read,
    fields=SHAPE | GROUPED | words("attention_bias mlp_bias"),
)
