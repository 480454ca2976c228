"""Collectives: numbers on the link of one rank, and the latency steps that follow each other.

S is the size of the whole tensor, in any unit, and n the number of ranks:

| collective | ring | in-network | one-shot | two-shot |
|---|---|---|---|---|
| all-reduce | 2(n-1)/n S in 2(n-1) | (n+1)/n S in 2 | (n-1) S in 1 | 2(n-1)/n S in 2 |
| reduce-scatter | (n-1)/n S in n-1 | S in 1 | (n-1)/n S in 1 | (n-1)/n S in 1 |
| all-gather | (n-1)/n S in n-1 | (n-1)/n S in 1 | (n-1)/n S in 1 | (n-1)/n S in 1 |
| all-to-all | (n-1)/n S in n-1 | (n-1)/n S in 1 | (n-1)/n S in 1 | (n-1)/n S in 1 |
| point to point | S in 1 | S in 1 | S in 1 | S in 1 |

The link counts in its busier direction: with `in-network`, a rank of an all-gather sends S/n and
receives the rest. For all-to-all, S is what one rank has for all ranks, itself included; `ring`
exchanges it pair by pair. `in-network`: the switch adds and copies. `one-shot`: every rank sends
to all others at once. `two-shot`: the same for a share of the tensor, then the shares are gathered.
One rank sends exactly nothing. Source: the traffic of NCCL's algorithms as explained in nccl-tests
(issues 212 and 274).
"""

from dataclasses import dataclass
from fractions import Fraction

from ..errors import unknown_name


ALGORITHMS = ("ring", "in-network", "one-shot", "two-shot")


def check_algorithm(algorithm: str) -> None:
    """**Raises:** `UserError` for an unknown algorithm."""
    if algorithm not in ALGORITHMS:
        raise unknown_name("collective", str(algorithm), ALGORITHMS, where="collective")


@dataclass(frozen=True)
class Exchange:
    """A collective that ends an operator; by default there is none. Sizes are in numbers."""

    calls: int = 0
    steps: int = 0
    """Latency steps, one after the other."""
    message: Fraction | int = 0
    """Size S of the tensor."""
    wire: Fraction | int = 0
    """What passes the rank's link, in its busier direction."""


def _exchange(size, ranks: int, factor: Fraction | int, steps: int) -> Exchange:
    return Exchange(1, steps, size, size * factor) if ranks > 1 else Exchange()


def all_reduce(size, ranks: int, algorithm: str = "ring") -> Exchange:
    """Every rank ends with the sum of the tensors of all."""
    check_algorithm(algorithm)
    n = ranks
    factor, steps = {
        "ring": (Fraction(2 * (n - 1), n), 2 * (n - 1)),
        "in-network": (Fraction(n + 1, n), 2),
        "one-shot": (n - 1, 1),
        "two-shot": (Fraction(2 * (n - 1), n), 2),
    }[algorithm]
    return _exchange(size, n, factor, steps)


def reduce_scatter(size, ranks: int, algorithm: str = "ring") -> Exchange:
    """Every rank ends with its share of the sum."""
    check_algorithm(algorithm)
    factor = 1 if algorithm == "in-network" else Fraction(ranks - 1, ranks)
    return _exchange(size, ranks, factor, _steps(ranks, algorithm))


def all_gather(size, ranks: int, algorithm: str = "ring") -> Exchange:
    """Every rank ends with the shares of all."""
    check_algorithm(algorithm)
    return _exchange(size, ranks, Fraction(ranks - 1, ranks), _steps(ranks, algorithm))


def all_to_all(size, ranks: int, algorithm: str = "ring") -> Exchange:
    """Every rank sends another share to each rank."""
    check_algorithm(algorithm)
    return _exchange(size, ranks, Fraction(ranks - 1, ranks), _steps(ranks, algorithm))


def point_to_point(size) -> Exchange:
    """One rank sends its tensor to another."""
    return Exchange(1, 1, size, size)


def _steps(ranks: int, algorithm: str) -> int:
    return ranks - 1 if algorithm == "ring" else 1
