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

from ..execution.roofline import Roof
from ..limits import LIMIT_NAMES, LIMITS, uses_and_limits
from ..machine.design import Design
from ..machine.technology import Technology
from ..numerics import AnyArray
from ..serving import Service, serve_pools, usd_per_token
from ..workload.pool import Pool


DESIGN_VARIABLES = (
    "die_area_mm2",
    "sm_count",
    "clock_ghz",
    "memory_stacks",
    "memory_gb",
    "network_gb_s",
)
"""Continuous fields of `Design`."""

VARIABLES = (
    *DESIGN_VARIABLES,
    "tdp_w",
    "batch_prefill",
    "batch_decode",
    "clock_prefill_ghz",
    "clock_decode_ghz",
)
"""Continuous variables, in the order of every vector of the optimiser."""

BOX = {
    "die_area_mm2": (10.0, 860.0),
    "sm_count": (1.0, 2000.0),
    "clock_ghz": (0.2, 3.0),
    "memory_stacks": (1.0, 64.0),
    "memory_gb": (4.0, 4000.0),
    "network_gb_s": (10.0, 20000.0),
    "tdp_w": (1.0, 10000.0),
    "batch_prefill": (1.0, 2000.0),
    "batch_decode": (1.0, 50000.0),
    "clock_prefill_ghz": (0.2, 3.0),
    "clock_decode_ghz": (0.2, 3.0),
}
"""Search box. Generous: an optimum at one of these bounds is named, unless it is in `PHYSICAL`."""

PHYSICAL = {
    ("sm_count", "lower"): "one SM",
    ("memory_stacks", "lower"): "one stack",
    ("batch_prefill", "lower"): "one sequence",
    ("batch_decode", "lower"): "one sequence",
}
"""Bounds of the box that nature sets."""


class Branch(eqx.Module):
    """One convex branch. Everything is traced, so all branches share one compilation."""

    technology: Technology
    pools: Pool
    """Prefill and decode pool on a leading axis of two."""
    aspect_ratio: AnyArray
    dies_per_package: AnyArray
    die_area_max_mm2: AnyArray
    objective: AnyArray
    """Weights of `log($/token)` and of every `log(use/limit)` in the objective, `(1 + limits,)`."""
    applies: AnyArray
    """Which of `LIMITS` hold, `(limits,)` of bool."""
    free: AnyArray
    """Which variables are searched, `(variables,)` of bool; the others stay at `fixed`."""
    fixed: AnyArray
    """Logarithms of the variables that are not free, `(variables,)`."""

    @property
    def box(self) -> tuple[Array, Array]:
        """Bounds in logarithms, `(variables,)` each; a fixed variable gets room around its value,
        where nothing depends on it.
        """
        lower, upper = jnp.log(jnp.array([BOX[name] for name in VARIABLES])).T
        return (
            jnp.where(self.free, lower, self.fixed - 1.0),
            jnp.where(self.free, upper, self.fixed + 1.0),
        )


class Point(eqx.Module):
    """A point of the search space in natural units, and how it serves.

    Batches, clocks and services have a leading axis over the pools (prefill, decode).
    """

    design: Design
    tdp_w: Array
    batches: Array
    clocks_ghz: Array
    services: Service


def values_at(x: AnyArray, branch: Branch) -> dict[str, Array]:
    """Variable -> value in its own unit, at logarithms `x` of shape `(variables,)`."""
    return dict(zip(VARIABLES, jnp.exp(jnp.where(branch.free, x, branch.fixed)), strict=True))


def design_at(x: AnyArray, branch: Branch) -> Design:
    """The design at logarithms `x`."""
    values = values_at(x, branch)
    return Design(
        **{name: values[name] for name in DESIGN_VARIABLES},
        aspect_ratio=branch.aspect_ratio,
        dies_per_package=branch.dies_per_package,
    )


def point_at(x: Array, branch: Branch, roofs: Roof) -> Point:
    """Evaluate the model at logarithms `x` of shape `(variables,)`, with one roof per pool."""
    values = values_at(x, branch)
    design = design_at(x, branch)
    tdp_w = values["tdp_w"]
    batches = jnp.stack([values["batch_prefill"], values["batch_decode"]])
    clocks_ghz = jnp.stack([values["clock_prefill_ghz"], values["clock_decode_ghz"]])
    return Point(
        design,
        tdp_w,
        batches,
        clocks_ghz,
        serve_pools(branch.pools, batches, clocks_ghz, roofs, design, tdp_w, branch.technology),
    )


@jax.jit  # traced once for all the programs that differentiate it
def objective_and_limits(x: Array, branch: Branch, roofs: Roof) -> Array:
    """`[f, log(use_1/limit_1), ...]`, shape `(1 + limits,)`; every entry is convex in x.

    f is `log($/token)` unless the branch weighs something else. A limit that does not apply is
    the constant -1.
    """
    point = point_at(x, branch, roofs)
    uses, limits = uses_and_limits(
        point.design,
        point.tdp_w,
        point.clocks_ghz,
        point.services,
        branch.pools.limit_ms,
        branch.technology,
        branch.die_area_max_mm2,
    )
    cost = usd_per_token(point.services, branch.technology)
    logs = jnp.concatenate([jnp.log(cost)[None], jnp.log(uses) - jnp.log(limits)])
    slack = jnp.where(branch.applies, logs[1:], -1.0)
    return jnp.concatenate([jnp.sum(branch.objective * logs)[None], slack])


COST_OBJECTIVE = np.eye(1 + len(LIMITS))[0]
"""Minimise the cost per token."""


def reach_objective(limit: str) -> np.ndarray:
    """Minimise the use of one limit: how far it can be pushed."""
    return np.eye(1 + len(LIMITS))[1 + LIMIT_NAMES.index(limit)]
