"""Llama: RMS norms, rotary positions, gated MLP, grouped key/value heads."""

from ..config_file import ConfigFile
from ..transformer import Transformer
from .family import Family, whole_head_dim


def _read(config: ConfigFile) -> Transformer:
    hidden = config.count("hidden_size")
    heads = config.count("num_attention_heads")
    kv_heads = config.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise config.error(
            "num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}"
        )
    if config.fields.get("head_dim") is None:
        head_dim = whole_head_dim(config, hidden, heads)
        config.assume(f"head_dim = {head_dim} (hidden_size / num_attention_heads)")
    else:
        head_dim = config.count("head_dim")
    attention_bias = config.flag("attention_bias", default=False)
    config.assume("gated MLP of three matrices")
    config.assume("RMS norms: two per layer and one after the last, without bias")
    return Transformer(
        name=config.name,
        family="llama",
        layers=config.count("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=config.count("intermediate_size"),
        vocab=config.count("vocab_size"),
        gated_mlp=True,
        tied_embeddings=config.flag("tie_word_embeddings", default=False),
        attention_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=config.flag("mlp_bias", default=False),
        norm_parameters=hidden,
        position_rows=0,
        assumed=tuple(config.assumed),
    )


LLAMA = Family(
    read=_read,
    fields=frozenset(
        {
            "attention_bias",
            "head_dim",
            "hidden_size",
            "intermediate_size",
            "mlp_bias",
            "num_attention_heads",
            "num_hidden_layers",
            "num_key_value_heads",
            "tie_word_embeddings",
            "vocab_size",
        }
    ),
)
