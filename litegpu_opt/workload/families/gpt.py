"""GPT-like models: layer norms with bias, learned positions, plain MLP, one KV head per head."""

from ..config_file import ConfigFile
from ..transformer import Transformer
from .family import SHAPE, Family, layer_norm_model, multi_head_attention, words


OPT_POSITION_OFFSET = 2
"""OPT's position table begins with two rows that no token uses."""


def _read_opt(config: ConfigFile) -> Transformer:
    hidden = config.count("hidden_size")
    if config.count("word_embed_proj_dim", default=hidden) != hidden:
        raise config.error(
            "word_embed_proj_dim",
            "projections around the embedding are not understood",
            allowed=f"hidden_size {hidden}",
        )
    config.require("do_layer_norm_before", expected=True)
    config.require("layer_norm_elementwise_affine", expected=True)
    config.require("_remove_final_layer_norm", expected=False)
    config.assume(f"{OPT_POSITION_OFFSET} position rows beyond max_position_embeddings")
    bias = config.flag("enable_bias", default=True)
    return layer_norm_model(
        config,
        multi_head_attention(config, bias=bias),
        bias=bias,
        position_rows=config.count("max_position_embeddings") + OPT_POSITION_OFFSET,
    )


def _read_gpt2(config: ConfigFile) -> Transformer:
    config.require("add_cross_attention", expected=False)
    config.assume("biases in every linear layer of a block")
    return layer_norm_model(
        config,
        multi_head_attention(config, bias=True),
        bias=True,
        position_rows=config.count("max_position_embeddings"),
        wide=True,
    )


OPT = Family(
    model_types=("opt",),
    read=_read_opt,
    fields=SHAPE
    | words(
        "_remove_final_layer_norm do_layer_norm_before enable_bias layer_norm_elementwise_affine "
        "max_position_embeddings word_embed_proj_dim"
    ),
)

GPT2 = Family(
    model_types=("gpt2",),
    read=_read_gpt2,
    fields=SHAPE | words("add_cross_attention max_position_embeddings"),
)
