"""What a family module provides, and the parts that families share."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..config_file import ConfigFile, every_spelling
from ..transformer import DenseMlp, Experts, GroupedAttention, Layer, Mlp, Transformer


MOST_LAYERS = 1000

SLIDING, FULL = "sliding_attention", "full_attention"


def words(text: str) -> frozenset[str]:
    """Names of fields, separated by blanks."""
    return frozenset(text.split())


SHAPE = words(
    "hidden_size num_hidden_layers num_attention_heads intermediate_size vocab_size "
    "tie_word_embeddings"
)
GROUPED = words("num_key_value_heads head_dim")
WINDOWS = words("sliding_window layer_types")
EXPERTS = words("num_local_experts num_experts_per_tok")
"""Fields that several families read, in one spelling."""
ROUTING = words("norm_topk_prob output_router_logits router_aux_loss_coef router_jitter_noise")
"""Fields of mixtures of experts that change no count."""


class Family(NamedTuple):
    """Models that are read alike."""

    model_types: tuple[str, ...]
    """Values of `model_type` in their files."""
    read: Callable[[ConfigFile], Transformer]
    fields: frozenset[str]
    """Fields of the file that `read` looks at, in one spelling."""
    harmless: frozenset[str] = frozenset()
    """Fields of these models that change no count."""
    wrappers: tuple[str, ...] = ()
    """Values of `model_type` of multimodal models, which hold the shape in a nested object."""
    also_named: tuple[str, ...] = ()
    """Model types whose names `architectures` may have in place of the file's own."""

    @property
    def understood(self) -> frozenset[str]:
        """Fields that are read or known to change no count, under all spellings."""
        return every_spelling(self.fields) | self.harmless


def layer_count(config: ConfigFile) -> int:
    """L, bounded so that the tuple of layers stays small."""
    return config.count("num_hidden_layers", most=MOST_LAYERS)


def head_dimension(config: ConfigFile, default: int | None = None) -> int:
    """e: as stated, else as the family has it, else h/q."""
    if default is None and config.optional_count("head_dim") is None:
        return derived_head_dim(config)
    return config.count("head_dim", default=default)


def derived_head_dim(config: ConfigFile) -> int:
    """e = h/q."""
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    if hidden % heads:
        raise config.error("num_attention_heads", f"{heads} does not divide hidden size {hidden}")
    config.assume(f"head_dim = {hidden // heads} (hidden_size / num_attention_heads)")
    return hidden // heads


def grouped_attention(
    config: ConfigFile,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    **facts: bool,
) -> GroupedAttention:
    """Grouped-query attention without window.

    **Arguments:**

    - `heads`, `kv_heads`, `head_dim`: what the family fixes where the file says nothing. Without
      them the head counts must be stated, and e = h/q.
    - `facts`: biases, norms and sinks.
    """
    heads = config.count("num_attention_heads", default=heads)
    kv_heads = config.count("num_key_value_heads", default=kv_heads)
    if heads % kv_heads:
        raise config.error(
            "num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}"
        )
    return GroupedAttention(heads, kv_heads, head_dimension(config, head_dim), **facts)


def multi_head_attention(config: ConfigFile, *, bias: bool) -> GroupedAttention:
    """One key/value head per query head, e = h/q; `bias`: of all four projections."""
    heads = config.count("num_attention_heads")
    config.assume(f"{heads} key/value heads, one per query head")
    e = derived_head_dim(config)
    return GroupedAttention(heads, heads, e, input_bias=bias, output_bias=bias)


def stated_biases(config: ConfigFile, *, default: bool = False) -> dict[str, bool]:
    """Biases of all four projections, as `attention_bias` says."""
    bias = config.flag("attention_bias", default=default)
    return dict(input_bias=bias, output_bias=bias)


def gated_mlp(config: ConfigFile, *, bias: bool = False) -> DenseMlp:
    """Gated MLP of f = `intermediate_size`."""
    config.assume("gated MLP of three matrices")
    return DenseMlp(config.count("intermediate_size"), gated=True, bias=bias)


def gated_experts(config: ConfigFile, *, width: str, **facts: Any) -> Experts:
    """Experts that are gated MLPs; `width` is the field with the width of one."""
    config.assume("every expert is a gated MLP of three matrices")
    count = config.count("num_local_experts")
    per_token = config.count("num_experts_per_tok", most=count)
    return Experts(count, per_token, config.count(width), **facts)


def some_sparse(config: ConfigFile, experts: Experts, sparse: Sequence[bool]) -> list[Mlp]:
    """Experts in some layers, a gated MLP of `intermediate_size` in the others, if any."""
    other = experts if all(sparse) else gated_mlp(config)
    return [experts if is_sparse else other for is_sparse in sparse]


def layer_windows(config: ConfigFile, slides: Callable[[int], bool]) -> list[int | None]:
    """Window of every layer; `None`: it sees all tokens.

    `sliding_window` is off where it is absent, null or 0, as files of Qwen2-MoE write it. Which
    layers slide is stated in `layer_types`; where it is not, `slides` is the family's rule.
    """
    layers = layer_count(config)
    window = config.optional_count("sliding_window", least=0) or None
    kinds = config.listed("layer_types", (SLIDING, FULL), f"{SLIDING}, {FULL}")
    if kinds is None:
        sliding = [slides(layer) for layer in range(layers)]
    elif len(kinds) != layers:
        raise config.error("layer_types", f"has {len(kinds)} entries for {layers} layers")
    else:
        sliding = [kind == SLIDING for kind in kinds]
        if window is None and any(sliding):
            raise config.error("sliding_window", f"missing, but layer_types has {SLIDING}")
    return [window if slide else None for slide in sliding]


def windows_but_every(config: ConfigFile, period: int) -> list[int | None]:
    """Windows of a family in which every `period`-th layer sees all tokens and the others slide."""
    if config.fields.get("layer_types") is None:
        if not config.states("sliding_window"):
            raise config.error("sliding_window", "missing", allowed="a whole number, null")
        config.assume(f"of every {period} layers the last sees all, the others sliding_window")
    return layer_windows(config, lambda layer: (layer + 1) % period != 0)


def windowed_layers(
    attention: GroupedAttention,
    mlps: Mlp | Sequence[Mlp],
    windows: Sequence[int | None],
    *,
    norms: int = 2,
) -> list[Layer]:
    """Layers with the same heads, by their windows, and by their MLPs if these differ."""
    if not isinstance(mlps, Sequence):
        mlps = [mlps] * len(windows)
    pairs = zip(windows, mlps, strict=True)
    return [Layer(replace(attention, window=window), mlp, norms) for window, mlp in pairs]


def rms_model(
    config: ConfigFile,
    layers: Sequence[Layer],
    *,
    tied: bool = False,
    vocab: int | None = None,
    predictions: int = 0,
) -> Transformer:
    """A model with RMS norms, h parameters each, and computed positions.

    **Arguments:**

    - `tied`, `vocab`: what the family fixes where the file says nothing.
    - `predictions`: number of prediction layers, which are like the last layer.
    """
    config.assume(f"RMS norms without bias: {layers[0].norms} per layer and one after the last")
    frame = _frame(config, layers, tied=tied, vocab=vocab)
    return Transformer(
        norm_parameters=frame["hidden"],
        prediction_layers=frame["layers"][-1:] * predictions,
        **frame,
    )


def layer_norm_model(
    config: ConfigFile,
    attention: GroupedAttention,
    *,
    bias: bool,
    wide: bool = False,
    norms: int = 2,
    parallel: bool = False,
    **facts: Any,
) -> Transformer:
    """A model of equal layers with layer norms, 2h parameters each, and plain MLPs.

    **Arguments:**

    - `bias`: whether the matrices of the MLP have biases.
    - `wide`: f = 4h where the file says nothing.
    - `norms`, `parallel`: of the layers.
    - `facts`: positions and norm of the embedding.
    """
    hidden = config.count("hidden_size")
    width = config.count("intermediate_size", default=4 * hidden if wide else None)
    config.assume("plain MLP of two matrices")
    config.assume(f"layer norms with bias: {norms} per layer and one after the last")
    layer = Layer(attention, DenseMlp(width, gated=False, bias=bias), norms, parallel)
    return Transformer(
        norm_parameters=2 * hidden,
        **facts,
        **_frame(config, [layer] * layer_count(config), tied=True),
    )


def _frame(
    config: ConfigFile, layers: Iterable[Layer], *, tied: bool, vocab: int | None = None
) -> dict[str, Any]:
    """What every model has; layers that are equal become one object."""
    first: dict[Layer, Layer] = {}
    return dict(
        name=config.name,
        family=config.model_type,
        hidden=config.count("hidden_size"),
        vocab=config.count("vocab_size", default=vocab),
        layers=tuple(first.setdefault(layer, layer) for layer in layers),
        tied_embeddings=config.flag("tie_word_embeddings", default=tied),
    )
