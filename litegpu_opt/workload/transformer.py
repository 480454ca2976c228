"""The shape of a decoder-only transformer: plain Python numbers, hashable, static under `jit`.

Symbols in the equations: L layers, h hidden, q query heads, k key/value heads, e head dimension,
f feed-forward width, E experts, V vocabulary.
"""

from dataclasses import dataclass

from .formats import Format


@dataclass(frozen=True)
class GroupedAttention:
    """q query heads over k key/value heads: multi-head (k = q), grouped, multi-query (k = 1)."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    """Tokens that a query sees; `None`: all before it."""
    input_bias: bool = False
    """Bias of the query, key and value projections."""
    output_bias: bool = False
    head_norms: bool = False
    """RMS norm of the queries and of the keys, e parameters each, shared by the heads."""
    sinks: bool = False
    """A learned score per query head beside those of the tokens."""
    keys_are_values: bool = False
    """One projection makes both; they are normed differently, and both cached."""


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention: keys and values are made from one cached latent per token.

    Cached: `kv_rank` numbers and a rotary key of `rope_dim`, shared by all heads.
    """

    heads: int
    query_rank: int | None
    """Width of the queries' own latent; `None`: queries are made from the hidden state."""
    kv_rank: int
    nope_dim: int
    """Part of a head's query and key that carries no position."""
    rope_dim: int
    value_dim: int

    @property
    def window(self) -> None:
        """A query sees all tokens before it."""
        return None


class _Gateable:
    """A feed-forward network that may have a gate."""

    gated: bool

    @property
    def input_matrices(self) -> int:
        """m: matrices that read the input, 2 (gate and up) when gated, else 1."""
        return 2 if self.gated else 1


@dataclass(frozen=True)
class DenseMlp(_Gateable):
    """Gated: three matrices (gate, up, down). Plain: two (up, down)."""

    width: int
    gated: bool
    bias: bool = False


@dataclass(frozen=True)
class Experts(_Gateable):
    """Mixture of experts: a router picks `per_token` of `count` MLPs for every token."""

    count: int
    per_token: int
    width: int
    """Feed-forward width of one expert."""
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    """One parameter per expert, added to its score or multiplied with its weight."""
    shared_width: int = 0
    """Width of the dense MLP beside them, through which every token goes; 0: none."""
    shared_gate: bool = False
    """A vector of h that weighs the shared MLP's result."""


Attention = GroupedAttention | LatentAttention
Mlp = DenseMlp | Experts


@dataclass(frozen=True)
class Layer:
    """One block: attention, MLP and their norms."""

    attention: Attention
    mlp: Mlp
    norms: int = 2
    parallel: bool = False
    """Attention and MLP read the same input and their results are summed together."""


@dataclass(frozen=True)
class Transformer:
    """A decoder-only transformer."""

    name: str
    family: str
    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    """In their order; equal layers are the same object."""
    norm_parameters: int
    """Parameters of one norm: h for an RMS norm, 2h for a layer norm with bias."""
    tied_embeddings: bool
    """The input embedding is also the LM head: stored once, multiplied all the same."""
    position_rows: int = 0
    """Rows of the learned position table; 0 where positions are computed."""
    embedding_norm: bool = False
    """A norm right after the input embedding."""
    prediction_layers: tuple[Layer, ...] = ()
    """Multi-token-prediction layers: draft heads, no part of serving one token at a time."""
    quantized: tuple[tuple[str, Format], ...] = ()
    """Part of the model -> format of its matrices in the checkpoint, where it is quantised."""
    kv_format: Format | None = None
    """Format of the KV cache that the checkpoint asks for."""
    assumed: tuple[str, ...] = ()
    """Facts that the file does not state, for the echo of the inputs."""

    @property
    def first(self) -> Layer:
        """The first layer; the shape of heads is the same in all of them."""
        return self.layers[0]

    @property
    def heads(self) -> int:
        """Query heads of a layer."""
        return self.first.attention.heads

    @property
    def has_experts(self) -> bool:
        """Whether any layer is a mixture of experts."""
        return any(isinstance(layer.mlp, Experts) for layer in self.layers)

    @property
    def has_latents(self) -> bool:
        """Whether any layer has latent attention."""
        return any(isinstance(layer.attention, LatentAttention) for layer in self.layers)
