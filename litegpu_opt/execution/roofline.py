"""Roofs: how the compute time and the memory time of one operator combine.

A roof maps two positive times to one, elementwise over the operator axis:

- `SoftRoof(q)`: the q-norm. q = 1 adds, q -> infinity overlaps completely.
- `HardRoof()`: the maximum, the classic roofline and the limit of q.
- `MeanRoof(w)`: the weighted geometric mean, which never exceeds the maximum
  and is log-linear: the convex under-estimator that certificates of the hard
  roofline use.
"""

import abc
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..numerics import TINY, scalar


def q_norm(a_ms: Array, b_ms: Array, exponent: Array | float) -> Array:
    """`(a^q + b^q)^(1/q)`, through logarithms so that any q is safe and smooth."""
    return jnp.exp(jnp.logaddexp(exponent * _log(a_ms), exponent * _log(b_ms)) / exponent)


def _log(time_ms: Array) -> Array:
    """Logarithm that stays finite for an operator without that resource."""
    return jnp.log(time_ms + TINY)


class Roof(eqx.Module):
    """A rule that joins compute and memory time."""

    @abc.abstractmethod
    def __call__(self, compute_ms: Array, memory_ms: Array) -> Array:
        """Time of the operator, ms."""


AnyRoof = TypeVar("AnyRoof", bound=Roof)


class SoftRoof(Roof):
    """`q_norm` with the overlap exponent of a technology."""

    overlap_exponent: Array = eqx.field(converter=scalar)

    def __call__(self, compute_ms: Array, memory_ms: Array) -> Array:
        return q_norm(compute_ms, memory_ms, self.overlap_exponent)

    def compute_weight(self, compute_ms: Array, memory_ms: Array) -> Array:
        """`a^q/(a^q + b^q)`: the weight with which a `MeanRoof` has this roof's gradient here."""
        return jax.nn.sigmoid(self.overlap_exponent * (_log(compute_ms) - _log(memory_ms)))


class EuclideanRoof(Roof):
    """`sqrt(a^2 + b^2)`: the soft roof of q = 2 without logarithms, where no slope is asked for."""

    def __call__(self, compute_ms: Array, memory_ms: Array) -> Array:
        return jnp.sqrt(compute_ms**2 + memory_ms**2)


class HardRoof(Roof):
    """`max(a, b)`."""

    def __call__(self, compute_ms: Array, memory_ms: Array) -> Array:
        return jnp.maximum(compute_ms, memory_ms)


class MeanRoof(Roof):
    """`a^w b^(1-w)` <= `max(a, b)`, for any fixed weights in [0, 1] of shape `(ops,)`."""

    weight: Array

    def __call__(self, compute_ms: Array, memory_ms: Array) -> Array:
        return jnp.exp(self.weight * _log(compute_ms) + (1.0 - self.weight) * _log(memory_ms))


def for_pools(roof: AnyRoof, count: int = 2) -> AnyRoof:
    """The same roof for every pool, on a leading axis; by default for one of prefill and one of
    decode.
    """
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * count), roof)
