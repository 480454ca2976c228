"""A lattice of designs and deployments: values along named axes, the rest held or tied.

A tied variable has the least value that its own limits allow, in the order of `TIES`:

    x_j(y) = max_k r_k(y),   g_k = r_k - x_j

with r_k the logarithm of the use of limit k. Every such r_k grows with each of the other variables,
so that inside a box it is between its values at two corners.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ...errors import UserError, unknown_name
from ...execution.roofline import HardRoof
from ...numerics import AnyArray
from ..branches import hold
from ..layout import Layout
from ..problem import Branch, objective_and_limits


TIES = {
    "clock_ghz": ("clock_prefill", "clock_decode"),
    "memory_gb": ("stack_capacity_min", "memory_prefill", "memory_decode"),
    "tdp_w": ("rated_bf16_phase", "rated_fp8_phase", "rated_memory_phase"),
}
"""Variable that may be tied -> the limits that set its least value (names without a label)."""
SAME = 1e-9
"""Logarithms that differ by less are one value."""


class Ties(eqx.Module):
    """Which variables are tied, and to what."""

    variables: AnyArray
    """`(ties, variables)` of bool; a row for each of `TIES`, with one variable at most."""
    limits: AnyArray
    """`(ties, limits)` of bool."""

    def __call__(self, x: Array, branch: Branch) -> Array:
        """The point with its tied variables at their least values, or where the box ends."""
        lower, upper = branch.box

        def tie(x: Array, row: tuple[Array, Array]) -> tuple[Array, None]:
            variable, limits = row
            slack = objective_and_limits(x, branch, HardRoof())[1:]
            least = x + jnp.max(jnp.where(limits & branch.applies, slack, -jnp.inf))
            return jnp.where(variable, jnp.clip(least, lower, upper), x), None

        rows = jnp.asarray(self.variables), jnp.asarray(self.limits)
        return jax.lax.scan(tie, x, rows)[0]  # one body to compile


@dataclass(frozen=True)
class Lattice:
    """Points are given by their indices along the axes, `(..., axes)`."""

    branch: Branch
    """With the box of the lattice; axes and ties are free."""
    layout: Layout
    axes: dict[str, np.ndarray]
    """Variable -> its values in its own unit, increasing; two at least."""
    held: dict[str, float]
    ties: Ties

    @property
    def slots(self) -> list[int]:
        """Where the axes are along the vector of variables."""
        return [self.layout.variables.index(name) for name in self.axes]

    @property
    def last(self) -> np.ndarray:
        """The last index of every axis."""
        return np.array([len(values) - 1 for values in self.axes.values()])

    def logs(self, indices: np.ndarray) -> np.ndarray:
        """Logarithms of all variables, `(..., variables)`; those of tied ones are not set yet."""
        x = np.broadcast_to(self.branch.middle, (*indices.shape[:-1], len(self.layout.variables)))
        x = x.copy()
        for number, (slot, values) in enumerate(zip(self.slots, self.axes.values(), strict=True)):
            x[..., slot] = np.log(values)[indices[..., number]]
        return x

    def values(self, indices: np.ndarray) -> dict[str, float]:
        """Variable -> its value in its own unit at one point, tied ones included."""
        x = np.exp(self.ties(jnp.asarray(self.logs(indices)), self.branch))
        at = {
            name: float(values[index])
            for (name, values), index in zip(self.axes.items(), indices, strict=True)
        } | self.held
        return {
            name: at.get(name, float(value))
            for name, value in zip(self.layout.variables, x, strict=True)
        }


def make_lattice(
    branch: Branch,
    layout: Layout,
    axes: Mapping[str, Sequence[float]],
    *,
    held: Mapping[str, float],
    tied: Collection[str],
) -> Lattice:
    """The lattice of a branch.

    **Raises:** `UserError` for variables that are missing or named twice, for values outside the
    box of the branch, and without an axis of two values.
    """
    searched = [name for name, on in zip(layout.variables, branch.free, strict=True) if on]
    for name in (*axes, *held, *tied):
        if name not in searched:
            raise unknown_name("variable", name, searched, where="lattice")
    for name in tied:
        if name not in TIES:
            raise UserError(f"{name} cannot be tied", where="lattice", allowed=", ".join(TIES))
    for name in searched:
        ways = [name in group for group in (axes, held, tied)]
        if sum(ways) != 1:
            what = "is given twice" if any(ways) else "is neither an axis nor held nor tied"
            raise UserError(f"{name} {what}", where="lattice")
    values = {name: np.unique(np.asarray(axis, float)) for name, axis in axes.items()}
    values |= {name: np.array([value]) for name, value in held.items()}
    lower, upper = np.array(branch.lower), np.array(branch.upper)
    for name, axis in values.items():
        slot = layout.variables.index(name)
        low, high = float(np.exp(lower[slot])), float(np.exp(upper[slot]))
        if not len(axis) or not low * (1 - SAME) <= axis[0] <= axis[-1] <= high * (1 + SAME):
            raise UserError(
                f"{name} has no values, or some outside its range",
                where="lattice",
                allowed=f"{low:g} to {high:g}",
            )
        lower[slot], upper[slot] = math.log(axis[0]), math.log(axis[-1])
    fixed = {name: float(axis[0]) for name, axis in values.items() if len(axis) == 1}
    many = {name: axis for name, axis in values.items() if len(axis) > 1}
    if not many:
        raise UserError("no axis has two values", where="lattice")
    narrowed = hold(replace(branch, lower=lower, upper=upper), layout, fixed)
    return Lattice(narrowed, layout, many, fixed, _ties(layout, tied))


def _ties(layout: Layout, tied: Collection[str]) -> Ties:
    names = [name.partition("[")[0] for name in layout.limit_names]
    return Ties(
        np.array([[name == tie and tie in tied for name in layout.variables] for tie in TIES]),
        np.array([[name in limits for name in names] for limits in TIES.values()]),
    )
