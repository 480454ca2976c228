"""Every limit a design and its deployment must respect: a use, and what is allowed.

One list serves the optimiser (`log(use/limit) <= 0`, convex in log-space) and
the violations that `evaluate` reports.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from .machine.cost import bill_of_materials
from .machine.design import Design
from .machine.power import junction_k_per_w, rated_power_w
from .machine.silicon import blocks, edge_available_mm, edge_needed_mm, field_area_mm2
from .machine.technology import Technology
from .numerics import scalar
from .objectives import objective_values
from .serving import Service
from .space import OBJECTIVES
from .workload.phases import PHASES
from .workload.traffic import NO_LIMIT_MS, Workload


class Limit(NamedTuple):
    """One limit.

    `kind` says what it is about: `machine` (whether it can be built), `rated` (its TDP against its
    phases), `clock`, `domain` (whether its devices can be joined: discrete, so that the search
    enumerates only those that can), `service` (whether it serves the workload) or `objective` (held
    while another is searched).
    """

    name: str
    unit: str
    kind: str
    meaning: str
    set_by_study: bool = False
    """A choice of the study; the others are physics or market."""


TOLERANCE = 1e-6
"""Relative excess that is still within a limit: an optimum lies on its limits."""

NO_CAP = 1e30
"""Stands for no limit."""


class Caps(eqx.Module):
    """Limits of the study's own on one design; `NO_CAP` where there is none."""

    die_area_max_mm2: Array = eqx.field(converter=scalar, default=NO_CAP)
    tdp_max_w: Array = eqx.field(converter=scalar, default=NO_CAP)
    """Of a package."""
    unit_cost_max_usd: Array = eqx.field(converter=scalar, default=NO_CAP)
    """Bill of materials of a package."""
    objectives: Array = eqx.field(
        converter=jnp.asarray, default_factory=lambda: jnp.full(len(OBJECTIVES), NO_CAP)
    )
    """Of everything in `OBJECTIVES`."""


MACHINE_LIMITS = (
    Limit("block_area", "mm2", "machine", "blocks of the floorplan against the die area"),
    Limit("reticle_field", "mm2", "machine", "die area against the field at this aspect ratio"),
    Limit("die_area_max", "mm2", "machine", "die area against the study's own limit", True),
    Limit("die_edge", "mm", "machine", "memory, network and die links against the perimeter"),
    Limit("stack_capacity_max", "GB", "machine", "memory against the largest stacks"),
    Limit("stack_capacity_min", "GB", "machine", "the smallest stacks against the memory"),
    Limit("clock_max", "GHz", "machine", "clock against what the process sustains"),
    Limit("network_floor", "GB/s", "machine", "host and KV traffic against the network bandwidth"),
    Limit("rated_bf16_phase", "W", "rated", "power of a compute-heavy bf16 phase against the TDP"),
    Limit("rated_fp8_phase", "W", "rated", "power of a compute-heavy fp8 phase against the TDP"),
    Limit("rated_memory_phase", "W", "rated", "power of a memory-heavy phase against the TDP"),
    Limit("junction_rise", "K", "machine", "junction over coolant at the TDP"),
    Limit("package_power", "W", "machine", "TDP against what a package is built for"),
    Limit("tdp_max", "W", "machine", "TDP against the study's own limit", True),
    Limit("unit_cost_max", "USD", "machine", "bill of materials against the study's limit", True),
    Limit("scale_up_domain", "", "domain", "devices of a group against what links and switch join"),
)

POOL_KINDS = ("clock", "memory")
"""Limits of every pool that a workload has."""


def limits_of(labels: Sequence[str]) -> tuple[Limit, ...]:
    """Every limit of designs that serve several workloads, in the order of `uses_and_limits`.

    **Arguments:**

    - `labels`: of the workloads; the empty one for a single workload.
    """
    pools = [
        (phase, f"[{label}]" if label else "") for label, phase in itertools.product(labels, PHASES)
    ]
    latency = {"prefill": ("ttft", "time to first token"), "decode": ("tbt", "time between tokens")}
    of_pools = [
        *(
            Limit(f"clock_{phase}{of}", "GHz", "clock", f"{phase} clock against the design's clock")
            for phase, of in pools
        ),
        *(
            Limit(
                f"memory_{phase}{of}", "GB", "service", f"weights and KV cache of the {phase} pool"
            )
            for phase, of in pools
        ),
        *(
            Limit(f"{latency[phase][0]}{of}", "ms", "service", latency[phase][1], True)
            for phase, of in pools
        ),
    ]
    held = [
        Limit(f"{name}_max", unit, "objective", f"{name} against the study's own limit", True)
        for name, unit in OBJECTIVES.items()
    ]
    return (*MACHINE_LIMITS, *of_pools, *held)


LIMITS = limits_of(("",))
"""Limits of designs that serve one workload."""

LIMIT_NAMES = tuple(limit.name for limit in LIMITS)


def uses_and_limits(
    design: Design,
    tdp_w: Array,
    clocks_ghz: Array,
    services: Service,
    latency_limits_ms: Array,
    technology: Technology,
    caps: Caps,
) -> tuple[Array, Array]:
    """Use and limit of everything in `limits_of` the workloads: two arrays of one shape.

    Clocks, services and latency limits have a leading axis over the pools (prefill, decode).
    Each use is a (generalised) posynomial and each limit a monomial of the design variables.
    """
    machine = machine_uses(design, tdp_w, technology, caps) | {
        "scale_up_domain": (jnp.max(services.devices), technology.largest_domain)
    }
    usable_gb = usable_memory_gb(design, technology)
    of_pools = [
        (clocks_ghz, design.clock_ghz),
        (services.memory_gb, usable_gb),
        (services.latency_ms, latency_limits_ms),
    ]
    uses = [
        *(machine[limit.name][0][None] for limit in MACHINE_LIMITS),
        *(use for use, _ in of_pools),
        objective_values(services, design, technology),
    ]
    limits = [
        *(jnp.reshape(machine[limit.name][1], (1,)) for limit in MACHINE_LIMITS),
        *(jnp.broadcast_to(limit, use.shape) for use, limit in of_pools),
        caps.objectives,
    ]
    return jnp.concatenate(uses), jnp.concatenate(limits)


def usable_memory_gb(design: Design, technology: Technology) -> Array:
    """Memory for weights and KV cache, GB."""
    return technology.execution.memory_usable_share * design.memory_gb


def machine_uses(
    design: Design, tdp_w: Array, technology: Technology, caps: Caps
) -> dict[str, tuple[Array, Array]]:
    """Use and limit of everything in `MACHINE_LIMITS` that does not depend on the deployment."""
    process, memory, cooling = technology.process, technology.memory, technology.cooling
    bf16_phase_w, fp8_phase_w, memory_phase_w = rated_power_w(design, technology)
    return {
        "block_area": (blocks(design, technology).total_mm2, design.die_area_mm2),
        "reticle_field": (design.die_area_mm2, field_area_mm2(design.aspect_ratio, technology)),
        "die_area_max": (design.die_area_mm2, caps.die_area_max_mm2),
        "die_edge": (edge_needed_mm(design, technology), edge_available_mm(design, technology)),
        "stack_capacity_max": (design.memory_gb, memory.stack_max_gb * design.memory_stacks),
        "stack_capacity_min": (memory.stack_min_gb * design.memory_stacks, design.memory_gb),
        "clock_max": (design.clock_ghz, process.max_clock_ghz),
        "network_floor": (technology.interconnect.floor_gb_s, design.network_gb_s),
        "rated_bf16_phase": (bf16_phase_w, tdp_w),
        "rated_fp8_phase": (fp8_phase_w, tdp_w),
        "rated_memory_phase": (memory_phase_w, tdp_w),
        "junction_rise": (
            tdp_w * junction_k_per_w(design, technology),
            cooling.max_junction_rise_k,
        ),
        "package_power": (tdp_w, cooling.limit_package_w),
        "tdp_max": (tdp_w, caps.tdp_max_w),
        "unit_cost_max": (bill_of_materials(design, technology).total_usd, caps.unit_cost_max_usd),
    }


def limits_that_apply(workloads: Mapping[str, Workload], caps: Caps) -> dict[str, bool]:
    """Limits that do not concern every study: name -> whether it does this one.

    **Arguments:**

    - `workloads`: by label, as in `limits_of`.
    """
    applies = {
        "die_area_max": bool(caps.die_area_max_mm2 < NO_CAP),
        "tdp_max": bool(caps.tdp_max_w < NO_CAP),
        "unit_cost_max": bool(caps.unit_cost_max_usd < NO_CAP),
        **{
            f"{name}_max": bool(cap < NO_CAP)
            for name, cap in zip(OBJECTIVES, caps.objectives, strict=True)
        },
    }
    for label, workload in workloads.items():
        of = f"[{label}]" if label else ""
        for phase, served in zip(PHASES, workload.served, strict=True):
            applies |= {f"{kind}_{phase}{of}": served for kind in POOL_KINDS}
        applies[f"ttft{of}"] = workload.serves_prefill and float(workload.slo.ttft_ms) < NO_LIMIT_MS
        applies[f"tbt{of}"] = workload.serves_decode and float(workload.slo.tbt_ms) < NO_LIMIT_MS
    return applies
