"""Sensitivities: what every assumption is worth at an optimum, by the envelope theorem.

    d log(value*) / d log(theta) = theta dL/d theta  at the optimum and its multipliers

One backward pass of the Lagrangian gives the whole table; within a branch, and
where the multipliers are unique.
"""

import jax
import jax.numpy as jnp
from jax import Array

from ..execution.roofline import SoftRoof, for_pools
from ..machine.technology import TABLES, Technology
from .problem import Branch, objective_and_limits


def technology_elasticities(branch: Branch, x: Array, multipliers: Array) -> Technology:
    """Elasticity of the optimal value to every leaf of the technology, as a `Technology` pytree.

    A leaf that is 0 has no elasticity: there it is the slope `d log(value*) / d theta`.
    """
    weights = jnp.concatenate([jnp.ones(1), multipliers])

    def lagrangian(technology: Technology) -> Array:
        there = Branch(**{**vars(branch), "technology": technology})
        roofs = for_pools(SoftRoof(technology.execution.overlap_exponent), branch.pool_count)
        return jnp.sum(weights * objective_and_limits(x, there, roofs))

    slopes = jax.grad(lagrangian)(branch.technology)
    return jax.tree.map(
        lambda leaf, slope: slope * jnp.where(leaf == 0.0, 1.0, leaf), branch.technology, slopes
    )


def by_name(technology: Technology) -> dict[str, float]:
    """`"table.field"` -> value of a technology pytree."""
    return {
        f"{table}.{field}": float(value)
        for table in TABLES
        for field, value in vars(getattr(technology, table)).items()
    }
