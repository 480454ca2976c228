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
    stated_biases,
    words,
)


def _read(config: ConfigFile) -> Transformer:
    biases = stated_biases(config)
    attention = grouped_attention(config, kv_heads=config.count("num_attention_heads"), **biases)
    mlp = gated_mlp(config, bias=config.flag("mlp_bias", default=False))
    return rms_model(config, [Layer(attention, mlp)] * layer_count(config))


LLAMA = Family(
    model_types=("llama",),
    read=_read,
    fields=SHAPE | GROUPED | words("attention_bias mlp_bias"),
)
