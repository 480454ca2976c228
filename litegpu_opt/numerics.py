"""One numerical setting for the whole package: double precision.

A certificate of 1e-9 cannot be stated in single precision. Packages with JAX
values import this module first.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


AnyArray = Array | np.ndarray
"""On a device or on the host."""

jax.config.update("jax_enable_x64", True)

TINY = 1e-30
"""Stands in for a resource an operator does not use, so that its logarithm is finite."""


def scalar(value: float | AnyArray) -> Array:
    """Convert a pytree leaf to a float64 JAX scalar (the converter of every numeric field)."""
    return jnp.asarray(value, dtype=jnp.float64)
