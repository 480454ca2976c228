"""What one device of a tensor-parallel group holds, in exact bytes. Does not import JAX."""

from .precision import Precision
from .transformer import Transformer


def weight_bytes_per_device(transformer: Transformer, precision: Precision, tp: int) -> int:
    """Resident parameters of one of n = `tp` devices, in bytes; exact.

    Split: query heads q/n, key/value heads max(1, ceil(k/n)), f/n columns with their biases,
    ceil(V/n) vocabulary rows. Replicated: norms, positions, and the biases of the output and
    down projections.
    """
    model, h, e = transformer, transformer.hidden, transformer.head_dim
    q, k = model.heads_per_device(tp), model.kv_heads_per_device(tp)
    f, vocab_rows = model.ffn_per_device(tp), model.vocab_per_device(tp)
    m = model.input_matrices
    matrices = h * (q + 2 * k) * e + q * e * h + (m + 1) * h * f
    biases = (
        model.attention_bias * (q + 2 * k) * e
        + model.output_bias * h
        + model.mlp_bias * (m * f + h)
    )
    vocabulary = (1 if model.tied_embeddings else 2) * vocab_rows * h
    others = (
        model.layers * biases + vocabulary + model.norm_parameters_total + model.position_parameters
    )
    return model.layers * matrices * precision.weight_bytes + others * precision.activation_bytes


def kv_bytes_per_token(transformer: Transformer, precision: Precision, tp: int) -> int:
    """KV cache of one token on one of n = `tp` devices: 2 L max(1, ceil(k/n)) e bytes; exact."""
    heads = transformer.kv_heads_per_device(tp)
    return 2 * transformer.layers * heads * transformer.head_dim * precision.kv_bytes
