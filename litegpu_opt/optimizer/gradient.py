"""Gradient search: an augmented Lagrangian around any `optax` optimiser.

It asks nothing of the model but a gradient, so it also serves terms that are not
convex. Its iterates start the interior point, and the spread of the polished
starts shows whether there is more than one basin.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import Array


Functions = Callable[[Array], Array]

OUTER_STEPS = 4
INNER_STEPS = 15
LEARNING_RATE = 0.1
FIRST_WEIGHT = 10.0
WEIGHT_GROWTH = 2.0


def search(
    functions: Functions,
    x: Array,
    lower: Array,
    upper: Array,
    transform: optax.GradientTransformation | None = None,
) -> Array:
    """Improve a start by `OUTER_STEPS x INNER_STEPS` first-order steps inside the box.

    Minimises `f + (rho/2) sum max(0, g + mu/rho)^2` with multipliers mu renewed after every inner
    run. `functions` maps x to `[f, g_1, ...]`; `transform` is `optax.adam` unless given.
    """
    transform = optax.adam(LEARNING_RATE) if transform is None else transform

    def inner(carry, _, *, weight, multipliers):
        x, state = carry

        def lagrangian(y: Array) -> Array:
            values = functions(y)
            active = jnp.maximum(0.0, values[1:] + multipliers / weight)
            return values[0] + 0.5 * weight * jnp.sum(active**2)

        slope = jax.grad(lagrangian)(x)
        with jax.numpy_dtype_promotion("standard"):  # optax counts steps in whole numbers
            updates, state = transform.update(slope, state, x)
        x = jnp.clip(jnp.asarray(optax.apply_updates(x, updates)), lower, upper)
        return (x, state), None

    def outer(carry, weight):
        x, multipliers = carry

        def body(c, i):
            return inner(c, i, weight=weight, multipliers=multipliers)

        (x, _), _ = jax.lax.scan(body, (x, transform.init(x)), length=INNER_STEPS)
        multipliers = jnp.maximum(0.0, multipliers + weight * functions(x)[1:])
        return (x, multipliers), None

    x = jnp.clip(x, lower, upper)
    weights = FIRST_WEIGHT * WEIGHT_GROWTH ** jnp.arange(OUTER_STEPS, dtype=x.dtype)
    (x, _), _ = jax.lax.scan(outer, (x, jnp.zeros_like(functions(x)[1:])), weights)
    return x
