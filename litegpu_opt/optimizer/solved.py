"""A branch with its optimum."""

from dataclasses import dataclass

import numpy as np

from .branches import Choice
from .ended import Ended
from .experts import with_all_batches
from .groups import Group
from .layout import Layout
from .problem import Branch


@dataclass(frozen=True)
class Solved:
    """A branch with its optimum: logarithms of the variables, and of the objective."""

    choice: Choice
    branch: Branch
    layout: Layout
    x: np.ndarray
    value: float
    bound: float
    """No point of the branch is below it."""

    @property
    def variables(self) -> dict[str, float]:
        """Variable -> value in its own unit; held ones without the rounding of their logarithm."""
        searched, held = np.exp(self.x), np.exp(self.branch.fixed)
        return {
            name: float(searched[i]) if self.branch.free[i] else float(f"{held[i]:.12g}")
            for i, name in enumerate(self.layout.variables)
        }


def best_of(group: Group, end: Ended) -> Solved | None:
    """The optimum of a group; `None` where nothing is feasible."""
    if end.best is None:
        return None
    choice, branch = group.branches[end.best]
    x = end.at_best_start(end.lanes.x)[end.best]
    branch = with_all_batches(branch)
    return Solved(choice, branch, group.layout, x, end.least, float(end.bound[end.best]))
