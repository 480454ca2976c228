"""A design serving a workload: the model that both `evaluate` and the optimiser call.

Pure and scalar: one design, one technology, one pool at a time. All outputs are
log-log convex in the design, the batch and the clocks (for a soft roof).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from .execution.phase import MS_PER_S, OperatorTimes, dynamic_energy_j, operator_times
from .execution.roofline import Roof
from .machine.cost import nre_usd_per_token, usd_per_joule, yearly_cost
from .machine.design import Design
from .machine.power import JOULE_PER_GB_PJ_BIT, energy_costs
from .machine.rates import peak_rates
from .machine.technology import Technology
from .workload.pool import Pool


class Service(eqx.Module):
    """One pool serving one batch. Energies and bytes are per device and execution of the phase."""

    devices: Array
    """Of a group."""
    times: OperatorTimes
    """Of one microbatch in every kind of stage."""
    time_ms: Array
    """How long a batch keeps the devices; in decode, the time of a step."""
    latency_ms: Array
    """What the user waits: the phase and the hand-over of its KV cache."""
    handover_ms: Array
    """Hand-over of the KV cache of a batch to the decode pool."""
    weights_gb: Array
    """Resident weights."""
    memory_gb: Array
    """Resident weights and KV cache."""
    device_j: Array
    """Energy drawn by the device while it is busy."""
    cluster_j: Array
    """Energy drawn beyond the device: host, far link ends, switches, idle time at part load."""
    device_seconds_per_token: Array
    """Busy device-seconds of this pool per output token."""
    usd_per_token: Array
    """Cost of this pool per output token, without NRE."""


def batch_times_ms(pool: Pool, operator_ms: Array) -> tuple[Array, Array]:
    """How long a batch keeps the devices, and how long it takes to come through, ms.

    A batch goes through pp stages in m microbatches. With t_s the time of a microbatch in stage s,
    prefill keeps the devices for m max(t), since another batch can follow at once, and is through
    after sum(t) + (m - 1) max(t). A decode step needs the last one of the same sequences:
    max(sum(t), m max(t)) for both; with fewer microbatches than stages, some stages wait.

    **Arguments:**

    - `operator_ms`: time of every operator in one execution of its stage, `(ops,)`.
    """
    operators, m = pool.operators, pool.microbatches
    if operators.stage.shape[0] == 1:
        alone = m * jnp.sum(operator_ms)
        return alone, alone
    stage_ms = operators.stage @ operator_ms
    slowest, whole = jnp.max(stage_ms), jnp.sum(operators.stages * stage_ms)
    step = jnp.maximum(whole, m * slowest)
    again = pool.waits_for_itself
    return (
        again * step + (1.0 - again) * m * slowest,
        again * step + (1.0 - again) * (whole + (m - 1.0) * slowest),
    )


def serve(
    pool: Pool,
    batch: Array,
    clock_ghz: Array,
    roof: Roof,
    design: Design,
    tdp_w: Array,
    usd_per_second: Array,
    technology: Technology,
) -> Service:
    """Serve a batch in one pool with devices that cost `usd_per_second` to own.

    Cost per output token = `devices executions/B [ ($/s) t/u + ($/J) E ]` with load factor u.
    """
    rates = peak_rates(design, clock_ghz, technology)
    energy = energy_costs(design, clock_ghz, technology)
    prices = technology.prices
    operators = pool.operators

    part = batch / pool.microbatches
    times = operator_times(operators, part, rates, technology.execution, technology.relative_hop)
    time_ms, through_ms = batch_times_ms(pool, times.total_ms(roof))
    time_s = time_ms / MS_PER_S
    handover_ms = MS_PER_S * (
        batch
        * pool.handover_gb_per_seq
        / (technology.execution.network_efficiency * rates.network_gb_s)
    )

    # a device at load u is owned for 1/u of its busy time, idle in the rest
    owned_s = time_s / prices.load_factor
    idle_s = time_s * (1.0 / prices.load_factor - 1.0)
    sent_gb = batch * pool.sent_gb_per_seq
    runs = operators.device_share * operators.repeats
    wire_gb = batch * jnp.sum(runs * operators.wire_gb_per_seq) + sent_gb
    device_j = (
        energy.static_w * time_s
        + pool.microbatches * dynamic_energy_j(operators, part, energy)
        + energy.network_j_per_gb * sent_gb
    )
    cluster_j = (
        prices.host_power_share * tdp_w * owned_s
        + energy.idle_w * idle_s
        + JOULE_PER_GB_PJ_BIT * technology.far_pj_per_bit * wire_gb
    )
    usd = usd_per_second * owned_s + usd_per_joule(technology) * (device_j + cluster_j)
    device_executions_per_token = pool.devices * pool.executions_per_token / batch
    return Service(
        devices=pool.devices,
        times=times,
        time_ms=time_ms,
        latency_ms=through_ms + handover_ms,
        handover_ms=handover_ms,
        weights_gb=pool.weights_gb,
        memory_gb=pool.weights_gb + batch * pool.kv_gb_per_seq,
        device_j=device_j,
        cluster_j=cluster_j,
        device_seconds_per_token=device_executions_per_token * time_s,
        usd_per_token=device_executions_per_token * usd,
    )


def serve_pools(
    pools: Pool,
    batches: Array,
    clocks_ghz: Array,
    roofs: Roof,
    design: Design,
    tdp_w: Array,
    technology: Technology,
) -> Service:
    """Serve both pools with one design; everything per pool has a leading axis of two."""
    usd_per_second = yearly_cost(design, tdp_w, technology).usd_per_second

    def one(pool: Pool, batch: Array, clock_ghz: Array, roof: Roof) -> Service:
        return serve(pool, batch, clock_ghz, roof, design, tdp_w, usd_per_second, technology)

    return jax.vmap(one)(pools, batches, clocks_ghz, roofs)


def usd_per_token(services: Service, technology: Technology) -> Array:
    """Cost of an output token over both pools with its share of the design cost, USD."""
    return jnp.sum(services.usd_per_token) + nre_usd_per_token(technology)
