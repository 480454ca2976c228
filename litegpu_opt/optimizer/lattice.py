"""Buildable designs: whole stacks, offered capacities, whole SMs, ports and sequences.

The neighbours of a relaxed optimum are enumerated in two stages (memory first,
then the rest); what stays continuous is solved again for each.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..catalog import offered_gb
from ..machine.design import Design
from ..machine.silicon import die_link_edge_mm, edge_needed_mm, field_area_mm2
from ..machine.technology import Technology
from ..space import DESIGN_VARIABLES
from ..study import Study
from .branches import Choice, hold, stack, with_aspect
from .ended import Ended, solved
from .groups import Group, study_technologies
from .layout import Layout
from .problem import Branch
from .solving import Progress, solve


BRANCHES = 4
"""Best branches of a group whose neighbours are searched."""
MEMORIES = 4
"""Memory choices of a group that go on to the second stage."""


@dataclass(frozen=True)
class Solved:
    """A branch with its optimum: logarithms of the variables, and of the objective."""

    choice: Choice
    layout: Layout
    branch: Branch
    x: np.ndarray
    value: float

    @property
    def variables(self) -> dict[str, float]:
        """Variable -> value in its own unit; held ones without the rounding of their logarithm."""
        searched, held = np.exp(self.x), np.exp(self.branch.fixed)
        return {
            name: float(searched[i]) if self.branch.free[i] else float(f"{held[i]:.12g}")
            for i, name in enumerate(self.layout.variables)
        }


def search_buildable(
    groups: Sequence[Group], ended: Sequence[Ended], study: Study, progress: Progress
) -> dict[int, Solved]:
    """Number of a candidate's group -> its best buildable design, if a neighbour is one."""
    technologies = study_technologies(study)
    memory_of = {name: entries["memory"] for name, (entries, _) in technologies.items()}
    memories: list[tuple[int, Solved]] = []
    for n, (group, end) in enumerate(zip(groups, ended, strict=True)):
        if group.candidate is None or end.best is None:
            continue
        points, values = end.at_best_start(end.lanes.x), end.value
        for row in np.argsort(values)[:BRANCHES]:
            if np.isfinite(values[row]):
                choice, branch = group.branches[row]
                relaxed = Solved(choice, group.layout, branch, points[row], float(values[row]))
                offered = offered_gb(memory_of[choice.technology])
                memories += [(n, held) for held in _holding(relaxed, _memories(relaxed, offered))]
    neighbours: list[tuple[int, Solved]] = []
    for n, items in _by_group(_solve(memories, "buildable memory", progress)).items():
        placed = (_placed(item, study.space.aspect_ratios) for item in items)
        for item in itertools.islice(filter(None, placed), MEMORIES):
            neighbours += [(n, held) for held in _holding(item, _wholes(item))]
    built = {}
    for n, items in _by_group(_solve(neighbours, "buildable", progress)).items():
        placed = (_placed(item, [item.choice.aspect_ratio]) for item in items)
        found = next(filter(None, placed), None)
        if found is not None:
            built[n] = found
    return built


def _placed(item: Solved, aspect_ratios: Sequence[float]) -> Solved | None:
    """The item with the first outline on whose edges its whole pieces fit, its own first."""
    own = item.choice.aspect_ratio
    for ratio in (own, *(other for other in aspect_ratios if other != own)):
        variables = item.variables
        design = Design(
            **{name: variables[name] for name in DESIGN_VARIABLES},
            aspect_ratio=ratio,
            dies_per_package=item.choice.dies_per_package,
        )
        if fits_on_edges(design, item.branch.technology):
            choice = replace(item.choice, aspect_ratio=ratio)
            return replace(item, choice=choice, branch=with_aspect(item.branch, ratio))
    return None


def _holding(relaxed: Solved, choices: Iterator[dict[str, float]]) -> list[Solved]:
    return [
        replace(relaxed, branch=hold(relaxed.branch, relaxed.layout, held), value=math.inf)
        for held in choices
    ]


def _solve(
    rows: list[tuple[int, Solved]], stage: str, progress: Progress
) -> list[tuple[int, Solved]]:
    """The rows with their optima, infeasible ones left out."""
    if not rows:
        return []
    outcome = solve(
        stack([item.branch for _, item in rows]),
        np.stack([item.x for _, item in rows]),
        stage,
        progress,
    )
    return [
        (n, replace(item, x=np.asarray(outcome.x[row]), value=float(outcome.value[row])))
        for (row, (n, item)), good in zip(enumerate(rows), solved(outcome), strict=True)
        if good
    ]


def _by_group(rows: list[tuple[int, Solved]]) -> dict[int, list[Solved]]:
    """Group -> its rows, best first."""
    ordered = sorted(rows, key=lambda row: row[1].value)
    return {n: [item for m, item in ordered if m == n] for n in sorted({n for n, _ in rows})}


def _memories(relaxed: Solved, offered: Sequence[float]) -> Iterator[dict[str, float]]:
    """Whole stacks per die next to the relaxed number, with every capacity on offer."""
    for stacks in _around(relaxed.variables["memory_stacks"], relaxed.choice.dies_per_package):
        for gb in offered:
            yield {"memory_stacks": stacks, "memory_gb": stacks * gb}


def _wholes(relaxed: Solved) -> Iterator[dict[str, float]]:
    """Whole SMs per die, network ports and sequences next to the relaxed values."""
    steps = {
        "sm_count": float(relaxed.choice.dies_per_package),
        "network_gb_s": float(relaxed.branch.technology.interconnect.port_gb_s),
    } | {name: 1.0 for name in relaxed.layout.variables if name.startswith("batch_")}
    values, free = relaxed.variables, np.asarray(relaxed.branch.free)
    axes = {
        name: _around(values[name], steps[name])
        for name, searched in zip(relaxed.layout.variables, free, strict=True)
        if searched and name in steps
    }
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _around(value: float, step: float) -> tuple[float, ...]:
    """Multiples of a step on both sides of a value; one where it is a multiple already."""
    below = max(1, math.floor(value / step + 1e-6))
    above = max(1, math.ceil(value / step - 1e-6))
    return tuple(step * count for count in sorted({below, above}))


def fits_on_edges(design: Design, technology: Technology) -> bool:
    """Whether the die is inside the reticle field, and its whole memory sites, ports and fixed
    interfaces can be placed on its sides.

    First fit of pieces by decreasing width: sufficient, not necessary.
    """
    field_mm2 = float(field_area_mm2(design.aspect_ratio, technology))
    if float(design.die_area_mm2) > field_mm2 * (1.0 + 1e-6):
        return False
    dies = float(design.dies_per_package)
    side_mm = math.sqrt(float(design.die_area_mm2))
    stretch = math.sqrt(float(design.aspect_ratio))
    usable = float(technology.process.usable_edge_share)
    room_mm = [usable * side_mm * stretch] * 2 + [usable * side_mm / stretch] * 2
    if float(edge_needed_mm(design, technology)) > sum(room_mm) + 1e-6:
        return False
    for width_mm in sorted(_pieces_mm(design, technology, dies), reverse=True):
        room_mm.sort()
        side = next((i for i, free in enumerate(room_mm) if free >= width_mm - 1e-9), None)
        if side is None:
            return False
        room_mm[side] -= width_mm
    return True


def _pieces_mm(design: Design, technology: Technology, dies: float) -> list[float]:
    memory, link = technology.memory, technology.interconnect
    sites = math.ceil(float(memory.sites_per_stack) * float(design.memory_stacks) / dies - 1e-6)
    ports = math.ceil(float(design.network_gb_s) / dies / float(link.port_gb_s) - 1e-6)
    return [
        *[float(memory.edge_mm_per_stack)] * sites,
        *[float(link.port_gb_s) / float(link.edge_gb_s_per_mm)] * ports,
        float(technology.process.fixed_edge_mm),
        float(die_link_edge_mm(design, technology)),
    ]
