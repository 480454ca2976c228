"""What a search can make small: costs of an output token in money, energy, chips and SMs.

Each is a sum over the pools that is log-log convex in the design, so that a product of powers of
them is as well.
"""

import jax.numpy as jnp
from jax import Array

from .machine.cost import nre_usd_per_token
from .machine.design import Design
from .machine.technology import Technology
from .serving import Service


TOKENS_PER_MILLION = 1e6


def objective_values(services: Service, design: Design, technology: Technology) -> Array:
    """Everything in `space.OBJECTIVES` per output token over all pools, `(objectives,)`.

    `services` have a leading axis over the pools.
    """
    return jnp.stack(
        objectives_of(
            jnp.sum(services.usd_per_token),
            jnp.sum(services.joules_per_token),
            jnp.sum(services.device_seconds_per_token),
            design.sm_count,
            nre_usd_per_token(technology),
        )
    )


def objectives_of(
    usd_per_token: Array, joules_per_token: Array, package_s: Array, sm_count: Array, nre_usd: Array
) -> tuple[Array, Array, Array, Array]:
    """Everything in `space.OBJECTIVES` from sums over the pools; `nre_usd` is per token too."""
    return (
        TOKENS_PER_MILLION * (usd_per_token + nre_usd),
        joules_per_token,
        package_s * sm_count,
        package_s,
    )
