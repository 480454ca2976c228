"""One numerical setting for the whole package: double precision.

A certificate of 1e-9 cannot be stated in single precision. Packages with JAX
values import this module first.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


Tree = TypeVar("Tree")

AnyArray = Array | np.ndarray
"""On a device or on the host."""

jax.config.update("jax_enable_x64", True)

TINY = 1e-30
"""Stands in for a resource an operator does not use, so that its logarithm is finite."""


def scalar(value: float | AnyArray) -> Array:
    """Convert a pytree leaf to a float64 JAX scalar (the converter of every numeric field)."""
    return jnp.asarray(value, dtype=jnp.float64)


def stack_padded(trees: Sequence[Tree], module: ModuleType = jnp) -> Tree:
    """Pytrees on a new leading axis; shorter axes are filled up with zeros.

    **Arguments:**

    - `module`: `jax.numpy`, or `numpy` to stay on the host.
    """

    def stack(*leaves: AnyArray) -> AnyArray:
        arrays = [module.asarray(leaf) for leaf in leaves]
        shape = tuple(max(lengths) for lengths in zip(*(a.shape for a in arrays), strict=True))
        return module.stack(
            [
                array
                if array.shape == shape
                else module.pad(
                    array, [(0, full - own) for full, own in zip(shape, array.shape, strict=True)]
                )
                for array in arrays
            ]
        )

    return jax.tree.map(stack, *trees)
