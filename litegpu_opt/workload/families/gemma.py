"""Gemma 2 and 3: four norms per layer, tied embedding, layers that slide between those that do not.

Gemma 3 norms queries and keys, and its larger sizes come with a vision tower around them.
"""

from collections.abc import Sequence

from ..config_file import ConfigFile
from ..transformer import Transformer
from .family import (
    GROUPED,
    SHAPE,
    WINDOWS,
    Family,
    gated_mlp,
    grouped_attention,
    rms_model,
    stated_biases,
    windowed_layers,
    windows_but_every,
    words,
)


HEAD_DIM = 256

GEMMA3_VOCAB = 262_208
GEMMA3_HEADS, GEMMA3_KV_HEADS = 8, 4
"""Published files of Gemma 3 leave these out where they are so (the heads: those of 4B)."""


def _read_gemma2(config: ConfigFile) -> Transformer:
    return _model(config, windows_but_every(config, 2))


def _read_gemma3(config: ConfigFile) -> Transformer:
    config.assume("RMS norms of queries and keys, shared by the heads")
    period = config.count("sliding_window_pattern", default=6)
    return _model(
        config,
        windows_but_every(config, period),
        heads=GEMMA3_HEADS,
        kv_heads=GEMMA3_KV_HEADS,
        vocab=GEMMA3_VOCAB,
        head_norms=True,
    )


def _model(
    config: ConfigFile,
    windows: Sequence[int | None],
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    vocab: int | None = None,
    head_norms: bool = False,
) -> Transformer:
    biases = stated_biases(config)
    attention = grouped_attention(
        config,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=HEAD_DIM,
        head_norms=head_norms,
        **biases,
    )
    layers = windowed_layers(attention, gated_mlp(config), windows, norms=4)
    return rms_model(config, layers, tied=True, vocab=vocab)


_FIELDS = SHAPE | GROUPED | WINDOWS | words("attention_bias")
_HARMLESS = words(
    "attn_logit_softcapping cache_implementation final_logit_softcapping hidden_activation "
    "query_pre_attn_scalar"
)

GEMMA2 = Family(model_types=("gemma2",), read=_read_gemma2, fields=_FIELDS, harmless=_HARMLESS)

GEMMA3 = Family(
    model_types=("gemma3_text",),
    wrappers=("gemma3",),
    read=_read_gemma3,
    fields=_FIELDS | words("sliding_window_pattern"),
    harmless=_HARMLESS
    | words(
        "boi_token_id boi_token_index eoi_token_id eoi_token_index image_token_id "
        "image_token_index mm_tokens_per_image rope_local_base_freq"
    ),
)
