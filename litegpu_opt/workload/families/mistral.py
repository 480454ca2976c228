"""Mistral and Mixtral: as Llama, without biases, with a window on all layers or on none.

Mistral Small 3.1 and 3.2 have a vision tower around a Mistral.
"""

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
    words,
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
    wrappers=("mistral3",),
    read=_read_mistral,
    fields=SHAPE | GROUPED | WINDOWS,
    harmless=words(
        "image_token_index multimodal_projector_bias projector_hidden_act spatial_merge_size "
        "vision_feature_layer"
    ),
)

MIXTRAL = Family(
    model_types=("mixtral",),
    read=_read_mixtral,
    fields=SHAPE | GROUPED | WINDOWS | EXPERTS,
    harmless=ROUTING,
)
