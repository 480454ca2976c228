"""The search of all branches of all groups: bounds of the parts first, then what they leave."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from ..study import Study
from .branches import stack
from .ended import Ended
from .groups import Group
from .lanes import Outcome, put
from .parts import Part, part_branches, splits, whole_bounds
from .problem import Branch
from .solving import Progress, settle, solve, take


FIRST = 3
"""Branches of a group, by their bounds, that give the first incumbent."""


@dataclass(frozen=True)
class Parts:
    """The parts of every group, solved."""

    of_groups: list[dict[Part, Branch]]
    """Empty where parts say nothing."""
    end: Ended
    """All parts one after the other, with one start each."""

    def by_group(self, leaf: np.ndarray) -> list[dict[Part, float]]:
        """Values of all parts in the order of `end`, apart for each group."""
        rest = iter(leaf)
        return [{part: float(next(rest)) for part in parts} for parts in self.of_groups]

    def whole_bounds(self, groups: Sequence[Group], bounds: np.ndarray) -> list[np.ndarray]:
        """Bounds of all branches of every group from those of the parts."""
        return [
            whole_bounds(group, of_parts) if of_parts else np.full(len(group.branches), -np.inf)
            for group, of_parts in zip(groups, self.by_group(bounds), strict=True)
        ]


def solve_parts(groups: Sequence[Group], progress: Progress) -> Parts:
    """Solve the parts of all groups, from the middle of the box."""
    of_groups = [part_branches(group) if splits(group.task) else {} for group in groups]
    rows = [branch for parts in of_groups for branch in parts.values()]
    if not rows:
        return Parts(of_groups, Ended(_unsolved(groups[0], np.zeros(0), np.zeros(0), 1)))
    branches = stack(rows)
    outcome = solve(branches, branches.middle, "bounds", progress)
    outcome = settle(branches, np.arange(len(rows)), outcome, progress)
    return Parts(of_groups, Ended(take(outcome, (slice(None), None))))


def search(groups: Sequence[Group], parts: Parts, study: Study, progress: Progress) -> list[Ended]:
    """Solve every branch that its parts do not rule out, from random starts.

    A branch that is ruled out keeps the bound of its parts, which is above the best value found.
    """
    ended = [
        Ended(_unsolved(group, bound, hard_bound, study.starts))
        for group, bound, hard_bound in zip(
            groups,
            parts.whole_bounds(groups, parts.end.bound),
            parts.whole_bounds(groups, parts.end.hard_bound),
            strict=True,
        )
    ]
    random = np.random.default_rng(study.seed)
    for most in (FIRST, None):
        rows = [
            (n, branch)
            for n, end in enumerate(ended)
            for branch in np.argsort(end.bound, kind="stable")[:most]
            if end.bound[branch] < end.least and np.isnan(end.lanes.residual[branch]).all()
        ]
        if not rows:
            continue
        branches = stack([groups[n].branches[branch][1] for n, branch in rows])
        lanes = np.repeat(np.arange(len(rows)), study.starts)
        lower, upper = np.asarray(branches.lower)[lanes], np.asarray(branches.upper)[lanes]
        starts = lower + (upper - lower) * random.uniform(size=lower.shape)
        outcome = solve(take(branches, lanes), starts, "search", progress, explore=True)
        outcome = settle(branches, lanes, outcome, progress)
        ended = _with(ended, rows, outcome, study.starts)
    return ended


def _unsolved(group: Group, bound: np.ndarray, hard_bound: np.ndarray, starts: int) -> Outcome:
    """Lanes of a group before any is solved; leaves have axes (branches, starts)."""
    shape = (len(bound), starts)
    unknown = np.full(shape, np.nan)
    return Outcome(
        x=np.full((*shape, len(group.layout.variables)), np.nan),
        multipliers=np.full((*shape, len(group.layout.limits)), np.nan),
        relaxation=unknown,
        residual=unknown,
        steps=np.zeros(shape, int),
        value=unknown,
        bound=np.broadcast_to(bound[:, None], shape),
        hard_value=unknown,
        hard_bound=np.broadcast_to(hard_bound[:, None], shape),
        infeasibility=np.where(np.isposinf(bound)[:, None], np.inf, np.full(shape, -np.inf)),
    )


def _with(
    ended: Sequence[Ended], rows: Sequence[tuple[int, int]], outcome: Outcome, starts: int
) -> list[Ended]:
    """How the groups ended, with the rows (group, branch) solved."""
    by_row = jax.tree.map(lambda leaf: leaf.reshape(len(rows), starts, *leaf.shape[1:]), outcome)
    result = list(ended)
    for n in {n for n, _ in rows}:
        mine = np.array([row for row, (group, _) in enumerate(rows) if group == n])
        branches = np.array([branch for group, branch in rows if group == n])
        result[n] = Ended(
            jax.tree.map(
                lambda old, new, at=branches, own=mine: put(old, at, new[own]),
                ended[n].lanes,
                by_row,
            )
        )
    return result
