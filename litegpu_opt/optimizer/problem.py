"""The optimisation problem of one branch: variables, box, objective and limits in logarithms.

A branch fixes everything discrete (parallel degrees, aspect ratio, dies per
package, technology). What remains is a geometric program: minimise the
logarithm of the cost per token over the logarithms of the variables.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..execution.roofline import Roof, SoftRoof, for_pools
from ..limits import Caps, uses_and_limits
from ..machine.design import Design
from ..machine.technology import Technology
from ..numerics import AnyArray
from ..objectives import objective_values
from ..serving import Service, serve_pools
from ..space import DESIGN_VARIABLES, OBJECTIVES
from ..workload.pool import Pool


class Branch(eqx.Module):
    """One convex branch. Everything is traced: all branches of a layout share one compilation."""

    technology: Technology
    pools: Pool
    """Pools on a leading axis: prefill and decode of each workload."""
    aspect_ratio: AnyArray
    dies_per_package: AnyArray
    caps: Caps
    objective: AnyArray
    """Weights of the logarithms of `OBJECTIVES` and of every use/limit in what is minimised,
    `(objectives + limits,)`."""
    tilt: AnyArray
    """Weights of the logarithms of the variables in what is minimised, `(variables,)`."""
    applies: AnyArray
    """Which limits hold, `(limits,)` of bool."""
    free: AnyArray
    """Which variables are searched, `(variables,)` of bool; the others stay at `fixed`."""
    fixed: AnyArray
    """Logarithms of the variables that are not free, `(variables,)`."""
    lower: AnyArray
    upper: AnyArray
    """Box of the logarithms, `(variables,)` each; a fixed variable has room around its value, where
    nothing depends on it."""

    @property
    def box(self) -> tuple[Array, Array]:
        """Bounds of the logarithms."""
        return jnp.asarray(self.lower), jnp.asarray(self.upper)

    @property
    def middle(self) -> np.ndarray:
        """Middle of the box, in logarithms; of every lane where there are several."""
        return (np.asarray(self.lower) + np.asarray(self.upper)) / 2.0

    @property
    def pool_count(self) -> int:
        """Pools that a design serves: two for each workload."""
        return self.pools.devices.shape[-1]


class Point(eqx.Module):
    """A point of the search space in natural units, and how it serves.

    Batches, clocks and services have a leading axis over the pools.
    """

    design: Design
    tdp_w: Array
    batches: Array
    clocks_ghz: Array
    services: Service


def design_at(x: AnyArray, branch: Branch) -> Design:
    """The design at logarithms `x` of shape `(variables,)`."""
    return values_at(x, branch)[0]


def values_at(x: AnyArray, branch: Branch) -> tuple[Design, Array, Array]:
    """The design, its TDP, and batch and clock of every pool, `(2, pools)`."""
    values = jnp.exp(jnp.where(branch.free, x, branch.fixed))
    first = len(DESIGN_VARIABLES)
    design = Design(
        **dict(zip(DESIGN_VARIABLES, values[:first], strict=True)),
        aspect_ratio=branch.aspect_ratio,
        dies_per_package=branch.dies_per_package,
    )
    return design, values[first], jnp.reshape(values[first + 1 :], (2, -1))


def point_at(x: AnyArray, branch: Branch, roofs: Roof) -> Point:
    """Evaluate the model at logarithms `x` of shape `(variables,)`, with one roof per pool."""
    design, tdp_w, (batches, clocks_ghz) = values_at(x, branch)
    services = serve_pools(
        branch.pools, batches, clocks_ghz, roofs, design, tdp_w, branch.technology
    )
    return Point(design, tdp_w, batches, clocks_ghz, services)


@jax.jit
def log_objectives(x: Array, branch: Branch) -> Array:
    """Logarithms of `OBJECTIVES` at logarithms `x`, with the soft roof of the technology."""
    roof = SoftRoof(branch.technology.execution.overlap_exponent)
    point = point_at(x, branch, for_pools(roof, branch.pool_count))
    return jnp.log(objective_values(point.services, point.design, branch.technology))


@jax.jit  # traced once for all the programs that differentiate it
def objective_and_limits(x: Array, branch: Branch, roofs: Roof) -> Array:
    """`[f, log(use_1/limit_1), ...]`, shape `(1 + limits,)`; every entry is convex in x.

    A limit that does not apply is the constant -1.
    """
    point = point_at(x, branch, roofs)
    uses, limits = uses_and_limits(
        point.design,
        point.tdp_w,
        point.clocks_ghz,
        point.services,
        branch.pools.limit_ms,
        branch.technology,
        branch.caps,
    )
    # the objectives are the last of the uses
    logs = jnp.log(uses)
    slack = logs - jnp.log(limits)
    weighed = branch.objective * jnp.concatenate([logs[-len(OBJECTIVES) :], slack])
    value = jnp.sum(weighed) + jnp.sum(branch.tilt * x)
    return jnp.concatenate([value[None], jnp.where(branch.applies, slack, -1.0)])
