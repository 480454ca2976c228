"""Mistral and Mixtral: as Llama, without biases, with a window on all layers or on none."""

from ..config_file import ConfigFile
from ..transformer import Mlp, Transformer
from .family import (
    EXPERTS,
    GROUPED,
    ROUTING,
    SHAPE,
    WINDOWS,
    Family,
    gated_experts,
    gated_mlp,
    grouped_attention,
    layer_windows,
    rms_model,
    windowed_layers,
)


def _read_mistral(config: ConfigFile) -> Transformer:
    return _model(config, gated_mlp(config))


def _read_mixtral(config: ConfigFile) -> Transformer:
    return _model(config, gated_experts(config, width="intermediate_size"))


def _model(config: ConfigFile, mlp: Mlp) -> Transformer:
    attention = grouped_attention(config)
    if not config.states("sliding_window"):
        config.assume("no sliding_window: every layer sees all tokens")
    windows = layer_windows(config, lambda layer: True)
    return rms_model(config, windowed_layers(attention, mlp, windows))


MISTRAL = Family(
    model_types=("mistral",),
    read=_read_mistral,
    fields=SHAPE | GROUPED | WINDOWS,
)

MIXTRAL = Family(
    model_types=("mixtral",),
    read=_read_mixtral,
    fields=SHAPE | GROUPED | WINDOWS | EXPERTS,
    harmless=ROUTING,
)
