"""Mixtures of experts in a search: bounds of the experts that a batch touches.

Of E experts, a batch of B sequences that each send n tokens to k of them touches

    T(B) = E (1 - exp(-r B)),   r = -n log(1 - k/E),

on average. `log T` is concave in `log B`, so the bytes of the experts are not convex. Two powers of
B are, and enclose T:

- the chord between the ends of a range of batches is below T inside it. With it, a problem is
  convex and no more expensive than the true one: its bound holds for the true one in that range.
- the tangent at a batch is above T everywhere. With it, a problem is convex and no cheaper: its
  optimum is feasible. Tangents taken again at the optimum end in an optimum of the true problem.

So the range of batches of such a pool is a discrete choice: ranges are narrow enough for a first
bound, and those that could still hold something better are divided until the gap is small.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..numerics import TINY, AnyArray
from ..space import DESIGN_VARIABLES, POOL_BOX
from ..workload.counts import ExpertCounts, RoutedExperts
from ..workload.phases import PHASES
from ..workload.pool import Pool
from .problem import Branch


COARSE = 0.02
"""Relative error of a chord in the first ranges."""
DIVISIONS = 10
"""Rounds in which ranges are divided."""
CLOSE = 1e-4
"""Relative gain that is not worth dividing a range for."""
POINTS = 33
"""Points of a range at which the error of its chord is measured."""
SHRINK = 0.9
"""By which a range is made narrower until its chord is good enough."""
BESIDE = 0.1
"""A cut is this share of the way to the far end of a range away from the point in it."""
SAME = 1e-9
"""Logarithms that differ by less are one batch."""
MOST_LOG = 600.0
"""Exponents beyond are cut: every expert is touched long before."""

Range = tuple[float, float]
"""Least and largest batch of a pool."""


class PowerExperts(ExpertCounts):
    """Experts of which a batch touches `coefficient B^exponent`, arrays `(ops,)`."""

    coefficient: AnyArray
    exponent: AnyArray

    def touched(self, batch: Array) -> Array:
        """Expected number of experts, or a bound of it."""
        return jnp.asarray(self.coefficient) * jnp.exp(self.exponent * jnp.log(batch))


def _log_share(log_miss: AnyArray, log_batch: AnyArray, module: ModuleType = np) -> Any:
    """Logarithm of the share of the experts that a batch touches, `log(1 - exp(-r B))`."""
    tokens = module.minimum(-module.asarray(log_miss) * module.exp(log_batch), MOST_LOG)
    return module.log(module.maximum(-module.expm1(-tokens), TINY))


def _power(
    experts: RoutedExperts, lower: AnyArray, upper: AnyArray, module: ModuleType
) -> PowerExperts:
    """The chord between two logarithms of the batch, or the tangent where they are the same."""
    log_miss, width = module.asarray(experts.log_miss_per_seq), upper - lower
    start = _log_share(log_miss, lower, module)
    tokens = module.minimum(-log_miss * module.exp(lower), MOST_LOG)
    slope = module.where(tokens > 0.0, tokens / module.maximum(module.expm1(tokens), TINY), 1.0)
    rise = _log_share(log_miss, upper, module) - start
    exponent = module.where(width > SAME, rise / module.maximum(width, SAME), slope)
    return PowerExperts(
        gb=experts.gb,
        coefficient=module.asarray(experts.held) * module.exp(start - exponent * lower),
        exponent=exponent,
    )


def _with_experts(
    branches: Branch, lower: AnyArray, upper: AnyArray, module: ModuleType = np
) -> Branch:
    """The branches with experts bounded between logarithms of the batches, `(lanes, pools)`; or one
    branch, `(pools,)`.

    **Arguments:**

    - `module`: `numpy`, or `jax.numpy` inside a program.
    """
    experts = branches.pools.operators.experts
    assert isinstance(experts, RoutedExperts)
    power = _power(experts, lower[..., None], upper[..., None], module)
    return eqx.tree_at(lambda b: b.pools.operators.experts, branches, power)


def has_experts(branches: Branch) -> bool:
    """Whether some pool has experts."""
    return branches.pools.operators.experts is not None


def _batches(pools: int) -> slice:
    """Where the batches are along the vector of variables, after the design and its TDP."""
    first = len(DESIGN_VARIABLES) + 1
    return slice(first, first + pools)


def _batch_box(pools: int) -> list[Range]:
    """All batches that are searched, for every pool."""
    return [POOL_BOX["batch_{}"][phase] for phase in PHASES] * (pools // len(PHASES))


def below(branches: Branch) -> Branch:
    """Convex problems that are nowhere more expensive than the branches, with a lane axis."""
    at = _batches(branches.pool_count)
    free, fixed = branches.free[:, at], branches.fixed[:, at]
    lower, upper = (np.where(free, end[:, at], fixed) for end in (branches.lower, branches.upper))
    return _with_experts(branches, lower, upper)


def below_between(branch: Branch, lower: Array, upper: Array) -> Branch:
    """A convex problem that is nowhere more expensive than one branch between two corners, given in
    logarithms of the variables; inside a program.
    """
    at = _batches(branch.pool_count)
    free, fixed = jnp.asarray(branch.free)[at], jnp.asarray(branch.fixed)[at]
    ends = (jnp.where(free, end[at], fixed) for end in (lower, upper))
    return _with_experts(branch, *ends, module=jnp)


def above(branches: Branch, x: np.ndarray) -> Branch:
    """Convex problems that are nowhere cheaper than the branches, and touch them at `x`; over all
    batches, since a tangent bounds in every range.
    """
    at = _batches(branches.pool_count)
    touching = np.where(branches.free[:, at], x[:, at], branches.fixed[:, at])
    return _with_experts(with_all_batches(branches), touching, touching)


def with_all_batches(branches: Branch) -> Branch:
    """One branch or many with the whole box of batches."""
    box = within(branches.lower, branches.upper, branches.free, _batch_box(branches.pool_count))
    return replace(branches, **box)


def within(
    lower: AnyArray, upper: AnyArray, free: AnyArray, ranges: Sequence[Range]
) -> dict[str, np.ndarray]:
    """The box with the batches that are searched in given ranges: fields of `Branch`."""
    at = _batches(len(ranges))
    box = {"lower": np.array(lower), "upper": np.array(upper)}
    for end, value in zip(box.values(), np.log(ranges).T, strict=True):
        end[..., at] = np.where(np.asarray(free)[..., at], value, end[..., at])
    return box


def moved(branches: Branch, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Largest change of the logarithm of a searched batch, `(lanes,)`."""
    at = _batches(branches.pool_count)
    return np.max(np.abs(x - y)[:, at] * branches.free[:, at], axis=1)


def chord_error(pool: Pool, lower: float, upper: float) -> float:
    """Largest relative error of the chord between two batches; 0 without experts."""
    experts = pool.operators.experts
    if not isinstance(experts, RoutedExperts):
        return 0.0
    log_miss = np.unique(np.asarray(experts.log_miss_per_seq)[np.asarray(experts.gb) > 0.0])
    if not log_miss.size:
        return 0.0
    shares = _log_share(log_miss[:, None], np.linspace(math.log(lower), math.log(upper), POINTS))
    chords = np.linspace(shares[:, 0], shares[:, -1], POINTS, axis=1)
    return float(np.max(shares - chords))


def ranges_of(pools: Pool) -> list[list[Range]]:
    """For every pool, ranges of its batch with a chord error of `COARSE` at most.

    `pools` have a leading axis.
    """
    boxes = _batch_box(len(pools.devices))
    return [list(pairwise(_ends(_pool(pools, n), *box))) for n, box in enumerate(boxes)]


def _pool(pools: Pool, number: int) -> Pool:
    return jax.tree.map(lambda leaf: leaf[number], pools)


def _ends(pool: Pool, lower: float, upper: float) -> Iterator[float]:
    yield lower
    while True:
        end = upper
        while chord_error(pool, lower, end) > COARSE:
            end = lower * (end / lower) ** SHRINK
        yield end
        if end == upper:
            return
        lower = end


def divided(branch: Branch, x: np.ndarray) -> list[Branch]:
    """Two branches in place of one: the range of the worst chord is cut beside `x`, towards its far
    end. None where no chord can be better.

    Not at `x` itself, which may be the last batch that a limit allows: nothing would be feasible
    inside the range beyond it.
    """
    at = _batches(branch.pool_count)
    lower, upper = np.asarray(branch.lower)[at], np.asarray(branch.upper)[at]
    errors = np.where(
        np.asarray(branch.free)[at],
        [
            chord_error(_pool(branch.pools, n), math.exp(low), math.exp(high))
            for n, (low, high) in enumerate(zip(lower, upper, strict=True))
        ],
        0.0,
    )
    worst = int(np.argmax(errors))
    if errors[worst] == 0.0:
        return []
    low, high = lower[worst], upper[worst]
    near = min(max(float(np.asarray(x)[at][worst]), low), high)
    far = low if near - low > high - near else high
    cut = near + BESIDE * (far - near)
    left, right = np.array(branch.upper), np.array(branch.lower)
    left[at.start + worst] = right[at.start + worst] = cut
    return [replace(branch, upper=left), replace(branch, lower=right)]
