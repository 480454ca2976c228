"""Lanes of a stage of the search, and a second look at those that were not settled by the first."""

from collections.abc import Callable

import equinox as eqx
import jax
import numpy as np

from .ended import solved
from .lanes import Outcome, put, solve_lanes
from .problem import Branch


COST_WEIGHT = 1e-2
"""Weight of the cost where its multipliers come near the solver's penalty."""

Progress = Callable[[str, int, int], None]
"""Called with a stage, the lanes done and the lanes in all."""


def solve(
    branches: Branch,
    starts: np.ndarray,
    stage: str,
    progress: Progress,
    *,
    sharpness: float = 0.0,
    explore: bool = False,
) -> Outcome:
    """`solve_lanes` that reports its progress under the name of a stage."""
    return solve_lanes(
        branches,
        starts,
        sharpness=sharpness,
        explore=explore,
        progress=lambda done: progress(stage, done, len(starts)),
    )


def take(tree, rows):
    """Rows of every leaf."""
    return jax.tree.map(lambda leaf: leaf[rows], tree)


def settle(branches: Branch, lanes: np.ndarray, outcome: Outcome, progress: Progress) -> Outcome:
    """Settle the branches of which no start is solved, and are not proved infeasible either.

    Without the cost in the objective, the least relaxation is found, and proves tightly. What turns
    out feasible has multipliers near the solver's penalty: there the cost is weighed down, which is
    a larger penalty, and the outcome scaled back.

    **Arguments:**

    - `lanes`: which row of `branches` each lane of the outcome solved.
    """
    done = solved(outcome)
    settled = np.union1d(lanes[done], lanes[np.asarray(outcome.infeasibility) > 0.0])
    rows = np.flatnonzero(~np.isin(lanes, settled))
    if not rows.size:
        return outcome
    stage = "what is infeasible"
    costless = solve(
        _weighed(take(branches, lanes[rows]), 0.0), np.asarray(outcome.x)[rows], stage, progress
    )
    proofs = put(outcome.infeasibility, rows, costless.infeasibility)
    outcome = eqx.tree_at(lambda o: o.infeasibility, outcome, proofs)
    possible = solved(costless)
    rows = rows[possible]
    if not rows.size:
        return outcome
    weighed = solve(
        _weighed(take(branches, lanes[rows]), COST_WEIGHT),
        np.asarray(costless.x)[possible],
        stage,
        progress,
    )
    scaled = ("value", "bound", "hard_value", "hard_bound", "multipliers", "residual")
    weighed = eqx.tree_at(
        lambda o: [getattr(o, name) for name in scaled],
        weighed,
        [getattr(weighed, name) / COST_WEIGHT for name in scaled],
    )
    better = solved(weighed)
    weighed, rows = take(weighed, better), rows[better]
    return jax.tree.map(lambda old, new: put(old, rows, new), outcome, weighed)


def _weighed(branches: Branch, weight: float) -> Branch:
    """The same branches with the objective times a weight."""
    return eqx.tree_at(lambda b: b.objective, branches, weight * np.asarray(branches.objective))
