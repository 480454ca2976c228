"""Bytes that one device puts on the wire in a collective over `ranks` devices.

`message` is the size S of the whole tensor, in any unit; the result is in the same unit. One
rank sends exactly nothing.
"""

from collections.abc import Callable

from jax import Array

from ..errors import unknown_name


_ALL_REDUCE_FACTOR: dict[str, Callable[[int], float]] = {
    "ring": lambda n: 2 * (n - 1) / n,
    "in-network": lambda n: (n + 1) / n,
}

ALL_REDUCE_ALGORITHMS = tuple(_ALL_REDUCE_FACTOR)


def all_reduce_wire(message: float | Array, ranks: int, algorithm: str = "ring") -> float | Array:
    """All-reduce of a tensor of size S over n devices.

    - `ring`: a reduce-scatter and an all-gather, 2 (n - 1)/n S.
    - `in-network`: the switch adds, (n + 1)/n S.

    Source: the traffic of NCCL's algorithms as explained in nccl-tests (issues 212 and 274).
    """
    if algorithm not in _ALL_REDUCE_FACTOR:
        raise unknown_name("all-reduce algorithm", algorithm, ALL_REDUCE_ALGORITHMS)
    factor = _ALL_REDUCE_FACTOR[algorithm](ranks) if ranks > 1 else 0.0
    return message * factor


def all_gather_wire(message: float | Array, ranks: int) -> float | Array:
    """All-gather of a tensor of size S spread over n devices: (n - 1)/n S."""
    return message * ((ranks - 1) / ranks)
