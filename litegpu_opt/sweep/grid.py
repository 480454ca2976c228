"""The points of a sweep as numbers: index -> values, worked out where they are needed.

A point is a hardware index h and a deployment index d; its own index is `h deployments + d`. Both
are mixed-radix numbers of axes. Deployments that differ in their batches alone form a group: its
prefill rows and decode rows are worked out once, and every pair of them is a deployment.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import UserError
from ..study.sweep import BATCH_AXES, HARDWARE, Axis, axis_side
from .sobol import MOST_DIMENSIONS, sobol


MOST_ROWS = 2**20
"""Pairs of batches in a group: they are visited in one go."""

TECHNOLOGY = "technology"
"""Name of the dimension that goes through combinations of technologies."""


@dataclass(frozen=True)
class Dimension:
    """One digit of an index: an axis, axes that are sampled together, or a choice by number."""

    axes: Mapping[str, Axis]
    size: int

    def values(self, digit: Array, seed: int) -> dict[str, Array]:
        """Name -> value at a digit."""
        sampled = [axis.sobol for axis in self.axes.values()]
        shares = (
            sobol(digit, len(sampled), seed)
            if any(sampled)
            else [digit.astype(jnp.float64) / max(self.size - 1, 1)] * len(sampled)
        )
        return {
            name: _value(axis, digit, share)
            for (name, axis), share in zip(self.axes.items(), shares, strict=True)
        }


def _value(axis: Axis, digit: Array, share: Array) -> Array:
    if axis.values:
        return jnp.asarray(axis.values)[digit]
    if axis.scale == "log":
        low, high = math.log(axis.low), math.log(axis.high)
        return jnp.exp(low * (1.0 - share) + high * share)
    return axis.low * (1.0 - share) + axis.high * share


@dataclass(frozen=True)
class Digits:
    """A mixed-radix number; the last dimension counts fastest."""

    dimensions: Mapping[str, Dimension]

    @property
    def size(self) -> int:
        """Numbers there are."""
        return math.prod(dimension.size for dimension in self.dimensions.values())

    def digits(self, index: Any) -> dict[str, Any]:
        """Name of the dimension -> its digit."""
        result = {}
        for name, dimension in reversed(list(self.dimensions.items())):
            result[name] = index % dimension.size
            index = index // dimension.size
        return result

    def values(self, index: Array, seed: int) -> dict[str, Array]:
        """Axis -> value at an index."""
        digits = self.digits(index)
        return {
            name: value
            for key, dimension in self.dimensions.items()
            for name, value in dimension.values(digits[key], seed).items()
        }


@dataclass(frozen=True)
class Grid:
    """All points of a sweep."""

    hardware: Digits
    groups: Digits
    """Parallelism, traffic and whatever is sampled with them."""
    prefill: Axis | None
    """Batches of the prefill pool in a group; without one, the group says."""
    decode: Axis | None
    seed: int

    @property
    def prefill_rows(self) -> int:
        """Prefill batches of a group."""
        return self.prefill.size if self.prefill else 1

    @property
    def decode_rows(self) -> int:
        """Decode batches of a group."""
        return self.decode.size if self.decode else 1

    @property
    def deployments(self) -> int:
        """Deployments of every hardware point."""
        return self.groups.size * self.prefill_rows * self.decode_rows

    @property
    def points(self) -> int:
        """Pairs of hardware point and deployment."""
        return self.hardware.size * self.deployments

    def split(self, deployment: np.ndarray | int) -> tuple:
        """Group, prefill row and decode row of a deployment."""
        rest, decode = np.divmod(deployment, self.decode_rows)
        return (*np.divmod(rest, self.prefill_rows), decode)


def batch_at(axis: Axis | None, row: Array, given: Mapping[str, Array], name: str) -> Array:
    """Batch of a row of a group."""
    if axis is None:
        return given[name] if name in given else given["batch"]
    share = row.astype(jnp.float64) / max(axis.size - 1, 1)
    return _value(axis, row, share)


def make_grid(axes: Mapping[str, Axis], samples: int, seed: int, technologies: int) -> Grid:
    """The points of some axes.

    **Arguments:**

    - `samples`: points of the axes that are sampled together.
    - `technologies`: combinations that the hardware goes through.

    **Raises:** `UserError` for more sampled axes, or more batches, than there is room for.
    """
    sampled = {name: axis for name, axis in axes.items() if axis.sobol}
    if len(sampled) > MOST_DIMENSIONS:
        what = f"{len(sampled)} axes are sampled together"
        raise UserError(what, where="sweep.axes", allowed=f"at most {MOST_DIMENSIONS}")
    sides: dict[bool, dict[str, Dimension]] = {True: {}, False: {}}
    if technologies > 1:
        sides[True][TECHNOLOGY] = Dimension({}, technologies)
    if sampled:
        of_hardware = axis_side(next(iter(sampled))) == HARDWARE
        sides[of_hardware]["sobol"] = Dimension(sampled, samples)
    rows = [axes.get(name) for name in BATCH_AXES[1:]]
    prefill, decode = (None if axis is None or axis.sobol else axis for axis in rows)
    for name, axis in axes.items():
        if not axis.sobol and axis is not prefill and axis is not decode:
            sides[axis_side(name) == HARDWARE][name] = Dimension({name: axis}, axis.size)
    grid = Grid(Digits(sides[True]), Digits(sides[False]), prefill, decode, seed)
    if grid.prefill_rows * grid.decode_rows > MOST_ROWS:
        what = f"{grid.prefill_rows} x {grid.decode_rows} pairs of batches"
        raise UserError(what, where="sweep.axes.batch_decode", allowed=f"at most {MOST_ROWS} pairs")
    return grid
