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


class Limit(NamedTuple):
    """What a limit is called, its unit, and whether it concerns the machine or its service."""

    name: str
    unit: str
    of_machine: bool
    meaning: str


LIMITS = (
    Limit("block_area", "mm2", True, "blocks of the floorplan against the die area"),
    Limit("reticle_field", "mm2", True, "die area against the field at this aspect ratio"),
    Limit("die_area_max", "mm2", True, "die area against the study's own limit"),
    Limit("die_edge", "mm", True, "memory, network and die links against the usable perimeter"),
    Limit("stack_capacity_max", "GB", True, "memory against the largest stacks"),
    Limit("stack_capacity_min", "GB", True, "the smallest stacks against the memory"),
    Limit("clock_max", "GHz", True, "clock against what the process sustains"),
    Limit("network_floor", "GB/s", True, "host and KV traffic against the network bandwidth"),
    Limit("rated_compute_phase", "W", True, "power of a compute-heavy phase against the TDP"),
    Limit("rated_memory_phase", "W", True, "power of a memory-heavy phase against the TDP"),
    Limit("thermal", "W", True, "TDP against what the cooler carries off the dies"),
    Limit("package_power", "W", True, "TDP against what a package is built for"),
    Limit("clock_prefill", "GHz", False, "prefill clock against the design's clock"),
    Limit("clock_decode", "GHz", False, "decode clock against the design's clock"),
    Limit("memory_prefill", "GB", False, "weights and KV cache of the prefill pool"),
    Limit("memory_decode", "GB", False, "weights and KV cache of the decode pool"),
    Limit("ttft", "ms", False, "time to first token"),
    Limit("tbt", "ms", False, "time between tokens"),
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
    compute_phase_w, memory_phase_w = rated_power_w(design, technology)
    usable_gb = technology.execution.memory_usable_share * design.memory_gb
    pairs = (
        (blocks(design, technology).total_mm2, design.die_area_mm2),
        (design.die_area_mm2, field_area_mm2(design.aspect_ratio, technology)),
        (design.die_area_mm2, die_area_max_mm2),
        (edge_needed_mm(design, technology), edge_available_mm(design, technology)),
        (design.memory_gb, memory.stack_max_gb * design.memory_stacks),
        (memory.stack_min_gb * design.memory_stacks, design.memory_gb),
        (design.clock_ghz, process.max_clock_ghz),
        (technology.interconnect.floor_gb_s, design.network_gb_s),
        (compute_phase_w, tdp_w),
        (memory_phase_w, tdp_w),
        (tdp_w, thermal_limit_w(design, technology)),
        (tdp_w, technology.cooling.limit_package_w),
        (clocks_ghz[0], design.clock_ghz),
        (clocks_ghz[1], design.clock_ghz),
        (services.memory_gb[0], usable_gb),
        (services.memory_gb[1], usable_gb),
        (services.latency_ms[0], latency_limits_ms[0]),
        (services.latency_ms[1], latency_limits_ms[1]),
    )
    uses, limits = zip(*pairs, strict=True)
    return jnp.stack(uses), jnp.stack(limits)
