"""Buildable designs: whole stacks, offered capacities, whole SMs, ports and sequences.

The neighbours of a relaxed optimum are enumerated in two stages (memory first,
then the rest), and what stays continuous is solved again for each. Issue 5
replaces this by an exact search.
"""

import itertools
import math
from collections.abc import Iterator, Mapping

from ..machine.design import Design
from ..machine.technology import Technology
from .problem import PHYSICAL


def memory_choices(
    relaxed: Mapping[str, float], dies: int, offered_gb: tuple[float, ...]
) -> Iterator[dict[str, float]]:
    """Whole stacks per die next to the relaxed number, with every capacity on offer."""
    for stacks in _around(relaxed["memory_stacks"], dies):
        for gb in offered_gb:
            yield {"memory_stacks": stacks, "memory_gb": stacks * gb}


def whole_choices(
    relaxed: Mapping[str, float], dies: int, port_gb_s: float, idle: frozenset[str]
) -> Iterator[dict[str, float]]:
    """Whole SMs per die, network ports and sequences next to the relaxed values."""
    steps = {
        "sm_count": float(dies),
        "network_gb_s": port_gb_s * dies,
        "batch_prefill": 1.0,
        "batch_decode": 1.0,
    }
    axes = {
        name: _around(relaxed[name], step) for name, step in steps.items() if name not in idle
    }
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _around(value: float, step: float) -> tuple[float, ...]:
    """Multiples of a step on both sides of a value; one where it is a multiple already."""
    below = max(1.0, math.floor(value / step + 1e-6))
    above = max(1.0, math.ceil(value / step - 1e-6))
    return tuple(step * count for count in sorted({below, above}))


def fits_on_edges(design: Design, technology: Technology) -> bool:
    """Whether whole memory sites and ports can be placed on the four sides of a die.

    First fit of pieces by decreasing width: sufficient, not necessary.
    """
    from ..machine.silicon import die_link_edge_mm

    root = math.sqrt(float(design.die_area_mm2))
    ratio = math.sqrt(float(design.aspect_ratio))
    share = float(technology.process.usable_edge_share)
    room = [share * root * ratio] * 2 + [share * root / ratio] * 2
    dies = float(design.dies_per_package)
    memory, link = technology.memory, technology.interconnect
    sites = math.ceil(float(memory.sites_per_stack) * float(design.memory_stacks) / dies - 1e-9)
    ports = math.ceil(float(design.network_gb_s) / dies / float(link.port_gb_s) - 1e-9)
    pieces = [float(memory.edge_mm_per_stack)] * sites
    pieces += [float(link.port_gb_s) / float(link.edge_gb_s_per_mm)] * ports
    pieces += [float(technology.process.fixed_edge_mm)]
    pieces += [float(die_link_edge_mm(design, technology))]
    for piece in sorted(pieces, reverse=True):
        room.sort()
        side = next((i for i, free in enumerate(room) if free >= piece - 1e-9), None)
        if side is None:
            return False
        room[side] -= piece
    return True
