"""Bounds of boxes of a lattice: tangent planes at a point of each, in one program for a block.

`f` and every limit `g` are convex in logarithms, and so is `f + lambda . g` for the multipliers of
the relaxed optimum. The least value of a tangent plane over the box is a bound of each; a limit
whose plane is above 0 everywhere leaves nothing feasible.

Under the hard roofline a plane at the kink of a maximum is steep on both sides. There the sum with
the multipliers is taken below the roof, with weighted geometric means (`MeanRoof`) that are flat
where the relaxed optimum is. The experts that a batch touches count by their chord over the box.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ...execution.roofline import Roof
from ...numerics import AnyArray
from ...programs import compiled
from ..certificate import least_of_planes, lower_bounds
from ..experts import below_between, has_experts
from ..interior import value_and_jacobian
from ..lanes import functions_of
from ..problem import Branch
from .lattice import Ties


FEASIBLE = 1e-9
"""Largest logarithm of use/limit of a point that is feasible: a value may be the limit itself."""


class Rules(eqx.Module):
    """What holds for every box of a lattice."""

    branch: Branch
    ties: Ties
    roofs: Roof
    """Of the value."""
    below: Roof | None
    """Never above `roofs`; `None` for the same."""
    multipliers: AnyArray
    """Of the limits, `(limits,)`, not negative: for the bound of f."""
    proof: AnyArray
    """The same, to prove that nothing is feasible; their sum is 1 at most."""


class Seen(eqx.Module):
    """What is known of boxes, arrays `(boxes,)`."""

    value: AnyArray
    """Objective at the centre: infinite where a limit is violated, NaN where it is not a number."""
    bound: AnyArray
    """No feasible point of the box is below it; infinite where there is none."""
    spread: AnyArray
    """How much the objective, or a limit that may be violated, changes along every variable,
    `(boxes, variables)`."""


@compiled
def look(lower: Array, centre: Array, upper: Array, rules: Rules) -> Seen:
    """Look at boxes with given logarithms of their corners and of a point in between,
    `(boxes, variables)` each.
    """

    def one(lower: Array, centre: Array, upper: Array) -> Seen:
        branch = rules.branch
        corners = jnp.stack([lower, centre, upper])
        lower, x, upper = jax.vmap(lambda corner: rules.ties(corner, branch))(corners)
        under = below_between(branch, lower, upper) if has_experts(branch) else branch
        exact = functions_of(branch, rules.roofs)(x)
        values, jacobian = value_and_jacobian(functions_of(under, rules.roofs), x)
        planes = least_of_planes(values, jacobian, x, lower, upper)
        sums = jnp.stack([jnp.append(1.0, rules.multipliers), jnp.append(0.0, rules.proof)])
        if rules.below is None:
            bounds = least_of_planes(sums @ values, sums @ jacobian, x, lower, upper)
        else:
            _, bounds = lower_bounds(functions_of(under, rules.below), x, sums, lower, upper)
        # points are feasible up to a violation that the multipliers price
        bound = jnp.maximum(planes[0], bounds[0] - FEASIBLE * jnp.sum(rules.multipliers))
        empty = jnp.any(planes[1:] > FEASIBLE) | (bounds[1] > FEASIBLE)
        bound = jnp.where(empty, jnp.inf, jnp.where(jnp.isnan(bound), -jnp.inf, bound))
        unknown = jnp.any(jnp.isnan(exact))
        value = jnp.where(jnp.all(exact[1:] <= FEASIBLE), exact[0], jnp.inf)
        changes = jnp.abs(jacobian) * (upper - lower)[None]
        matters = (values + jnp.sum(changes, axis=1) > 0.0).at[0].set(True)
        spread = jnp.max(jnp.where(matters[:, None], changes, 0.0), axis=0)
        return Seen(jnp.where(unknown, jnp.nan, value), bound, spread)

    return jax.vmap(one)(lower, centre, upper)
