"""Shared coefficients fitted to chips that exist, and what every die left out would change.

A figure (a die area, a TDP) is linear in the coefficients of `AREA_LEAVES` or `POWER_LEAVES`. The
fit multiplies each by one factor for all chips and processes, so that 1 means the shipped value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import equinox as eqx
import numpy as np
from jax import Array

from .technology import Technology


AREA_LEAVES = ("sm_mm2", "tensor_mm2_per_kflop_clk", "sram_mm2_per_mb")
POWER_LEAVES = ("pj_per_sm_clock", "pj_per_flop_bf16")
"""Fields of `Process`."""

SOFT = 0.1
"""Relative error above which a chip counts linearly instead of quadratically."""
ROUNDS = 200


def parts(
    figure: Callable[[Technology], Array], technology: Technology, leaves: Sequence[str]
) -> np.ndarray:
    """What each coefficient contributes to a figure, and last what none of them does."""
    whole = float(figure(technology))

    def contribution(leaf: str) -> float:
        without = eqx.tree_at(
            lambda t: getattr(t.process, leaf), technology, replace_fn=np.zeros_like
        )
        return whole - float(figure(without))

    each = [contribution(leaf) for leaf in leaves]
    return np.array([*each, whole - sum(each)])


def soft_least_squares(chips: np.ndarray, known: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Factors of the coefficients that minimise `sum 2 (sqrt(1 + (w e / s)^2) - 1)`, with the
    relative error `e = (sum_i factor_i part_i + rest)/known - 1` and s = `SOFT`.

    By reweighted least squares: the weight of a chip is `w^2 / sqrt(1 + (w e / s)^2)`.

    **Arguments:**

    - `chips`: rows of `parts`, `(chips, coefficients + 1)`.
    - `known`: published figures, `(chips,)`.
    - `weights`: how much each is trusted, `(chips,)`.
    """
    shares = chips / known[:, None]
    factors = np.ones(chips.shape[1] - 1)
    for _ in range(ROUNDS):
        error = shares[:, :-1] @ factors + shares[:, -1] - 1.0
        root = weights / (1.0 + (weights * error / SOFT) ** 2) ** 0.25
        factors = np.linalg.lstsq(
            root[:, None] * shares[:, :-1], root * (1.0 - shares[:, -1]), rcond=None
        )[0]
    return factors


@dataclass(frozen=True)
class Fit:
    """Factors on the shipped coefficients, and how far they move without one die."""

    factors: np.ndarray
    low: np.ndarray
    high: np.ndarray
    left_out_errors: np.ndarray
    """Error of every chip under the factors fitted without its die, `(chips,)`."""


def fit(chips: np.ndarray, known: np.ndarray, weights: np.ndarray, dies: Sequence[str]) -> Fit:
    """The fit over all chips, and once more without each die. Arguments as `soft_least_squares`."""
    names = np.array(dies)
    without = {
        die: soft_least_squares(*(array[names != die] for array in (chips, known, weights)))
        for die in dict.fromkeys(dies)
    }
    errors = [
        (row[:-1] @ without[die] + row[-1]) / published - 1.0
        for row, published, die in zip(chips, known, dies, strict=True)
    ]
    moved = np.array(list(without.values()))
    return Fit(
        factors=soft_least_squares(chips, known, weights),
        low=moved.min(axis=0),
        high=moved.max(axis=0),
        left_out_errors=np.array(errors),
    )
