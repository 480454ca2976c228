"""The factors of a point: what belongs to the hardware alone, to a row of a pool, and to a pair.

The functions of the model are called with vectors over hardware points `(hardware,)` and scalars of
the deployment. Operators are taken one by one, so that a compiled program is loops over hardware
points with nothing but arithmetic inside.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from ..execution.phase import operator_energy_j, operator_times
from ..execution.roofline import EuclideanRoof, HardRoof, Roof, SoftRoof
from ..limits import MACHINE_LIMITS, TOLERANCE, machine_uses, usable_memory_gb
from ..machine.cost import bill_of_materials, nre_usd_per_token, yearly_cost
from ..machine.design import Design
from ..machine.power import thermal_design_power_w
from ..machine.technology import Technology
from ..objectives import objectives_of
from ..serving import Busy, Server, batch_times_ms, server, service
from ..study.sweep import DESIGN_AXES
from ..workload.phases import PHASES
from ..workload.pool import Pool
from .grid import TECHNOLOGY
from .problem import Problem, Tables, leaf_names


OF_MACHINE = tuple(limit.name for limit in MACHINE_LIMITS if limit.kind != "domain")
HARDWARE_LIMITS = (*OF_MACHINE, *(f"clock_{phase}" for phase in PHASES))
"""Limits that the hardware point alone decides."""
ROW_LIMITS = {"prefill": ("memory_prefill", "ttft"), "decode": ("memory_decode", "tbt")}
"""Limits that a row of a pool decides with the hardware."""
DOMAIN = "scale_up_domain"


class Hardware(eqx.Module):
    """A hardware point: a design in a technology, and the clocks of its phases."""

    prefill: Server
    decode: Server
    sm_count: Array
    usable_gb: Array
    largest_domain: Array
    nre_usd: Array
    tdp_w: Array
    unit_cost_usd: Array
    within: Array
    """Whether each of `HARDWARE_LIMITS` is respected, `(limits,)`."""


class Row(eqx.Module):
    """A batch of a pool on a hardware point; sums over both pools make a deployment."""

    usd: Array
    """Per output token, as the others."""
    joules: Array
    package_s: Array
    drawn_j: Array
    """Energy that the devices themselves draw."""
    latency_ms: Array
    tokens_per_s: Array
    """Sequences that leave the pool per second: tokens, where it is of decode."""
    within: Array
    """Whether each of its `ROW_LIMITS` is respected, `(limits, ...)`."""


def hardware_at(index: Array, problem: Problem, tables: Tables) -> Hardware:
    """The hardware point with an index; a scalar function in double precision."""
    digits = problem.grid.hardware.digits(index)
    values = problem.grid.hardware.values(index, problem.grid.seed)
    number = digits.get(TECHNOLOGY, jnp.zeros((), index.dtype))
    tree: Technology = jax.tree.map(lambda leaf: leaf[number], tables.technologies)
    for name in leaf_names(problem.sweep):
        table, field = name.split(".")
        tree = replace(tree, **{table: replace(getattr(tree, table), **{field: values[name]})})
    given = {field: values[key] for key, (field, _) in DESIGN_AXES.items() if key in values}
    design = Design(**{**problem.base, **given})
    tdp_w = thermal_design_power_w(design, tree)
    usd_per_second = yearly_cost(design, tdp_w, tree).usd_per_second
    clocks_ghz = [values.get(f"clock_{phase}", design.clock_ghz) for phase in PHASES]
    machine = machine_uses(design, tdp_w, tree, tables.caps)
    pairs = [machine[name] for name in OF_MACHINE] + [(ghz, design.clock_ghz) for ghz in clocks_ghz]
    prefill, decode = (server(design, ghz, tdp_w, usd_per_second, tree) for ghz in clocks_ghz)
    return Hardware(
        prefill=prefill,
        decode=decode,
        sm_count=design.sm_count,
        usable_gb=usable_memory_gb(design, tree),
        largest_domain=tree.largest_domain,
        nre_usd=nre_usd_per_token(tree),
        tdp_w=tdp_w,
        unit_cost_usd=bill_of_materials(design, tree).total_usd,
        within=jnp.stack(
            [
                _within(*pair) | (not problem.applies[name])
                for name, pair in zip(HARDWARE_LIMITS, pairs, strict=True)
            ]
        ),
    )


def _within(use: Array, limit: Array) -> Array:
    """Whether a use is at most its limit; what is not a number is not."""
    return use <= limit * (1.0 + TOLERANCE)


def cast_to(tree: Any, dtype: Any) -> Any:
    """The tree with its numbers in another precision."""

    def convert(leaf: Array) -> Array:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(convert, tree)


def row_of(
    pool: Pool, batch: Array, device: Server, hardware: Hardware, phase: str, problem: Problem
) -> Row:
    """A pool that serves a batch on hardware points `(hardware,)`; pool and batch are scalars."""
    part = batch / pool.microbatches
    roof = _roof(problem, device.execution.overlap_exponent)

    def add(sums: tuple[Array, Array], operator: Any) -> tuple[tuple[Array, Array], None]:
        times = operator_times(operator, part, device.rates, device.execution, device.relative_hop)
        energy_j = operator_energy_j(operator, part, device.energy)
        return (sums[0] + times.total_ms(roof), sums[1] + energy_j), None

    # one after the other: a program with all of them in it takes minutes to compile
    columns = replace(pool.operators, stage=None, stages=None)
    none = jnp.zeros_like(hardware.tdp_w)
    (total_ms, dynamic_j), _ = jax.lax.scan(add, (none, none), columns)
    runs = pool.operators.device_share * pool.operators.repeats
    roof_ms, fill_ms = batch_times_ms(pool, total_ms[None])
    busy = Busy(
        roof_ms=roof_ms,
        fill_ms=fill_ms,
        dynamic_j=dynamic_j,
        wire_gb_per_seq=jnp.sum(runs * pool.operators.wire_gb_per_seq),
    )
    found = service(pool, batch, cast(Any, None), busy, device)
    memory, latency = ROW_LIMITS[phase]
    within = {
        memory: _within(found.memory_gb, hardware.usable_gb),
        latency: _within(found.latency_ms, pool.limit_ms),
    }
    time_s = found.time_ms / 1e3
    return Row(
        usd=found.usd_per_token,
        joules=found.joules_per_token,
        package_s=found.device_seconds_per_token,
        drawn_j=found.device_seconds_per_token * found.device_j / time_s,
        latency_ms=found.latency_ms,
        tokens_per_s=batch / time_s,
        within=jnp.stack([value | (not problem.applies[name]) for name, value in within.items()]),
    )


def _roof(problem: Problem, exponent: Array) -> Roof:
    """The roof of a sweep; the soft one in the precision of its exponent, which its constructor
    would make double.
    """
    if problem.hard:
        return HardRoof()
    if problem.euclidean:
        return EuclideanRoof()
    roof = object.__new__(SoftRoof)
    object.__setattr__(roof, "overlap_exponent", exponent)
    return roof


def metrics_of(prefill: Row, decode: Row, hardware: Hardware) -> dict[str, Array]:
    """`METRICS` of a deployment, elementwise."""
    package_s = prefill.package_s + decode.package_s
    objectives = objectives_of(
        prefill.usd + decode.usd,
        prefill.joules + decode.joules,
        package_s,
        hardware.sm_count,
        hardware.nre_usd,
    )
    return {
        "usd_per_million_tokens": objectives[0],
        "joules_per_token": objectives[1],
        "sm_seconds_per_token": objectives[2],
        "package_seconds_per_token": objectives[3],
        "power_w": (prefill.drawn_j + decode.drawn_j) / package_s,
        "ttft_ms": prefill.latency_ms,
        "tbt_ms": decode.latency_ms,
        "tokens_per_s": decode.tokens_per_s,
        "tdp_w": hardware.tdp_w,
        "unit_cost_usd": hardware.unit_cost_usd,
    }


def value_of(metrics: Mapping[str, Array], objective: Mapping[str, float]) -> Array:
    """What is made small: an objective, or the logarithm of a product of powers of several."""
    if list(objective.values()) == [1.0]:
        return metrics[next(iter(objective))]
    logs = [power * jnp.log(metrics[name]) for name, power in objective.items()]
    return cast(Array, sum(logs))
