"""The one verb of the model: a design, run one way, in one technology, on one workload."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from .deployment import Deployment, check_batch
from .execution.phase import MS_PER_S
from .execution.roofline import Roof, SoftRoof, for_pools
from .limits import Caps, uses_and_limits
from .machine.cost import (
    BillOfMaterials,
    YearlyCost,
    bill_of_materials,
    nre_usd_per_token,
    usd_per_joule,
    yearly_cost,
)
from .machine.design import Design
from .machine.power import thermal_design_power_w
from .machine.technology import Technology
from .objectives import TOKENS_PER_MILLION, objective_values
from .serving import Service, serve_pools
from .workload.pool import Pool, build_pools
from .workload.traffic import Workload


class Metrics(eqx.Module):
    """What `evaluate` returns: JAX scalars, differentiable in design and technology.

    Watts, dollars of hardware and everything in `services` are per device.
    """

    services: Service
    """With a leading axis (prefill, decode)."""
    tdp_w: Array
    usd_per_token: Array
    """Cost of an output token, both pools."""
    tokens_per_s: Array
    """Output tokens per second of one decode group, `B/t`."""
    tokens_per_s_per_sm: Array
    """The same per enabled SM of the group."""
    prefill_tokens_per_s_per_sm: Array
    """Prompt tokens per second and SM of a prefill group."""
    joules_per_token: Array
    """Energy per output token at the wall of the IT equipment, both pools."""
    power_w: Array
    """Average draw of a device while busy, over both pools."""
    bill_of_materials: BillOfMaterials
    yearly_cost: YearlyCost
    electricity_usd_per_second: Array
    """Of an owned device with all that is drawn around it, on average over both pools."""
    nre_usd_per_token: Array
    uses: Array
    limits: Array
    """Use and limit of everything in `litegpu_opt.limits.LIMITS`."""

    @property
    def tokens_per_dollar(self) -> Array:
        """Output tokens per dollar."""
        return 1.0 / self.usd_per_token


def assess(
    pools: Pool,
    batches: Array,
    clocks_ghz: Array,
    roofs: Roof,
    design: Design,
    technology: Technology,
    prompt_tokens: Array,
    caps: Caps,
) -> Metrics:
    """Metrics of a design that serves given pools; pools, batches, clocks and roofs have a leading
    axis (prefill, decode). Everything is traced, so many points can share one compilation.
    """
    tdp_w = thermal_design_power_w(design, technology)
    services = serve_pools(pools, batches, clocks_ghz, roofs, design, tdp_w, technology)
    usd_per_million, joules_per_token, *_ = objective_values(services, design, technology)
    uses, limits = uses_and_limits(
        design, tdp_w, clocks_ghz, services, pools.limit_ms, technology, caps
    )
    prefill_per_s, decode_per_s = MS_PER_S * batches / services.time_ms
    prefill_sms, decode_sms = pools.devices * design.sm_count
    busy_s = services.device_seconds_per_token
    device_w = MS_PER_S * services.device_j / services.time_ms
    owned_s = jnp.sum(busy_s) / technology.prices.load_factor
    return Metrics(
        services=services,
        tdp_w=tdp_w,
        usd_per_token=usd_per_million / TOKENS_PER_MILLION,
        tokens_per_s=decode_per_s,
        tokens_per_s_per_sm=decode_per_s / decode_sms,
        prefill_tokens_per_s_per_sm=prefill_per_s * prompt_tokens / prefill_sms,
        joules_per_token=joules_per_token,
        power_w=jnp.sum(busy_s * device_w) / jnp.sum(busy_s),
        bill_of_materials=bill_of_materials(design, technology),
        yearly_cost=yearly_cost(design, tdp_w, technology),
        electricity_usd_per_second=usd_per_joule(technology) * joules_per_token / owned_s,
        nre_usd_per_token=nre_usd_per_token(technology),
        uses=uses,
        limits=limits,
    )


CLOCKS = 65
"""Clocks that are tried on the way down."""
LOWEST_CLOCK_SHARE = 0.2
"""Of the design's clock."""
AS_FAST = 1e-3
"""A higher clock is kept while it costs no more than this share of the time."""


@eqx.filter_jit
def throttled(
    design: Design, deployment: Deployment, technology: Technology, workload: Workload, roof: Roof
) -> Deployment:
    """The deployment with the clock of each phase as firmware sets it: the highest at which the
    phase is as fast as its TDP allows.

    Above it the device would have to stand still to stay within its TDP.
    """
    pools = build_pools(workload, deployment.prefill, deployment.decode)
    batches = jnp.stack([deployment.batch_prefill, deployment.batch_decode])
    clocks_ghz = jnp.stack([deployment.clock_prefill_ghz, deployment.clock_decode_ghz])
    shares = jnp.linspace(1.0, LOWEST_CLOCK_SHARE, CLOCKS)
    tdp_w = thermal_design_power_w(design, technology)

    def times_ms(share: Array) -> Array:
        return serve_pools(
            pools, batches, share * clocks_ghz, for_pools(roof), design, tdp_w, technology
        ).time_ms

    times = jax.vmap(times_ms)(shares)
    fast = times <= (1.0 + AS_FAST) * jnp.min(times, axis=0, keepdims=True)
    prefill_ghz, decode_ghz = shares[jnp.argmax(fast, axis=0)] * clocks_ghz
    return replace(deployment, clock_prefill_ghz=prefill_ghz, clock_decode_ghz=decode_ghz)


def evaluate(
    design: Design,
    deployment: Deployment,
    technology: Technology,
    workload: Workload,
    *,
    roof: Roof | None = None,
    caps: Caps | None = None,
) -> Metrics:
    """Time, energy, cost and limits of a design that serves a workload.

    Pure and for one point: put `jax.jit`, `jax.vmap` and `jax.grad` outside.

    **Arguments:**

    - `roof`: how compute and memory time combine; by default the q-norm with the technology's
      overlap exponent. `HardRoof()` is the classic roofline.
    - `caps`: limits of one's own.

    **Raises:** `UserError` for a way of parallelism that the model does not allow, or a batch that
    it cannot share (`check_batch`).
    """
    if workload.serves_prefill:
        check_batch(deployment.batch_prefill, deployment.prefill, "batch_prefill")
    check_batch(deployment.batch_decode, deployment.decode, "batch_decode")
    if roof is None:
        roof = SoftRoof(technology.execution.overlap_exponent)
    return assess(
        build_pools(workload, deployment.prefill, deployment.decode),
        jnp.stack([deployment.batch_prefill, deployment.batch_decode]),
        jnp.stack([deployment.clock_prefill_ghz, deployment.clock_decode_ghz]),
        for_pools(roof),
        design,
        technology,
        workload.traffic.prompt_tokens,
        Caps() if caps is None else caps,
    )
