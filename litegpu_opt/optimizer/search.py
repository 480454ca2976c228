"""The search of all branches of all groups: bounds of the parts first, then what they leave."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from ..study import Study
from .branches import Choice, stack
from .ended import Ended
from .experts import CLOSE, DIVISIONS, divided, has_experts
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
    outcome = solve(branches, branches.middle, "bounds", progress, bounds_only=True)
    outcome = settle(branches, np.arange(len(rows)), outcome, progress)
    return Parts(of_groups, Ended(take(outcome, (slice(None), None))))


def search(groups: Sequence[Group], parts: Parts, study: Study, progress: Progress) -> list[Ended]:
    """Solve every branch that its parts do not rule out, from random starts.

    A branch that is ruled out keeps the bound of its parts, which is above the best value found.
    """
    bounds = parts.whole_bounds(groups, parts.end.bound)
    hard_bounds = parts.whole_bounds(groups, parts.end.hard_bound)
    return search_bounded(groups, bounds, hard_bounds, study, progress)


def search_bounded(
    groups: Sequence[Group],
    bounds: Sequence[np.ndarray],
    hard_bounds: Sequence[np.ndarray],
    study: Study,
    progress: Progress,
) -> list[Ended]:
    """The same with bounds of every branch of every group from elsewhere, `(branches,)` each."""
    ended = [
        Ended(_unsolved(group, bound, hard_bound, study.starts))
        for group, bound, hard_bound in zip(groups, bounds, hard_bounds, strict=True)
    ]
    random = np.random.default_rng(study.seed)
    for most in (FIRST, None):
        rows = [
            (n, int(branch))
            for n, end in enumerate(ended)
            for branch in np.argsort(end.bound, kind="stable")[:most]
            if end.bound[branch] < end.least and np.isnan(end.lanes.residual[branch]).all()
        ]
        ended = _solve(groups, ended, rows, study, random, progress)
    return ended


def divide(
    groups: Sequence[Group], ended: Sequence[Ended], study: Study, progress: Progress
) -> tuple[list[Group], list[Ended]]:
    """Divide the ranges of batches between which experts are bounded, of the branches that could
    still hold something better, until what they could gain is small.

    Both halves are solved in place of the whole; its point is that of a half that has none.
    """
    groups, ended = list(groups), list(ended)
    random = np.random.default_rng(study.seed)
    for _ in range(DIVISIONS):
        rows = []
        for n, (group, end) in enumerate(zip(groups, ended, strict=True)):
            halves = _halves(group, end)
            if not halves:
                continue
            kept = [row for row in range(len(group.branches)) if row not in halves]
            added = [(half, row) for row, pair in halves.items() for half in pair]
            branches = [group.branches[row] for row in kept] + [half for half, _ in added]
            bounds, hard_bounds = (
                bound[[row for _, row in added]] for bound in (end.bound, end.hard_bound)
            )
            groups[n] = replace(group, branches=branches)
            ended[n] = Ended(
                jax.tree.map(
                    lambda old, new, kept=kept: np.concatenate([old[kept], new]),
                    end.lanes,
                    _unsolved(group, bounds, hard_bounds, study.starts),
                )
            )
            rows += [(n, row) for row in range(len(kept), len(branches))]
        if not rows:
            break
        ended = _solve(groups, ended, rows, study, random, progress)
    return groups, ended


def _halves(group: Group, end: Ended) -> dict[int, list[tuple[Choice, Branch]]]:
    """The branches of a group that are worth dividing -> their halves."""
    if end.best is None or not has_experts(group.branches[0][1]):
        return {}
    points = end.at_best_start(end.lanes.x)
    halves = {}
    for row in map(int, np.flatnonzero(end.bound < end.least - CLOSE)):
        choice, branch = group.branches[row]
        pair = divided(branch, points[row])
        if pair:
            halves[row] = [
                (replace(choice, split=(*choice.split, n)), half) for n, half in enumerate(pair)
            ]
    return halves


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


def _solve(
    groups: Sequence[Group],
    ended: Sequence[Ended],
    rows: Sequence[tuple[int, int]],
    study: Study,
    random: np.random.Generator,
    progress: Progress,
) -> list[Ended]:
    """How the groups ended, with the rows (group, branch) solved from random starts."""
    if not rows:
        return list(ended)
    branches = stack([groups[n].branches[branch][1] for n, branch in rows])
    lanes = np.repeat(np.arange(len(rows)), study.starts)
    lower, upper = np.asarray(branches.lower)[lanes], np.asarray(branches.upper)[lanes]
    starts = lower + (upper - lower) * random.uniform(size=lower.shape)
    outcome = solve(take(branches, lanes), starts, "search", progress, explore=True)
    outcome = settle(branches, lanes, outcome, progress)
    by_row = jax.tree.map(
        lambda leaf: leaf.reshape(len(rows), study.starts, *leaf.shape[1:]), outcome
    )
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
