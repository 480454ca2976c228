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


def lower_bounds(
    functions: Callable[[Array], Array],
    x: Array,
    weights: Array,
    lower: Array,
    upper: Array,
) -> tuple[Array, Array]:
    """`[f, g]` at x, and for each row of `weights` the least value over the box of the tangent
    plane at x of `weights . [f, g]`.

    A row `(1, lambda)` bounds f over the feasible set; a positive value for a row `(0, lambda)`
    proves that there is no feasible point. `functions` maps x `(n,)` to `[f, g]` `(1 + m,)`, all
    convex; weights `(rows, 1 + m)` must not be negative.
    """
    values, pull = jax.vjp(functions, x)
    (slopes,) = jax.vmap(pull)(weights)
    return values, least_of_planes(weights @ values, slopes, x, lower, upper)


def least_of_planes(values: Array, slopes: Array, x: Array, lower: Array, upper: Array) -> Array:
    """Least value over the box of planes through `values` at x with `slopes` `(rows, n)`, less what
    rounding may have added.
    """
    fall = jnp.minimum(slopes * (lower - x)[None], slopes * (upper - x)[None])
    return values + jnp.sum(fall, axis=1) - ROUNDING
