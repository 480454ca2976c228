"""Yield models: the share of dies of an area that have no killing defect.

With `x = A D0/100` defects expected on a die (A in mm2, D0 per cm2):

| model             | yield                | beside the negative binomial                       |
|-------------------|----------------------|----------------------------------------------------|
| Poisson           | exp(-x)              | its limit for clustering a -> infinity             |
| Murphy            | ((1 - exp(-x))/x)^2  | a = 5.5 is within 0.07 % up to x = 0.86, the field |
|                   |                      | at 0.10 per cm2, and within 3 % up to x = 2        |
| Seeds             | 1/(1 + x)            | a = 1                                              |
| negative binomial | (1 + x/a)^-a         |                                                    |

The product builds on the negative binomial alone: its clustering is a value of the process and
covers the others. 1/Y of each is log-log convex in A and in D0.
"""

import jax.numpy as jnp
from jax import Array

from ..numerics import TINY


def defects_per_die(area_mm2: Array, defects_per_cm2: Array) -> Array:
    """`x = A D0/100`: 1 cm2 is 100 mm2."""
    return area_mm2 * defects_per_cm2 / 100.0


def poisson_yield(area_mm2: Array, defects_per_cm2: Array) -> Array:
    """`Y = exp(-x)`: defects fall anywhere alike."""
    return jnp.exp(-defects_per_die(area_mm2, defects_per_cm2))


def murphy_yield(area_mm2: Array, defects_per_cm2: Array) -> Array:
    """`Y = ((1 - exp(-x))/x)^2`: densities spread in a triangle; 1 where there are no defects."""
    x = defects_per_die(area_mm2, defects_per_cm2) + TINY
    return (-jnp.expm1(-x) / x) ** 2


def seeds_yield(area_mm2: Array, defects_per_cm2: Array) -> Array:
    """`Y = 1/(1 + x)`: densities spread exponentially."""
    return negative_binomial_yield(area_mm2, defects_per_cm2, 1.0)


def negative_binomial_yield(
    area_mm2: Array, defects_per_cm2: Array, clustering: Array | float
) -> Array:
    """`Y = (1 + x/a)^-a`: densities spread as a gamma distribution with clustering a."""
    return (1.0 + defects_per_die(area_mm2, defects_per_cm2) / clustering) ** -clustering
