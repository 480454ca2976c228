"""The hard roofline: its best design in the same space, with a bound of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .branches import stack
from .ended import Ended, solved
from .groups import Group
from .parts import Part, parts_of
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
    values = {n: ended[n].hard_value for n in chosen}
    in_play = {
        n: {
            part
            for (choice, _), bound in zip(groups[n].branches, ended[n].hard_bound, strict=True)
            if bound < values[n].min()
            for part in parts_of(choice, groups[n].task)
        }
        for n in chosen
    }
    of_parts = parts.whole_bounds(groups, _sharp_bounds(parts, in_play, progress))
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


def _sharp_bounds(parts: Parts, in_play: Mapping[int, set[Part]], progress: Progress) -> np.ndarray:
    """Lower bounds of the parts under the hard roofline; those in play solved with sharp roofs."""
    bounds = np.array(parts.end.hard_bound)
    everywhere = [
        (n, part, branch)
        for n, of_group in enumerate(parts.of_groups)
        for part, branch in of_group.items()
    ]
    rows = [row for row, (n, part, _) in enumerate(everywhere) if part in in_play.get(n, ())]
    if rows:
        outcome = solve(
            stack([everywhere[row][2] for row in rows]),
            np.asarray(parts.end.lanes.x)[rows, 0],
            "hard bounds",
            progress,
            sharpness=EXPONENTS[0],
        )
        bounds[rows] = np.maximum(bounds[rows], outcome.hard_bound)
    return bounds


def _start(end: Ended, branch: int) -> np.ndarray:
    """The soft solution of a branch, or that of the best branch."""
    points = end.at_best_start(end.lanes.x)
    return points[branch if np.isfinite(end.value[branch]) else end.best]
