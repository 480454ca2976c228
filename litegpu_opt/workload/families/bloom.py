"""BLOOM: layer norms with bias, also after the embedding, plain MLP of 4h, ALiBi positions."""

from ..config_file import ConfigFile
from ..transformer import Transformer
from .family import SHAPE, Family, layer_norm_model, multi_head_attention, words


def _read(config: ConfigFile) -> Transformer:
    config.assume("biases in every linear layer of a block")
    config.assume("layer norm with bias after the embedding")
    return layer_norm_model(
        config,
        multi_head_attention(config, bias=True),
        bias=True,
        embedding_norm=True,
        wide=True,
    )


BLOOM = Family(
    model_types=("bloom",),
    read=_read,
    fields=SHAPE,
    harmless=words(
        "apply_residual_connection_post_layernorm attention_softmax_in_fp32 bias_dropout_fusion "
        "masked_softmax_fusion offset_alibi skip_bias_add skip_bias_add_qkv slow_but_exact"
    ),
)
