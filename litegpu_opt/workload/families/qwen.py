"""Qwen2 and Qwen3, dense and mixtures of experts.

Qwen2 has biases on queries, keys and values; Qwen3 norms queries and keys instead.
"""

from ..config_file import ConfigFile
from ..transformer import Experts, GroupedAttention, Transformer
from .family import (
    EXPERTS,
    GROUPED,
    ROUTING,
    SHAPE,
    SLIDING,
    WINDOWS,
    Family,
    gated_experts,
    gated_mlp,
    grouped_attention,
    layer_count,
    layer_windows,
    rms_model,
    some_sparse,
    stated_biases,
    windowed_layers,
    words,
)


QWEN3_HEAD_DIM = 128
"""Of all dense Qwen3 models."""


def _read_qwen2(config: ConfigFile) -> Transformer:
    config.assume("bias of queries, keys and values, none of the attention's output")
    attention = grouped_attention(config, input_bias=True)
    return _dense(config, attention)


def _read_qwen3(config: ConfigFile) -> Transformer:
    return _dense(config, _normed_attention(config, head_dim=QWEN3_HEAD_DIM))


def _read_qwen2_moe(config: ConfigFile) -> Transformer:
    attention = grouped_attention(config, input_bias=config.flag("qkv_bias", default=True))
    config.assume("a gate weighs the shared expert")
    experts = gated_experts(
        config,
        width="moe_intermediate_size",
        shared_width=config.count("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    return _sparse(config, attention, experts)


def _read_qwen3_moe(config: ConfigFile) -> Transformer:
    experts = gated_experts(config, width="moe_intermediate_size")
    return _sparse(config, _normed_attention(config), experts)


def _normed_attention(config: ConfigFile, head_dim: int | None = None) -> GroupedAttention:
    biases = stated_biases(config)
    config.assume("RMS norms of queries and keys, shared by the heads")
    return grouped_attention(config, head_dim=head_dim, head_norms=True, **biases)


def _dense(config: ConfigFile, attention: GroupedAttention) -> Transformer:
    windows = _windows(config, by_rule=True)
    return rms_model(config, windowed_layers(attention, gated_mlp(config), windows))


def _sparse(config: ConfigFile, attention: GroupedAttention, experts: Experts) -> Transformer:
    """Every `decoder_sparse_step`-th layer has experts, but for those in `mlp_only_layers`."""
    layers = layer_count(config)
    step = config.count("decoder_sparse_step", default=1)
    dense = config.listed("mlp_only_layers", range(layers), f"layers from 0 to {layers - 1}")
    if dense is None:
        config.assume("mlp_only_layers = []")
    sparse = [(layer + 1) % step == 0 and layer not in (dense or ()) for layer in range(layers)]
    mlps = some_sparse(config, experts, sparse)
    windows = _windows(config, by_rule=False)
    return rms_model(config, windowed_layers(attention, mlps, windows))


def _windows(config: ConfigFile, *, by_rule: bool) -> list[int | None]:
    """Windows, which are off but where `use_sliding_window` is true.

    They are then as in `layer_types`. Without it, layers from `max_window_layers` slide in the
    dense models (`by_rule`); for mixtures of experts implementations differ.
    """
    on = config.flag("use_sliding_window", default=False)
    first = config.optional_count("max_window_layers", least=0)
    if on and config.fields.get("layer_types") is None and not (by_rule and first is not None):
        key = "max_window_layers" if by_rule else "layer_types"
        raise config.error(key, "missing, but use_sliding_window is true")
    windows = layer_windows(config, lambda layer: on and first is not None and layer >= first)
    if not on and any(windows):
        raise config.error("layer_types", f"has {SLIDING}, but use_sliding_window is not true")
    return windows


_DENSE = SHAPE | GROUPED | WINDOWS | words("use_sliding_window max_window_layers")
_SPARSE = _DENSE | EXPERTS | words("moe_intermediate_size decoder_sparse_step mlp_only_layers")

QWEN2 = Family(model_types=("qwen2",), read=_read_qwen2, fields=_DENSE)

QWEN3 = Family(model_types=("qwen3",), read=_read_qwen3, fields=_DENSE | words("attention_bias"))

QWEN2_MOE = Family(
    model_types=("qwen2_moe",),
    read=_read_qwen2_moe,
    fields=_SPARSE | words("qkv_bias shared_expert_intermediate_size"),
    harmless=ROUTING,
)

QWEN3_MOE = Family(
    model_types=("qwen3_moe",),
    read=_read_qwen3_moe,
    fields=_SPARSE | words("attention_bias"),
    harmless=ROUTING | words("use_qk_norm"),
)
