"""Phi-3: as Mistral; packed matrices (queries, keys and values; gate and up) count the same."""

from ..config_file import ConfigFile
from ..transformer import Transformer
from .family import (
    GROUPED,
    SHAPE,
    WINDOWS,
    Family,
    gated_mlp,
    grouped_attention,
    layer_windows,
    rms_model,
    windowed_layers,
    words,
)


def _read(config: ConfigFile) -> Transformer:
    attention = grouped_attention(config, kv_heads=config.count("num_attention_heads"))
    windows = layer_windows(config, lambda layer: True)
    return rms_model(config, windowed_layers(attention, gated_mlp(config), windows))


PHI3 = Family(
    model_types=("phi3",),
    read=_read,
    fields=SHAPE | GROUPED | WINDOWS,
    harmless=words("full_attn_mod interpolate_factor partial_rotary_factor"),
)
