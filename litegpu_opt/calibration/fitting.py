"""Leaves of an execution table fitted to measured times by Levenberg-Marquardt.

The residual of a row is the logarithm of model over measurement, r. A row counts as
`2 c^2 (sqrt(1 + (r/c)^2) - 1)`: as a square below c, linearly beyond. Every row has the weight of
its kind, so that a kind with many rows does not outvote the others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jax import Array


SOFT = 0.1
"""c: relative error from which a row counts linearly."""
TOLERANCE = 1e-7
MOST_STEPS = 400
LARGEST_LOG_DEVIATION = 3.0
"""A leaf that moves by more than a factor of e^3 within one standard deviation is not known."""

Values = Mapping[str, Array]


@dataclass(frozen=True)
class Fit:
    """Values that fit best, and how well they are known."""

    names: tuple[str, ...]
    values: np.ndarray
    low: np.ndarray
    """Two standard deviations below."""
    high: np.ndarray
    covariance: np.ndarray
    """Of what is fitted: logarithms, or `free` of a leaf with a domain."""
    rows: int
    scale: float
    """Root mean square of the soft residuals."""

    def of(self, name: str) -> float:
        """One value."""
        return float(self.values[self.names.index(name)])


def soft_residual(residual: Array) -> Array:
    """`r sqrt(2/(sqrt(1 + (r/c)^2) + 1))`, whose square is the soft loss; smooth at 0."""
    return residual * jnp.sqrt(2.0 / (jnp.sqrt(1.0 + (residual / SOFT) ** 2) + 1.0))


def bound(name: str, free: Array) -> Array:
    """Value of a leaf at an unbounded number: an efficiency stays in (0, 1), an overlap exponent
    above 1, everything else above 0.
    """
    if name.endswith("_efficiency") or "_efficiency_" in name:
        return jax.nn.sigmoid(free)
    if name == "overlap_exponent":
        return 1.0 + jnp.exp(free)
    return jnp.exp(free)


def unbound(name: str, value: float) -> float:
    """The inverse of `bound`."""
    if name.endswith("_efficiency") or "_efficiency_" in name:
        return float(np.log(value / (1.0 - value)))
    return float(np.log(value - 1.0 if name == "overlap_exponent" else value))


def fit(
    log_ratios: Callable[[Values], Array], start: Mapping[str, float], weights: np.ndarray
) -> Fit:
    """The values that fit best.

    **Arguments:**

    - `log_ratios`: values -> log(model/measured) of every row.
    - `start`: name -> value to start from; these are fitted.
    - `weights`: of the rows; they sum to their number.

    **Raises:** `UserError` where the rows do not determine the values.
    """
    names = tuple(start)
    root = jnp.sqrt(jnp.asarray(weights))

    def residuals(free: Array, _: None) -> Array:
        values = {name: bound(name, free[i]) for i, name in enumerate(names)}
        return root * soft_residual(log_ratios(values))

    begin = jnp.array([unbound(name, start[name]) for name in names])
    found = optx.least_squares(
        residuals,
        optx.LevenbergMarquardt(rtol=TOLERANCE, atol=TOLERANCE),
        begin,
        max_steps=MOST_STEPS,
        throw=False,
    ).value
    jacobian = np.asarray(jax.jit(jax.jacfwd(residuals))(found, None))
    left = np.asarray(residuals(found, None))
    freedom = max(1, len(left) - len(names))
    variance = float(left @ left) / freedom
    covariance = variance * np.linalg.pinv(jacobian.T @ jacobian)
    deviations = np.minimum(np.sqrt(np.diag(covariance)), LARGEST_LOG_DEVIATION)
    values, low, high = (
        np.array([float(bound(name, free)) for name, free in zip(names, moved, strict=True)])
        for moved in (found, found - 2.0 * deviations, found + 2.0 * deviations)
    )
    return Fit(names, values, low, high, covariance, len(left), variance**0.5)
