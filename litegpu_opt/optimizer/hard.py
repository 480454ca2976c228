"""The hard roofline: its best design in the same space, with a bound of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .branches import stack
from .ended import Ended, solved
from .groups import Group
from .search import Parts
from .solving import Progress, solve


EXPONENTS = (2.0**10, 2.0**13, 2.0**16, 2.0**19)
"""Overlap exponents of the search, one after the other until the bound is tight. Values and bounds
are those of the maximum itself; a sharper exponent is tighter, a gentler one hardly ever stalls."""
TIGHT = 1e-5
"""A branch whose bound is this close to the best value is not worth another look."""


@dataclass(frozen=True)
class HardOptimum:
    """Least value over all branches of a group, in the logarithm of the objective."""

    value: float
    bound: float


def search_hard(
    groups: Sequence[Group], ended: Sequence[Ended], parts: Parts, progress: Progress
) -> dict[int, HardOptimum]:
    """Number of a candidate's group -> its optimum under the hard roofline.

    The soft solutions give every branch a value and a bound under the hard roofline, and so do its
    parts, solved again with sharp roofs. What these do not rule out is solved with sharp roofs. A
    branch without a feasible point under the soft roof may have one under the hard roof, so its
    bound counts as well.
    """
    chosen = [n for n, group in enumerate(groups) if group.candidate and ended[n].best is not None]
    of_parts = parts.whole_bounds(groups, _sharp_bounds(parts, progress))
    values = {n: ended[n].hard_value for n in chosen}
    bounds = {n: np.maximum(ended[n].hard_bound, of_parts[n]) for n in chosen}
    for exponent in EXPONENTS:
        rows = [
            (n, branch)
            for n in chosen
            for branch in np.flatnonzero(bounds[n] < values[n].min() - TIGHT)
        ]
        if not rows:
            break
        branches = stack([groups[n].branches[branch][1] for n, branch in rows])
        starts = np.stack([_start(ended[n], int(branch)) for n, branch in rows])
        outcome = solve(branches, starts, "hard roofline", progress, sharpness=exponent)
        feasible = solved(outcome)
        for row, (n, branch) in enumerate(rows):
            bounds[n][branch] = max(bounds[n][branch], outcome.hard_bound[row])
            if feasible[row]:
                values[n][branch] = min(values[n][branch], outcome.hard_value[row])
    return {n: HardOptimum(float(values[n].min()), float(bounds[n].min())) for n in chosen}


def _sharp_bounds(parts: Parts, progress: Progress) -> np.ndarray:
    """Lower bounds of the parts under the hard roofline."""
    rows = [branch for of_group in parts.of_groups for branch in of_group.values()]
    if not rows:
        return np.zeros(0)
    starts = np.asarray(parts.end.lanes.x)[:, 0]
    outcome = solve(stack(rows), starts, "hard bounds", progress, sharpness=EXPONENTS[0])
    return np.maximum(parts.end.hard_bound, np.asarray(outcome.hard_bound))


def _start(end: Ended, branch: int) -> np.ndarray:
    """The soft solution of a branch, or that of the best branch."""
    points = end.at_best_start(end.lanes.x)
    return points[branch if np.isfinite(end.value[branch]) else end.best]
