"""The hard roofline: its best design in the same space, with a bound of its own."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .branches import stack
from .ended import Ended, solved
from .experts import CLOSE, DIVISIONS, divided, has_experts
from .groups import Group
from .parts import Part, parts_of
from .problem import Branch
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
    items = [
        _Item(n, branch, x, float(value), float(bound))
        for n in chosen
        for (_, branch), x, value, bound in zip(
            groups[n].branches,
            _starts(ended[n]),
            values[n],
            np.maximum(ended[n].hard_bound, of_parts[n]),
            strict=True,
        )
    ]
    for exponent in EXPONENTS:
        items, open_ = _apart(items, TIGHT)
        items += _solve(open_, exponent, progress)
    for _ in range(DIVISIONS):
        items, open_ = _apart(items, CLOSE)
        halves = [replace(item, branch=half) for item in open_ for half in item.divided()]
        items += [item for item in open_ if not item.divided()]
        items += _solve(halves, EXPONENTS[-1], progress)
    return {
        n: HardOptimum(
            min(item.value for item in items if item.group == n),
            min(item.bound for item in items if item.group == n),
        )
        for n in chosen
    }


@dataclass(frozen=True)
class _Item:
    """A branch under the hard roofline: value of its best point so far, and its bound."""

    group: int
    branch: Branch
    x: np.ndarray
    value: float
    bound: float

    def divided(self) -> list[Branch]:
        """The branch with narrower ranges of batches, if it has experts."""
        return divided(self.branch, self.x) if has_experts(self.branch) else []


def _apart(items: Sequence[_Item], tolerance: float) -> tuple[list[_Item], list[_Item]]:
    """What cannot be much better than the best of its group, and what still can."""
    least: dict[int, float] = {}
    for item in items:
        least[item.group] = min(item.value, least.get(item.group, math.inf))
    still = [item.bound < least[item.group] - tolerance for item in items]
    return (
        [item for item, on in zip(items, still, strict=True) if not on],
        [item for item, on in zip(items, still, strict=True) if on],
    )


def _solve(items: Sequence[_Item], exponent: float, progress: Progress) -> list[_Item]:
    """The items solved with sharp roofs; nothing is worse than before."""
    if not items:
        return []
    branches = stack([item.branch for item in items])
    starts = np.stack([item.x for item in items])
    outcome = solve(branches, starts, "hard roofline", progress, sharpness=exponent)
    return [
        replace(
            item,
            x=x if feasible else item.x,
            value=min(item.value, float(value)) if feasible else item.value,
            bound=max(item.bound, float(bound)),
        )
        for item, feasible, x, value, bound in zip(
            items, solved(outcome), outcome.x, outcome.hard_value, outcome.hard_bound, strict=True
        )
    ]


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


def _starts(end: Ended) -> np.ndarray:
    """The soft solution of every branch, or that of the best one, `(branches, variables)`."""
    points = end.at_best_start(end.lanes.x)
    return np.where(np.isfinite(end.value)[:, None], points, points[end.best])
