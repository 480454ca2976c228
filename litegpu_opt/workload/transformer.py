"""The shape of a dense decoder-only transformer and its exact parameter counts."""

import math
from dataclasses import dataclass

from ..errors import UserError


@dataclass(frozen=True)
class Transformer:
    """A dense decoder-only transformer: plain Python numbers, hashable, static under `jit`.

    Symbols in the equations: L layers, h hidden, q query heads, k key/value heads, e head
    dimension, f feed-forward width, V vocabulary, n tensor-parallel degree.
    """

    name: str
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated_mlp: bool
    """Three matrices (gate, up, down) instead of two (up, down)."""
    tied_embeddings: bool
    """The input embedding is also the LM head: stored once, multiplied all the same."""
    attention_bias: bool
    """Bias of the query, key and value projections."""
    output_bias: bool
    """Bias of the attention's output projection."""
    mlp_bias: bool
    norm_parameters: int
    """Parameters of one norm: h for an RMS norm, 2h for a layer norm with bias."""
    position_rows: int
    """Rows of the learned position table; 0 where positions are computed."""
    assumed: tuple[str, ...] = ()
    """Facts that the file does not state, for the echo of the inputs."""

    @property
    def input_matrices(self) -> int:
        """Matrices that read the MLP's input: 2 (gate and up) when gated, else 1."""
        return 2 if self.gated_mlp else 1

    @property
    def attention_matrix_parameters(self) -> int:
        """Attention matrices of one layer: h (q + 2k) e + q e h."""
        q, k, e = self.heads, self.kv_heads, self.head_dim
        return self.hidden * (q + 2 * k) * e + q * e * self.hidden

    @property
    def mlp_matrix_parameters(self) -> int:
        """MLP matrices of one layer: 3 h f when gated, else 2 h f."""
        return (self.input_matrices + 1) * self.hidden * self.ffn

    @property
    def layer_matrix_parameters(self) -> int:
        """Attention and MLP matrices of one layer."""
        return self.attention_matrix_parameters + self.mlp_matrix_parameters

    @property
    def layer_bias_parameters(self) -> int:
        """Biases of one layer: (q + 2k) e, h, and m f + h with m input matrices, where present."""
        qkv = (self.heads + 2 * self.kv_heads) * self.head_dim
        mlp = self.input_matrices * self.ffn + self.hidden
        return self.attention_bias * qkv + self.output_bias * self.hidden + self.mlp_bias * mlp

    @property
    def norm_parameters_total(self) -> int:
        """Two norms in each layer and one after the last: (2L + 1) parameters per norm."""
        return (2 * self.layers + 1) * self.norm_parameters

    @property
    def vocabulary_parameters(self) -> int:
        """Input embedding and LM head: V h when tied, else 2 V h."""
        return (1 if self.tied_embeddings else 2) * self.vocab * self.hidden

    @property
    def position_parameters(self) -> int:
        """Learned positions: rows times h."""
        return self.position_rows * self.hidden

    @property
    def parameters_total(self) -> int:
        """L (matrices + biases) + norms + vocabulary + positions; each stored matrix once."""
        return (
            self.layers * (self.layer_matrix_parameters + self.layer_bias_parameters)
            + self.norm_parameters_total
            + self.vocabulary_parameters
            + self.position_parameters
        )

    @property
    def parameters_active(self) -> int:
        """Parameters that take part in one token: all of them in a dense model."""
        return self.parameters_total

    def tensor_parallel_degrees(self, limit: int) -> tuple[int, ...]:
        """Degrees up to `limit` that split both the query heads and the feed-forward width."""
        common = math.gcd(self.heads, self.ffn)
        return tuple(n for n in range(1, min(limit, common) + 1) if common % n == 0)

    def check_tensor_parallel(self, tp: int, where: str = "") -> None:
        """Raise a `UserError` unless `tp` devices can share the heads and the MLP evenly."""
        if isinstance(tp, bool) or not isinstance(tp, int) or tp < 1:
            fault = "is not a positive whole number"
        elif self.heads % tp:
            fault = f"does not divide num_attention_heads {self.heads} of {self.name}"
        elif self.ffn % tp:
            fault = f"does not divide intermediate_size {self.ffn} of {self.name}"
        else:
            return
        valid = ", ".join(str(n) for n in self.tensor_parallel_degrees(self.heads))
        raise UserError(f"tensor-parallel degree {tp!r} {fault}", where=where, allowed=valid)

    def heads_per_device(self, tp: int) -> int:
        """Query heads on one device: q/n, exact."""
        self.check_tensor_parallel(tp)
        return self.heads // tp

    def kv_heads_per_device(self, tp: int) -> int:
        """Key/value heads on one device: max(1, ceil(k/n)). Beyond n = k they are replicated."""
        self.check_tensor_parallel(tp)
        return max(1, -(-self.kv_heads // tp))

    def ffn_per_device(self, tp: int) -> int:
        """Feed-forward columns on one device: f/n, exact."""
        self.check_tensor_parallel(tp)
        return self.ffn // tp

    def vocab_per_device(self, tp: int) -> int:
        """Vocabulary rows on one device: ceil(V/n), the last device's shard padded."""
        self.check_tensor_parallel(tp)
        return -(-self.vocab // tp)
