"""GPT-like models: layer norms with bias, learned positions, plain MLP, one KV head per head."""

from ..config_file import ConfigFile
from ..transformer import Transformer
from .family import Family, whole_head_dim


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
    return _gpt(
        config,
        family="opt",
        layers=config.count("num_hidden_layers"),
        hidden=hidden,
        heads=config.count("num_attention_heads"),
        ffn=config.count("ffn_dim"),
        biases=config.flag("enable_bias", default=True),
        position_rows=config.count("max_position_embeddings") + OPT_POSITION_OFFSET,
    )


def _read_gpt2(config: ConfigFile) -> Transformer:
    hidden = config.count("n_embd", "hidden_size")
    config.require("add_cross_attention", expected=False)
    config.assume("biases in every linear layer of a block")
    return _gpt(
        config,
        family="gpt2",
        layers=config.count("n_layer", "num_hidden_layers"),
        hidden=hidden,
        heads=config.count("n_head", "num_attention_heads"),
        ffn=config.count("n_inner", default=4 * hidden),
        biases=True,
        position_rows=config.count("n_positions", "max_position_embeddings"),
    )


def _gpt(
    config: ConfigFile,
    *,
    family: str,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    biases: bool,
    position_rows: int,
) -> Transformer:
    head_dim = whole_head_dim(config, hidden, heads)
    config.assume(f"{heads} key/value heads of {head_dim}, one per query head")
    config.assume("plain MLP of two matrices")
    config.assume("layer norms: two per layer and one after the last, with bias")
    return Transformer(
        name=config.name,
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=config.count("vocab_size"),
        gated_mlp=False,
        tied_embeddings=config.flag("tie_word_embeddings", default=True),
        attention_bias=biases,
        output_bias=biases,
        mlp_bias=biases,
        norm_parameters=2 * hidden,
        position_rows=position_rows,
        assumed=tuple(config.assumed),
    )


OPT = Family(
    read=_read_opt,
    fields=frozenset(
        {
            "_remove_final_layer_norm",
            "do_layer_norm_before",
            "enable_bias",
            "ffn_dim",
            "hidden_size",
            "layer_norm_elementwise_affine",
            "max_position_embeddings",
            "num_attention_heads",
            "num_hidden_layers",
            "tie_word_embeddings",
            "vocab_size",
            "word_embed_proj_dim",
        }
    ),
)

GPT2 = Family(
    read=_read_gpt2,
    fields=frozenset(
        {
            "add_cross_attention",
            "hidden_size",
            "max_position_embeddings",
            "n_embd",
            "n_head",
            "n_inner",
            "n_layer",
            "n_positions",
            "num_attention_heads",
            "num_hidden_layers",
            "tie_word_embeddings",
            "vocab_size",
        }
    ),
)
