"""One operator on one device: whole numbers of parameters, FLOPs and moved numbers.

Number formats and request lengths come later, in `pool.py`: a count here is what a hand count on
paper gives.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from ..collectives import Exchange


Number = Fraction | int


def whole(number: Fraction) -> Number:
    """The same number, as an `int` if it is one: equal operators are then written alike."""
    return int(number) if number.denominator == 1 else number


NOTHING = Exchange()


@dataclass(frozen=True)
class Routing:
    """Which experts a device holds, and how many tokens meet in them."""

    held: int
    """Experts on the device."""
    count: int
    """E: experts in all."""
    per_token: int
    """Experts that a token goes to."""
    replicas: int
    """Replicas whose tokens go to the same experts."""


@dataclass(frozen=True)
class Operator:
    """Counts of one operator, for one replica and one execution.

    "Per token": of a sequence that passes through. "Per pair": of a query and a key that it sees.
    "Per context": of a token whose keys and values are read.
    """

    name: str
    part: str = "attention"
    """Which of `formats.PARTS` its matrices belong to."""
    launches: int = 1
    """Kernels started."""
    depth: int = 0
    """Products that are summed into one result of a matrix product."""
    quantised_per_token: Number = 0
    """Inputs of a matrix product, which 8-bit matrices need in 8 bits."""
    passes: int = 0
    """Elementwise kernels that may as well be part of the kernels beside them."""
    passed_per_token: Number = 0
    """Numbers that such passes read and write, in the format of activations."""
    held: int = 0
    """Parameters of matrices that the device holds (of one expert, if there is a routing)."""
    read: int = 0
    """Those of them that an execution reads (of one expert that is touched, if routed)."""
    vectors: int = 0
    """Norms, biases, sinks: held, read, in the format of activations."""
    routing: Routing | None = None
    flop_per_token: Number = 0
    """Of matrices, in their format."""
    flop_per_context: Number = 0
    flop_per_pair: Number = 0
    """Scores and values, in the format of activations."""
    moved_per_token: Number = 0
    """Numbers read and written, in the format of activations."""
    moved_per_context: Number = 0
    cached_per_token: Number = 0
    """Numbers written to the KV cache."""
    cached_per_context: Number = 0
    """Numbers read from the KV cache."""
    window: int | None = None
    """Tokens that a query sees."""
    last_token: bool = False
    """Runs for the last token of a sequence alone."""
    exchange: Exchange = NOTHING
    """Collective at its end, per token."""


def linear(
    name: str,
    part: str,
    inputs: int,
    outputs: int,
    *,
    vectors: int = 0,
    moved: Number | None = None,
    cached: Number = 0,
    exchange: Exchange = NOTHING,
    passed: Number = 0,
) -> Operator:
    """A matrix product: inputs x outputs parameters, 2 FLOPs each per token; an elementwise pass of
    `passed` numbers per token goes with it.

    Moves inputs + outputs numbers per token unless `moved` says otherwise.
    """
    size = inputs * outputs
    return Operator(
        name,
        part=part,
        held=size,
        read=size,
        vectors=vectors,
        depth=inputs,
        quantised_per_token=inputs,
        passes=1 if passed else 0,
        passed_per_token=passed,
        flop_per_token=2 * size,
        moved_per_token=inputs + outputs if moved is None else moved,
        cached_per_token=cached,
        exchange=exchange,
    )


def merged(operators: Iterable[Operator]) -> tuple[tuple[int, Operator], ...]:
    """How often each operator runs, in the order of first use."""
    repeats: dict[Operator, int] = {}
    for operator in operators:
        repeats[operator] = repeats.get(operator, 0) + 1
    return tuple((count, operator) for operator, count in repeats.items())
