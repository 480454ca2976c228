"""How the branches of a group ended: values, bounds, and what that says about its starts."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..numerics import AnyArray
from .lanes import Outcome
from .result import Starts


CONVERGED = 1e-7
"""Largest KKT residual of a solved lane, and largest relaxation of a feasible one."""
AGREE = 1e-6
"""Starts whose log objectives differ by less found the same optimum."""


@dataclass(frozen=True)
class Ended:
    """The outcome of a group; leaves of `lanes` have axes (branches, starts)."""

    lanes: Outcome

    @cached_property
    def value(self) -> np.ndarray:
        """Least value of each branch; infinite where no start is solved."""
        return self._best_of(self.lanes.value)

    @cached_property
    def hard_value(self) -> np.ndarray:
        """Least value of each branch under the hard roofline."""
        return self._best_of(self.lanes.hard_value)

    @cached_property
    def bound(self) -> np.ndarray:
        """Lower bound of each branch; infinite where proved infeasible."""
        proved = np.any(self.lanes.infeasibility > 0.0, axis=1) & ~solved(self.lanes).any(axis=1)
        return np.where(proved, np.inf, np.max(self.lanes.bound, axis=1))

    @cached_property
    def least(self) -> float:
        """Least value of all branches."""
        return float(self.value.min())

    @cached_property
    def hard_bound(self) -> np.ndarray:
        """Lower bound of each branch under the hard roofline."""
        return np.max(self.lanes.hard_bound, axis=1)

    @cached_property
    def best(self) -> int | None:
        """The best feasible branch."""
        return int(np.argmin(self.value)) if np.isfinite(self.value).any() else None

    def at_best_start(self, leaf: AnyArray) -> np.ndarray:
        """A leaf of `lanes` at the best start of every branch."""
        start = np.argmin(np.where(solved(self.lanes), self.lanes.value, np.inf), axis=1)
        return np.asarray(leaf)[np.arange(len(start)), start]

    def starts(self) -> Starts:
        """How the starts ended."""
        done = solved(self.lanes)
        feasible = done.any(axis=1)
        least = np.where(feasible, self.value, 0.0)
        agree = done & (np.abs(np.nan_to_num(self.lanes.value) - least[:, None]) <= AGREE)
        shares = agree.mean(axis=1)[feasible]
        proved = np.isposinf(self.bound)
        beaten = ~feasible & ~proved & (self.bound >= self.least)
        return Starts(
            total=done.size,
            converged=int(done.sum()),
            feasible_branches=int(feasible.sum()),
            infeasible_branches=int(proved.sum()),
            beaten_branches=int(beaten.sum()),
            open_branches=int((~feasible & ~proved & ~beaten).sum()),
            least_agreement=float(shares.min()) if shares.size else 0.0,
        )

    def _best_of(self, leaf: AnyArray) -> np.ndarray:
        return np.min(np.where(solved(self.lanes), leaf, np.inf), axis=1)


def solved(lanes: Outcome) -> np.ndarray:
    """Lanes that ended at a KKT point of a feasible problem."""
    return np.asarray((lanes.residual <= CONVERGED) & (lanes.relaxation <= CONVERGED))
