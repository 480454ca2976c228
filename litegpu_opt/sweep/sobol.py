"""Sobol points as a function of the index alone: any point of a sequence, on the device.

Direction numbers of Joe and Kuo, SIAM J. Sci. Comput. 30, 2635 (2008), set new-joe-kuo-6. The
sequence is shifted by random bits of its own in every dimension, a function of the seed.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array


BITS = 32

# degree, coefficients and initial numbers of the primitive polynomial of each dimension
_POLYNOMIALS = (
    (1, 0, (1,)),
    (2, 1, (1, 3)),
    (3, 1, (1, 3, 1)),
    (3, 2, (1, 1, 1)),
    (4, 1, (1, 1, 3, 3)),
    (4, 4, (1, 3, 5, 13)),
    (5, 2, (1, 1, 5, 5, 17)),
    (5, 4, (1, 1, 5, 5, 5)),
    (5, 7, (1, 1, 7, 11, 19)),
    (5, 11, (1, 1, 5, 1, 1)),
    (5, 13, (1, 1, 1, 3, 11)),
    (5, 14, (1, 3, 5, 5, 31)),
    (6, 1, (1, 3, 3, 9, 7, 49)),
    (6, 13, (1, 1, 1, 15, 21, 21)),
    (6, 16, (1, 3, 1, 13, 27, 49)),
)
MOST_DIMENSIONS = 1 + len(_POLYNOMIALS)


def directions(dimensions: int) -> np.ndarray:
    """Direction numbers as whole numbers of 32 bits, `(dimensions, 32)`; the first of a row is the
    one of the last bit of the index.
    """
    rows = [[1 << (BITS - 1 - bit) for bit in range(BITS)]]
    for degree, coefficients, initial in _POLYNOMIALS[: dimensions - 1]:
        row = [number << (BITS - 1 - bit) for bit, number in enumerate(initial)]
        for bit in range(degree, BITS):
            number = row[bit - degree] ^ (row[bit - degree] >> degree)
            for k in range(1, degree):
                if (coefficients >> (degree - 1 - k)) & 1:
                    number ^= row[bit - k]
            row.append(number)
        rows.append(row)
    return np.array(rows, np.uint32)


def sobol(index: Array, dimensions: int, seed: int) -> Array:
    """The point with an index, shifted, in the open unit cube: `(dimensions,)` of float64."""
    shift = np.random.default_rng(seed).integers(0, 2**BITS, dimensions, np.uint32)
    gray = (index ^ (index >> 1)).astype(jnp.uint32)
    bits = (gray >> jnp.arange(BITS, dtype=jnp.uint32)) & jnp.uint32(1)
    chosen = jnp.where(bits[None, :] > 0, jnp.asarray(directions(dimensions)), jnp.uint32(0))
    number = jnp.asarray(shift)
    for bit in range(BITS):
        number = number ^ chosen[:, bit]
    return (number.astype(jnp.float64) + 0.5) / 2.0**BITS
