"""The hard roofline: its best design in the same space, with a bound of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .branches import stack
from .groups import Ended, Group, Progress, solve, solved


EXPONENTS = (1024.0, 8192.0)
"""Overlap exponents of the search. Values and bounds are those of the maximum itself; the sharper
exponent is tighter, the gentler one hardly ever stalls."""


@dataclass(frozen=True)
class HardOptimum:
    """Least value over all branches of a group, in the logarithm of the objective."""

    value: float
    bound: float


def search_hard(
    groups: Sequence[Group], ended: Sequence[Ended], progress: Progress
) -> dict[int, HardOptimum]:
    """Number of a candidate's group -> its optimum under the hard roofline.

    The soft solutions give every branch a value and a bound under the hard roofline; branches whose
    bound does not rule them out are solved again with sharp roofs. A branch without a feasible
    point under the soft roof may have one under the hard roof, so its bound counts as well.
    """
    chosen = [n for n, group in enumerate(groups) if group.candidate and ended[n].best is not None]
    values = {n: ended[n].hard_value for n in chosen}
    bounds = {n: ended[n].lanes.hard_bound.max(axis=1) for n in chosen}
    rows = [(n, branch) for n in chosen for branch in np.flatnonzero(bounds[n] <= values[n].min())]
    if not rows:
        return {}
    branches = stack([groups[n].branches[branch][1] for n, branch in rows])
    points = {n: ended[n].at_best_start(ended[n].lanes.x) for n in chosen}
    starts = np.stack([points[n][branch] for n, branch in rows])
    for exponent in EXPONENTS:
        outcome = solve(branches, starts, "hard roofline", progress, sharpness=exponent)
        feasible = solved(outcome)
        for row, (n, branch) in enumerate(rows):
            bounds[n][branch] = max(bounds[n][branch], outcome.hard_bound[row])
            if feasible[row]:
                values[n][branch] = min(values[n][branch], outcome.hard_value[row])
    return {n: HardOptimum(float(values[n].min()), float(bounds[n].min())) for n in chosen}
