"""gpt-oss: experts in every layer, biases everywhere, sinks, every other layer slides."""

from ..config_file import ConfigFile
from ..transformer import Transformer
from .family import (
    EXPERTS,
    GROUPED,
    ROUTING,
    SHAPE,
    WINDOWS,
    Family,
    gated_experts,
    grouped_attention,
    rms_model,
    stated_biases,
    windowed_layers,
    windows_but_every,
    words,
)


HEAD_DIM = 64


def _read(config: ConfigFile) -> Transformer:
    biases = stated_biases(config, default=True)
    config.assume("biases in the router and in every expert")
    config.assume("one sink per query head")
    attention = grouped_attention(config, head_dim=HEAD_DIM, sinks=True, **biases)
    experts = gated_experts(config, width="intermediate_size", bias=True, router_bias=True)
    windows = windows_but_every(config, 2)
    return rms_model(config, windowed_layers(attention, experts, windows))


GPT_OSS = Family(
    model_types=("gpt_oss",),
    read=_read,
    fields=SHAPE | GROUPED | WINDOWS | EXPERTS | words("attention_bias"),
    harmless=ROUTING | words("initial_context_length swiglu_alpha swiglu_limit"),
)
