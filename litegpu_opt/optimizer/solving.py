"""Lanes of a stage of the search, and a second look at those that were not settled by the first."""

from collections.abc import Callable

import equinox as eqx
import jax
import numpy as np

from .ended import solved
from .experts import above, below, has_experts, moved
from .lanes import Outcome, put, solve_lanes
from .problem import Branch


COST_WEIGHT = 1e-2
"""Weight of the cost where its multipliers come near the solver's penalty."""

TANGENTS = 12
"""Tangents to the experts that are tried, each at the optimum of the last."""
SETTLED = 1e-6
"""Change of the logarithm of a batch below which the tangent touches at its optimum."""

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
    bounds_only: bool = False,
) -> Outcome:
    """Solve lanes, with the progress reported under the name of a stage.

    With experts, the bounds are those of the problem below the branch, and the point and its value
    those of the problem above that touches it there (`experts`).

    **Arguments:**

    - `bounds_only`: values and points may be those of the problem below.
    """

    def lanes(branches: Branch, starts: np.ndarray, *, explore: bool) -> Outcome:
        return solve_lanes(
            branches,
            starts,
            sharpness=sharpness,
            explore=explore,
            progress=lambda done: progress(stage, done, len(starts)),
        )

    if not has_experts(branches):
        return lanes(branches, starts, explore=explore)
    bounded = lanes(below(branches), starts, explore=explore)
    if bounds_only:
        return bounded
    outcome = bounded
    rows = np.flatnonzero(solved(bounded))
    for _ in range(TANGENTS):
        if not rows.size:
            break
        x = np.asarray(outcome.x)[rows]
        here = take(branches, rows)
        touching = lanes(above(here, x), x, explore=False)
        outcome = jax.tree.map(lambda old, new, at=rows: put(old, at, new), outcome, touching)
        rows = rows[solved(touching) & (moved(here, x, np.asarray(touching.x)) > SETTLED)]
    of_bounds = lambda o: [o.bound, o.hard_bound, o.infeasibility]  # noqa: E731 - a selection
    return eqx.tree_at(of_bounds, outcome, of_bounds(bounded))


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
        weighed_down(take(branches, lanes[rows]), 0.0), np.asarray(outcome.x)[rows], stage, progress
    )
    proofs = put(outcome.infeasibility, rows, costless.infeasibility)
    outcome = eqx.tree_at(lambda o: o.infeasibility, outcome, proofs)
    possible = solved(costless)
    rows = rows[possible]
    if not rows.size:
        return outcome
    weighed = solve(
        weighed_down(take(branches, lanes[rows]), COST_WEIGHT),
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


def weighed_down(branches: Branch, weight: float) -> Branch:
    """The same branches with the objective times a weight."""
    return eqx.tree_at(lambda b: b.objective, branches, weight * np.asarray(branches.objective))
