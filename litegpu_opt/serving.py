"""A design serving a workload: the model that both `evaluate` and the optimiser call.

Pure and scalar: one design, one technology, one pool at a time. All outputs are
log-log convex in the design, the batch and the clocks (for a soft roof).
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from .execution.phase import MS_PER_S, OperatorTimes, dynamic_energy_j, operator_times
from .execution.roofline import Roof, q_norm
from .machine.cost import usd_per_joule, yearly_cost
from .machine.design import Design
from .machine.power import JOULE_PER_GB_PJ_BIT, EnergyCosts, energy_costs
from .machine.rates import Rates, peak_rates
from .machine.technology import Execution, Technology
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
    """What the user waits: the phase, the hand-over of its KV cache, and before the first token
    the server."""
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
    joules_per_token: Array
    """Energy of this pool per output token at the wall of the IT equipment."""
    usd_per_token: Array
    """Cost of this pool per output token, without NRE."""


def batch_times_ms(pool: Pool, operator_ms: Array) -> tuple[Array, Array]:
    """How long a batch keeps the devices, and how much longer until it is through, ms.

    A batch goes through pp stages in m microbatches. With t_s the time of a microbatch in stage s,
    prefill keeps the devices for m max(t), since another batch can follow at once, and is through
    after sum(t) + (m - 1) max(t). A decode step needs the last one of the same sequences:
    max(sum(t), m max(t)) for both; with fewer microbatches than stages, some stages wait.

    **Arguments:**

    - `operator_ms`: time of every operator in one execution of its stage, `(ops, ...)`.
    """
    operators, m = pool.operators, pool.microbatches
    if operators.stage.shape[0] == 1:
        whole = jnp.sum(operator_ms, axis=0)
        return m * whole, jnp.zeros_like(whole)
    stage_ms = operators.stage @ operator_ms
    slowest, whole = jnp.max(stage_ms), jnp.sum(operators.stages * stage_ms)
    step = jnp.maximum(whole, m * slowest)
    again = pool.waits_for_itself
    return (
        again * step + (1.0 - again) * m * slowest,
        (1.0 - again) * (whole - slowest),
    )


POWER_SHARPNESS = 64.0
"""Exponent of the norm that joins the power roof to the others: 1.1 % where both are equal, 1e-8 of
the time at 80 % of the TDP."""

MOST_STATIC_SHARE = 0.95
"""Share of the TDP above which static power counts by its tangent: the time stays finite."""


def power_for_work_w(static_w: Array, tdp_w: Array) -> Array:
    """Power that a device within its TDP has left for work, `TDP - S`, W.

    With u = S/TDP it is `TDP (1 - u)`, and `-log(1 - u)` is convex in log u. Static power that
    leaves nothing is what the rated power of any design rules out.
    """
    log_share = jnp.log(static_w / tdp_w)
    inside = jnp.minimum(log_share, math.log(MOST_STATIC_SHARE))
    slope = MOST_STATIC_SHARE / (1.0 - MOST_STATIC_SHARE)
    log_headroom = jnp.log(-jnp.expm1(inside)) - slope * (log_share - inside)
    return tdp_w * jnp.exp(log_headroom)


def capped_time_ms(
    roof_ms: Array, dynamic_j: Array, static_w: Array, tdp_w: Array, capped: Array
) -> Array:
    """Time of a phase whose power is capped: one more roof, `max(t, E/(TDP - S))`, as a norm.

    `capped` = 0 switches it off.
    """
    return _capped_time_ms(roof_ms, dynamic_j, power_for_work_w(static_w, tdp_w), capped)


def _capped_time_ms(roof_ms: Array, dynamic_j: Array, for_work_w: Array, capped: Array) -> Array:
    return q_norm(roof_ms, capped * MS_PER_S * dynamic_j / for_work_w, POWER_SHARPNESS)


class Server(eqx.Module):
    """A device of a design at one clock: all that serving needs to know of it, whatever it runs."""

    rates: Rates
    energy: EnergyCosts
    execution: Execution
    relative_hop: Array
    for_work_w: Array
    """Power that its TDP leaves for work."""
    host_w: Array
    """Of the host, while a device is owned."""
    far_j_per_gb: Array
    """Energy of a byte beyond the device: the other end of its link, and the switch."""
    load_factor: Array
    usd_per_second: Array
    usd_per_joule: Array


def server(
    design: Design, clock_ghz: Array, tdp_w: Array, usd_per_second: Array, technology: Technology
) -> Server:
    """What serving needs to know of a design at a clock; depends on nothing that is served."""
    energy = energy_costs(design, clock_ghz, technology)
    return Server(
        rates=peak_rates(design, clock_ghz, technology),
        energy=energy,
        execution=technology.execution,
        relative_hop=technology.relative_hop,
        for_work_w=power_for_work_w(energy.static_w, tdp_w),
        host_w=technology.prices.host_power_share * tdp_w,
        far_j_per_gb=JOULE_PER_GB_PJ_BIT * technology.far_pj_per_bit,
        load_factor=technology.prices.load_factor,
        usd_per_second=usd_per_second,
        usd_per_joule=usd_per_joule(technology),
    )


class Busy(eqx.Module):
    """What the operators of a phase take together: sums over the operator axis."""

    roof_ms: Array
    """How long a batch keeps the devices before the power cap."""
    fill_ms: Array
    """How much longer until it is through."""
    dynamic_j: Array
    """Energy of one microbatch on one device."""
    wire_gb_per_seq: Array


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
    device = server(design, clock_ghz, tdp_w, usd_per_second, technology)
    operators, part = pool.operators, batch / pool.microbatches
    times = operator_times(operators, part, device.rates, device.execution, device.relative_hop)
    roof_ms, fill_ms = batch_times_ms(pool, times.total_ms(roof))
    runs = operators.device_share * operators.repeats
    busy = Busy(
        roof_ms=roof_ms,
        fill_ms=fill_ms,
        dynamic_j=dynamic_energy_j(operators, part, device.energy),
        wire_gb_per_seq=jnp.sum(runs * operators.wire_gb_per_seq),
    )
    return service(pool, batch, times, busy, device)


def service(pool: Pool, batch: Array, times: OperatorTimes, busy: Busy, device: Server) -> Service:
    """Latency, memory, energy and cost of a pool whose operators have been summed."""
    energy, execution = device.energy, device.execution
    handover_ms = MS_PER_S * (
        batch
        * pool.handover_gb_per_seq
        / (execution.network_efficiency * device.rates.network_gb_s)
    )
    request_ms = (1.0 - pool.waits_for_itself) * execution.request_ms
    sent_gb = batch * pool.sent_gb_per_seq
    wire_gb = batch * busy.wire_gb_per_seq + sent_gb
    dynamic_j = pool.microbatches * busy.dynamic_j + energy.network_j_per_gb * sent_gb
    time_ms = _capped_time_ms(busy.roof_ms, dynamic_j, device.for_work_w, execution.power_capped)
    time_s = time_ms / MS_PER_S

    # a device at load u is owned for 1/u of its busy time, idle in the rest
    owned_s = time_s / device.load_factor
    idle_s = time_s * (1.0 / device.load_factor - 1.0)
    device_j = energy.static_w * time_s + dynamic_j
    cluster_j = device.host_w * owned_s + energy.idle_w * idle_s + device.far_j_per_gb * wire_gb
    usd = device.usd_per_second * owned_s + device.usd_per_joule * (device_j + cluster_j)
    device_executions_per_token = pool.devices * pool.executions_per_token / batch
    return Service(
        devices=pool.devices,
        times=times,
        time_ms=time_ms,
        latency_ms=time_ms + busy.fill_ms + handover_ms + request_ms,
        handover_ms=handover_ms,
        weights_gb=pool.weights_gb,
        memory_gb=pool.weights_gb + batch * pool.kv_gb_per_seq,
        device_j=device_j,
        cluster_j=cluster_j,
        device_seconds_per_token=device_executions_per_token * time_s,
        joules_per_token=device_executions_per_token * (device_j + cluster_j),
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
    """Serve all pools with one design; everything per pool has a leading axis over them."""
    usd_per_second = yearly_cost(design, tdp_w, technology).usd_per_second

    def one(pool: Pool, batch: Array, clock_ghz: Array, roof: Roof) -> Service:
        return serve(pool, batch, clock_ghz, roof, design, tdp_w, usd_per_second, technology)

    return jax.vmap(one)(pools, batches, clocks_ghz, roofs)
