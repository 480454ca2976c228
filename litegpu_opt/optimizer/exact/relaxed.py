"""What the relaxed problem says of a lattice: multipliers for its bounds, and narrower ranges.

The range of `x_i` where `f <= c` and every limit holds follows from tilted problems. For any tilt t

    B = min f + t x_i,   g <= 0     gives     x_i >= (B - c)/t

and the same with -t from above. A bound of B will do for B, so that a solve that fails is only
loose; the best of several tilts is close to the range itself.
"""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ...execution.roofline import HardRoof, MeanRoof, SoftRoof, for_pools
from ...programs import compiled
from ..branches import stack
from ..ended import solved
from ..hard import EXPONENTS
from ..lanes import Outcome, mean_roofs_at, put, sharp_exponent
from ..problem import Branch
from ..solving import Progress, solve, weighed_down
from .boxes import FEASIBLE, Rules
from .lattice import Lattice


TILTS = tuple(10.0 ** (-exponent / 2) for exponent in range(7))
"""Weights of a variable beside the objective."""


@dataclass(frozen=True)
class Relaxed:
    """The optimum between the points of a lattice."""

    x: np.ndarray
    bound: float
    """No point of the lattice is below it."""
    rules: Rules


def relax(lattice: Lattice, *, hard: bool, progress: Progress) -> Relaxed:
    """Solve the relaxed problem. Where that fails, multipliers are poor and bounds loose."""
    branches = stack([lattice.branch])
    outcome = _solve(branches, branches.middle, "relaxed", progress, hard=hard)
    proof = outcome
    if not solved(outcome)[0]:  # without the cost, the multipliers prove that nothing is feasible
        costless = weighed_down(branches, 0.0)
        proof = _solve(costless, np.asarray(outcome.x), "infeasible?", progress, hard=hard)
    multipliers, against = (
        np.maximum(np.nan_to_num(np.asarray(o.multipliers[0])), 0.0) for o in (outcome, proof)
    )
    x = np.where(np.isfinite(proof.x[0]), proof.x[0], lattice.branch.middle)
    soft = SoftRoof(sharp_exponent(lattice.branch, jnp.asarray(EXPONENTS[-1] if hard else 0.0)))
    roofs = for_pools(soft, lattice.branch.pool_count)
    return Relaxed(
        x,
        float((outcome.hard_bound if hard else outcome.bound)[0]) - FEASIBLE * multipliers.sum(),
        Rules(
            branch=lattice.branch,
            ties=lattice.ties,
            roofs=HardRoof() if hard else roofs,
            below=_mean_roofs(jnp.asarray(x), lattice.branch, roofs) if hard else None,
            multipliers=multipliers,
            proof=against / max(against.sum(), 1.0),
        ),
    )


def ranges(
    lattice: Lattice, relaxed: Relaxed, ceiling: float, *, hard: bool, progress: Progress
) -> tuple[np.ndarray, np.ndarray]:
    """First and last index of every axis between which all feasible points are that are not above
    the ceiling.
    """
    rows = [(slot, sign * tilt) for slot in lattice.slots for tilt in TILTS for sign in (1.0, -1.0)]
    tilts = np.zeros((len(rows), len(relaxed.x)))
    tilts[np.arange(len(rows)), [slot for slot, _ in rows]] = [tilt for _, tilt in rows]
    branches = replace(stack([lattice.branch] * len(rows)), tilt=tilts)
    starts = np.tile(relaxed.x, (len(rows), 1))
    outcome = _solve(branches, starts, "ranges", progress, hard=hard, bounds_only=True)
    bounds = np.asarray(outcome.hard_bound if hard else outcome.bound)
    bounds = bounds - FEASIBLE * np.maximum(np.asarray(outcome.multipliers), 0.0).sum(axis=1)
    first, last = np.zeros(len(lattice.axes), int), lattice.last.copy()
    for number, (slot, values) in enumerate(zip(lattice.slots, lattice.axes.values(), strict=True)):
        ends = [
            ((bound - ceiling) / tilt, tilt)
            for (of, tilt), bound in zip(rows, bounds, strict=True)
            if of == slot and np.isfinite(bound)
        ]
        low = max((end for end, tilt in ends if tilt > 0.0), default=-np.inf)
        high = min((end for end, tilt in ends if tilt < 0.0), default=np.inf)
        logs = np.log(values)
        first[number] = np.searchsorted(logs, low - FEASIBLE, side="left")
        last[number] = np.searchsorted(logs, high + FEASIBLE, side="right") - 1
    return first, last


def _solve(
    branches: Branch,
    starts: np.ndarray,
    stage: str,
    progress: Progress,
    *,
    hard: bool,
    bounds_only: bool = False,
) -> Outcome:
    """Solve lanes; under the hard roofline with sharper and sharper roofs, each lane with its best
    bound.
    """
    if not hard:
        return solve(branches, starts, stage, progress, bounds_only=bounds_only)
    sharper = partial(solve, branches, stage=stage, progress=progress, bounds_only=bounds_only)
    best = sharper(starts, sharpness=EXPONENTS[0])
    for exponent in EXPONENTS[1:]:
        outcome = sharper(np.asarray(best.x), sharpness=exponent)
        rows = np.flatnonzero(np.asarray(outcome.hard_bound) > np.asarray(best.hard_bound))
        best = jax.tree.map(lambda old, new, at=rows: put(old, at, new[at]), best, outcome)
    return best


@compiled
def _mean_roofs(x: Array, branch: Branch, roofs: SoftRoof) -> MeanRoof:
    return mean_roofs_at(x, branch, roofs)
