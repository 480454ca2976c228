"""Lower bounds: how far from the best possible a reported optimum can be.

In logarithms the Lagrangian `L(x) = f(x) + sum_i lambda_i g_i(x)` is convex for any
lambda >= 0, so its tangent plane at x0, minimised over the box corner by corner,
bounds the optimum from below:

    log p* >= L(x0) + sum_i min(d_i (lower_i - x0_i), d_i (upper_i - x0_i)),  d = grad L(x0)

The bound holds for every x0 and lambda; the solver's optimum makes it tight.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array


ROUNDING = 1e-9
"""Subtracted from every bound: floating point is not rounded outward."""


def lower_bound(
    functions: Callable[[Array], Array],
    x: Array,
    weights: Array,
    lower: Array,
    upper: Array,
) -> Array:
    """Least value over the box of the tangent plane at x of `weights . [f, g]`.

    With weights `(1, lambda)` it bounds f over the feasible set; with `(0, lambda)` a positive
    value proves that there is no feasible point. `functions` maps x to `[f, g]`, all convex;
    weights of shape `(1 + m,)` must not be negative.
    """
    value, slope = jax.value_and_grad(lambda y: jnp.sum(weights * functions(y)))(x)
    fall = jnp.minimum(slope * (lower - x), slope * (upper - x))
    return value + jnp.sum(fall) - ROUNDING
