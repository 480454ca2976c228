"""Every limit a design and its deployment must respect: a use, and what is allowed.

One list serves the optimiser (`log(use/limit) <= 0`, convex in log-space) and
the violations that `evaluate` reports.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from .machine.design import Design
from .machine.power import rated_power_w, thermal_limit_w
from .machine.silicon import blocks, edge_available_mm, edge_needed_mm, field_area_mm2
from .machine.technology import Technology
from .numerics import AnyArray
from .serving import Service
from .workload.traffic import NO_LIMIT_MS, Workload


class Limit(NamedTuple):
    """One limit.

    `kind` says what it is about: `machine` (whether it can be built), `rated` (its TDP against its
    phases), `clock`, `domain` (whether its devices can be joined: discrete, so that the search
    enumerates only those that can), or `service` (whether it serves the workload).
    """

    name: str
    unit: str
    kind: str
    meaning: str
    set_by_study: bool = False
    """A choice of the study; the others are physics or market."""


LIMITS = (
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
    Limit("thermal", "W", "machine", "TDP against what the cooler carries off the dies"),
    Limit("package_power", "W", "machine", "TDP against what a package is built for"),
    Limit("clock_prefill", "GHz", "clock", "prefill clock against the design's clock"),
    Limit("clock_decode", "GHz", "clock", "decode clock against the design's clock"),
    Limit("scale_up_domain", "", "domain", "devices of a group against what links and switch join"),
    Limit("memory_prefill", "GB", "service", "weights and KV cache of the prefill pool"),
    Limit("memory_decode", "GB", "service", "weights and KV cache of the decode pool"),
    Limit("ttft", "ms", "service", "time to first token", True),
    Limit("tbt", "ms", "service", "time between tokens", True),
)
"""In the order of the arrays that `uses_and_limits` returns."""

LIMIT_NAMES = tuple(limit.name for limit in LIMITS)


def uses_and_limits(
    design: Design,
    tdp_w: Array,
    clocks_ghz: Array,
    services: Service,
    latency_limits_ms: Array,
    technology: Technology,
    die_area_max_mm2: AnyArray,
) -> tuple[Array, Array]:
    """Use and limit of everything in `LIMITS`: two arrays of shape `(len(LIMITS),)`.

    Clocks, services and latency limits have a leading axis over the pools (prefill, decode).
    Each use is a (generalised) posynomial and each limit a monomial of the design variables.
    """
    process, memory = technology.process, technology.memory
    bf16_phase_w, fp8_phase_w, memory_phase_w = rated_power_w(design, technology)
    usable_gb = technology.execution.memory_usable_share * design.memory_gb
    pairs = {
        "block_area": (blocks(design, technology).total_mm2, design.die_area_mm2),
        "reticle_field": (design.die_area_mm2, field_area_mm2(design.aspect_ratio, technology)),
        "die_area_max": (design.die_area_mm2, die_area_max_mm2),
        "die_edge": (edge_needed_mm(design, technology), edge_available_mm(design, technology)),
        "stack_capacity_max": (design.memory_gb, memory.stack_max_gb * design.memory_stacks),
        "stack_capacity_min": (memory.stack_min_gb * design.memory_stacks, design.memory_gb),
        "clock_max": (design.clock_ghz, process.max_clock_ghz),
        "network_floor": (technology.interconnect.floor_gb_s, design.network_gb_s),
        "rated_bf16_phase": (bf16_phase_w, tdp_w),
        "rated_fp8_phase": (fp8_phase_w, tdp_w),
        "rated_memory_phase": (memory_phase_w, tdp_w),
        "thermal": (tdp_w, thermal_limit_w(design, technology)),
        "package_power": (tdp_w, technology.cooling.limit_package_w),
        "clock_prefill": (clocks_ghz[0], design.clock_ghz),
        "clock_decode": (clocks_ghz[1], design.clock_ghz),
        "scale_up_domain": (jnp.max(services.devices), technology.largest_domain),
        "memory_prefill": (services.memory_gb[0], usable_gb),
        "memory_decode": (services.memory_gb[1], usable_gb),
        "ttft": (services.latency_ms[0], latency_limits_ms[0]),
        "tbt": (services.latency_ms[1], latency_limits_ms[1]),
    }
    uses, limits = zip(*(pairs[name] for name in LIMIT_NAMES), strict=True)
    return jnp.stack(uses), jnp.stack(limits)


def limits_that_apply(workload: Workload, *, has_die_area_max: bool) -> dict[str, bool]:
    """Limits that do not concern every study: name -> whether it does this one."""
    prefill, decode = workload.serves_prefill, workload.serves_decode
    return {
        "die_area_max": has_die_area_max,
        "clock_prefill": prefill,
        "clock_decode": decode,
        "memory_prefill": prefill,
        "memory_decode": decode,
        "ttft": prefill and float(workload.slo.ttft_ms) < NO_LIMIT_MS,
        "tbt": decode and float(workload.slo.tbt_ms) < NO_LIMIT_MS,
    }
