"""Parameters of a model, and what one device of a group holds, in exact bytes. No JAX."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from .operators import Operator, cache_per_token, stage_layers, stages
from .parallelism import Parallelism, check_parallelism
from .precision import Precision
from .transformer import Transformer


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters of a model."""

    total: int
    active: int
    """Those that one token meets: of the experts, the ones that it goes to. Both vocabulary
    matrices count, though a token reads one row of the input embedding."""
    prediction: int
    """Multi-token-prediction layers, not in `total`; they share embedding and head."""


def parameter_counts(transformer: Transformer) -> ParameterCounts:
    """Every stored parameter once.

    The total is what a single device holds. A prediction layer has, beside its block, the norms of
    its two inputs and of its output and a projection of both inputs to one, 2h h
    (DeepSeek-V3, arXiv 2412.19437).
    """
    (rows,) = stages(transformer, Parallelism(), decode=True)
    counted = [(repeats * (o.held + o.vectors), o.routing) for repeats, o in rows]
    return ParameterCounts(
        total=sum(n * (routing.count if routing else 1) for n, routing in counted),
        active=sum(n * (routing.per_token if routing else 1) for n, routing in counted),
        prediction=_prediction(transformer),
    )


def _prediction(transformer: Transformer) -> int:
    layers = transformer.prediction_layers
    if not layers:
        return 0
    bare = replace(
        transformer,
        layers=layers,
        prediction_layers=(),
        vocab=0,
        position_rows=0,
        embedding_norm=False,
    )
    h = transformer.hidden
    # a bare model has one norm, after the last layer; every prediction layer has three
    norms = (3 * len(layers) - 1) * transformer.norm_parameters
    return parameter_counts(bare).total + norms + len(layers) * 2 * h * h


def weight_bytes_per_device(
    transformer: Transformer, precision: Precision, parallelism: Parallelism
) -> int:
    """Resident parameters of the fullest device of a group, in bytes; exact.

    Split: heads, feed-forward columns with their biases, vocabulary rows, experts, layers over
    stages. Replicated: norms, routers, positions, latent down projections, and key/value heads
    beyond their number.
    """
    check_parallelism(transformer, parallelism)

    def held_bytes(operator: Operator) -> Fraction:
        matrices = operator.held * precision.of_part(operator.part, transformer).bytes
        one = matrices + operator.vectors * precision.of_activations.bytes
        return one * (operator.routing.held if operator.routing else 1)

    return math.ceil(
        max(
            sum((repeats * held_bytes(operator) for repeats, operator in stage), Fraction(0))
            for stage in stages(transformer, parallelism, decode=True)
        )
    )


@dataclass(frozen=True)
class Cached:
    """Layers of one stage that cache alike."""

    bytes_per_token: Fraction
    """Of all these layers, on one device, for the sequences of one replica."""
    window: int | None
    """Tokens that are kept; `None`: all."""


def cached_by_stage(
    transformer: Transformer, precision: Precision, parallelism: Parallelism
) -> tuple[tuple[Cached, ...], ...]:
    """For every stage, the KV cache of its layers by window."""
    check_parallelism(transformer, parallelism)
    number_bytes = precision.of_cache(transformer).bytes

    def of_stage(layers) -> tuple[Cached, ...]:
        sums: dict[int | None, Fraction] = {}
        for layer in layers:
            window = layer.attention.window
            numbers = Fraction(cache_per_token(layer.attention, parallelism))
            sums[window] = sums.get(window, Fraction(0)) + numbers * number_bytes
        return tuple(Cached(total, window) for window, total in sums.items())

    return tuple(of_stage(layers) for layers in stage_layers(transformer, parallelism.pp))


def kv_bytes_per_token(
    transformer: Transformer, precision: Precision, parallelism: Parallelism
) -> Fraction:
    """KV cache of one token on the fullest device, in bytes; exact, while no window is full."""
    return kv_bytes_per_sequence(transformer, precision, parallelism, tokens=1)


def kv_bytes_per_sequence(
    transformer: Transformer, precision: Precision, parallelism: Parallelism, tokens: int
) -> Fraction:
    """KV cache of a sequence on the fullest device, in bytes; exact. A layer with a window keeps
    no more tokens than it sees.
    """
    return max(
        sum(
            (row.bytes_per_token * min(tokens, row.window or tokens) for row in stage),
            Fraction(0),
        )
        for stage in cached_by_stage(transformer, precision, parallelism)
    )
