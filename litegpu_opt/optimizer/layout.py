"""Names along the vectors of the optimiser: variables with their box, and limits."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..limits import POOL_KINDS, Limit, limits_of
from ..space import DESIGN_BOX, OBJECTIVES, POOL_BOX


@dataclass(frozen=True)
class Layout:
    """The vectors of designs that serve one workload, or several at once.

    A vector has the design, its TDP, then batches and clocks over all pools; names of a pool
    of several workloads end with `[label]`.
    """

    labels: tuple[str, ...] = ("",)
    """Of the workloads; the empty one for a single workload."""

    @cached_property
    def box(self) -> dict[str, tuple[float, float]]:
        """Variable -> bounds in its own unit, in the order of the vectors."""
        return DESIGN_BOX | {
            self._of(quantity.format(phase), label): bounds
            for quantity, of_phases in POOL_BOX.items()
            for label in self.labels
            for phase, bounds in of_phases.items()
        }

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the variables."""
        return tuple(self.box)

    @property
    def log_box(self) -> tuple[np.ndarray, np.ndarray]:
        """Logarithms of the bounds, `(variables,)` each."""
        lower, upper = np.log(list(self.box.values())).T
        return lower, upper

    @cached_property
    def limits(self) -> tuple[Limit, ...]:
        """The limits, in the order of `limits.uses_and_limits`."""
        return limits_of(self.labels)

    @cached_property
    def limit_names(self) -> tuple[str, ...]:
        """Names of the limits."""
        return tuple(limit.name for limit in self.limits)

    def pool_variables(self, phase: str, label: str) -> tuple[str, ...]:
        """The variables of one pool."""
        return tuple(self._of(quantity.format(phase), label) for quantity in POOL_BOX)

    def pool_limits(self, phase: str, label: str) -> tuple[str, ...]:
        """The limits of one pool."""
        latency = {"prefill": "ttft", "decode": "tbt"}[phase]
        own = (*(f"{kind}_{phase}" for kind in POOL_KINDS), latency)
        return tuple(self._of(name, label) for name in own)

    def of_limit(self, name: str) -> np.ndarray:
        """Objective that minimises the use of one limit: how far it can be pushed."""
        return self._objective({}, name)

    def of_objectives(self, weights: Mapping[str, float]) -> np.ndarray:
        """Objective that minimises a product of powers of `OBJECTIVES`."""
        return self._objective(weights, None)

    def _objective(self, weights: Mapping[str, float], limit: str | None) -> np.ndarray:
        return np.array(
            [weights.get(name, 0.0) for name in OBJECTIVES]
            + [float(name == limit) for name in self.limit_names]
        )

    def origin(self, name: str) -> tuple[int, str]:
        """Number of the workload that a variable or limit belongs to, and its name there; those
        that all share count to the first.
        """
        for number, label in enumerate(self.labels):
            if label and name.endswith(f"[{label}]"):
                return number, name.removesuffix(f"[{label}]")
        return 0, name

    def name_for(self, workload: int, name: str) -> str:
        """Name here of what is called `name` where the workload is alone."""
        own = self._of(name, self.labels[workload])
        return own if own in self.box else name

    @staticmethod
    def _of(name: str, label: str) -> str:
        return f"{name}[{label}]" if label else name


SINGLE = Layout()
"""Of one workload."""

VARIABLES = SINGLE.variables
BOX = SINGLE.box
