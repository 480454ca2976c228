"""Buildable designs: whole stacks, offered capacities, whole SMs, ports and sequences.

The lattice is searched in stages, best first: whole stacks, then their capacities, then ports, then
the neighbours of everything else. What stays continuous is solved again at each stage, and its
bound holds for every buildable design below it.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from ..catalog import offered_gb
from ..machine.design import Design
from ..machine.silicon import die_link_edge_mm, edge_needed_mm, field_area_mm2
from ..machine.technology import Technology
from ..numerics import AnyArray
from ..space import DESIGN_VARIABLES
from ..study import Study
from .branches import hold, stack, with_aspect
from .ended import Ended, solved
from .groups import Group, study_technologies
from .lanes import put
from .solved import Solved
from .solving import Progress, settle, solve, take


BRANCHES = 12
"""Best branches of a group, by their bounds, whose stacks are enumerated."""
KEPT = 8
"""Items of a group that go on from one stage to the next."""
AREA = DESIGN_VARIABLES.index("die_area_mm2")
AREA_STEP_MM2 = 0.1
"""To which the least die area is found."""
PLACED = 4
"""Items of a group that go on to the last stage."""


Choices = Callable[[Solved], Iterable[dict[str, float]]]
"""Values of variables to hold, each of which makes a new branch."""


@dataclass(frozen=True)
class Built:
    """A buildable design, and what it is certified against."""

    item: Solved
    """Solved with everything whole held; its bound is that of its own stacks and capacity."""
    lattice_bound: float
    """No buildable design of the whole group is below it."""


def search_buildable(
    groups: Sequence[Group], ended: Sequence[Ended], study: Study, progress: Progress
) -> dict[int, Built]:
    """Number of a candidate's group -> its best buildable design, if one was found."""
    technologies = study_technologies(study)
    memory_of = {name: entries["memory"] for name, (entries, _) in technologies.items()}
    chosen = [n for n, group in enumerate(groups) if group.candidate and ended[n].best is not None]
    # bounds of everything that is left out at some stage
    rest = {n: [math.inf] for n in chosen}

    def stage(
        items: Mapping[int, Sequence[Solved]],
        choices: Choices,
        name: str,
        possible: Callable[[Solved], bool] = lambda item: True,
    ) -> dict[int, list[Solved]]:
        """The best of the next stage that are possible; bounds of the others are noted."""
        found = _solve(_holding(items, choices), f"buildable: {name}", progress)
        kept = {}
        for n, of_group in found.items():
            built = [item for item in of_group if math.isfinite(item.value) and possible(item)]
            designs = list(dict.fromkeys(map(_design, built)))[:KEPT]
            kept[n] = [item for item in built if _design(item) in designs]
            rest[n] += [item.bound for item in of_group if item not in kept[n]]
        return kept

    branches = {n: _best_branches(groups[n], ended[n], rest[n]) for n in chosen}
    relaxed = stage(branches, lambda item: [{}], "branches")
    stacks = stage(
        relaxed, _stacks, "stacks", lambda item: _has_room(item, study.space.aspect_ratios)
    )
    for n, items in stacks.items():
        rest[n] += [item.bound for item in _ends(items)]
    memories = stage(
        stacks,
        lambda item: _capacities(item, offered_gb(memory_of[item.choice.technology])),
        "capacity",
    )
    ports = stage(memories, _ports, "ports")
    for n, items in ports.items():
        rest[n] += [item.bound for item in items]
    placed = {
        n: _placeable(_once(items), study.space.aspect_ratios)[:PLACED]
        for n, items in ports.items()
    }
    whole = _solve(_holding(placed, _wholes), "buildable", progress, bound_of_parent=True)
    built = {}
    for n, items in whole.items():
        found = next((item for item in items if _fits(item, item.choice.aspect_ratio)), None)
        if found is not None and math.isfinite(found.value):
            built[n] = Built(found, min(rest[n]))
    return built


def _best_branches(group: Group, end: Ended, rest: list[float]) -> list[Solved]:
    """The best branches of a group by their bounds, each with its point or, where it was ruled out,
    that of the best one; bounds of the others go to the rest.
    """
    points, values = end.at_best_start(end.lanes.x), end.value
    items, designs = [], set()
    for row in np.argsort(end.bound, kind="stable"):
        choice, branch = group.branches[row]
        x = points[row if np.isfinite(values[row]) else end.best]
        item = Solved(choice, branch, group.layout, x, float(values[row]), float(end.bound[row]))
        designs.add(_design(item))
        if len(designs) > BRANCHES:
            rest.append(item.bound)
            break
        items.append(item)
    return items


def _design(item: Solved) -> tuple:
    """What is decided of a design; ranges of batches are not."""
    choice, branch = item.choice, item.branch
    held = np.where(branch.free, 0.0, branch.fixed)
    return choice.pairs, choice.aspect_ratio, choice.dies_per_package, choice.technology, *held


def _once(items: Iterable[Solved]) -> list[Solved]:
    """Every design once, with the least bound of its ranges of batches; in the same order."""
    designs: dict[tuple, Solved] = {}
    for item in items:
        first = designs.setdefault(_design(item), item)
        designs[_design(item)] = replace(first, bound=min(first.bound, item.bound))
    return list(designs.values())


def _ends(items: Sequence[Solved]) -> list[Solved]:
    """The fewest and the most stacks of each branch. The cost is convex in the stacks and least in
    between, so that nothing beyond is below.
    """
    branches = {item.choice: [] for item in items}
    for item in items:
        branches[item.choice].append(item)
    by_stacks = lambda item: item.variables["memory_stacks"]  # noqa: E731 - a key
    return [end(row, key=by_stacks) for row in branches.values() for end in (min, max)]


def _placeable(items: Sequence[Solved], aspect_ratios: Sequence[float]) -> list[Solved]:
    """Those whose pieces fit on the edges of a die, with another outline where need be; then those
    that need a larger die for it, with that as the least.
    """
    fitting, enlarged = [], []
    for item in items:
        own = item.choice.aspect_ratio
        outlines = (own, *(other for other in aspect_ratios if other != own))
        ratio = next((ratio for ratio in outlines if _fits(item, ratio)), None)
        if ratio is not None:
            fitting.append(_with_outline(item, ratio, item.branch.lower))
            continue
        least_mm2 = {ratio: _least_area_mm2(item, ratio) for ratio in outlines}
        ratio = min(least_mm2, key=lambda ratio: least_mm2[ratio])
        if math.isfinite(least_mm2[ratio]):
            lower = np.array(item.branch.lower)
            lower[AREA] = math.log(least_mm2[ratio])
            enlarged.append(_with_outline(item, ratio, lower))
    return fitting + enlarged


def _with_outline(item: Solved, aspect_ratio: float, lower: AnyArray) -> Solved:
    return replace(
        item,
        choice=replace(item.choice, aspect_ratio=aspect_ratio),
        branch=replace(with_aspect(item.branch, aspect_ratio), lower=lower),
    )


def _fits(item: Solved, aspect_ratio: float, **changed: float) -> bool:
    """Whether the pieces of an item fit on a die of an outline, with some values changed."""
    values = item.variables | changed
    design = Design(
        **{name: values[name] for name in DESIGN_VARIABLES},
        aspect_ratio=aspect_ratio,
        dies_per_package=item.choice.dies_per_package,
    )
    return fits_on_edges(design, item.branch.technology)


def _largest_area_mm2(item: Solved, aspect_ratio: float) -> float:
    """The largest die of an outline that an item may have."""
    return min(
        float(np.exp(item.branch.upper[AREA])),
        float(item.branch.caps.die_area_max_mm2),
        float(field_area_mm2(np.asarray(aspect_ratio), item.branch.technology)),
    )


def _least_area_mm2(item: Solved, aspect_ratio: float) -> float:
    """The smallest die of an outline on which the pieces of an item fit; infinite if none is."""
    low, high = item.variables["die_area_mm2"], _largest_area_mm2(item, aspect_ratio)
    if low >= high or not _fits(item, aspect_ratio, die_area_mm2=high):
        return math.inf
    while high - low > AREA_STEP_MM2:
        middle = (low + high) / 2.0
        if _fits(item, aspect_ratio, die_area_mm2=middle):
            high = middle
        else:
            low = middle
    return high


def _has_room(item: Solved, aspect_ratios: Sequence[float]) -> bool:
    """Whether its stacks and the least network fit on the edges of the largest die it may have."""
    floor_gb_s = float(item.branch.technology.interconnect.floor_gb_s)
    return any(
        _fits(
            item,
            ratio,
            die_area_mm2=_largest_area_mm2(item, ratio),
            network_gb_s=floor_gb_s,
        )
        for ratio in aspect_ratios
    )


def _holding(items: Mapping[int, Sequence[Solved]], choices: Choices) -> list[tuple[int, Solved]]:
    """Every item of every group with each of its choices held."""
    return [
        (n, replace(item, branch=hold(item.branch, item.layout, held)))
        for n, of_group in items.items()
        for item in of_group
        for held in choices(item)
    ]


def _solve(
    rows: list[tuple[int, Solved]], stage: str, progress: Progress, *, bound_of_parent: bool = False
) -> dict[int, list[Solved]]:
    """Group -> its rows with their optima, best first. What is proved infeasible is left out; what
    could be neither solved nor proved so has an infinite value, and its bound.
    """
    if not rows:
        return {}
    branches = stack([item.branch for _, item in rows])
    outcome = solve(branches, np.stack([item.x for _, item in rows]), stage, progress)
    # where bounds are not asked for, only a group without any solution needs a second look
    groups = np.array([n for n, _ in rows])
    again = np.flatnonzero(~(bound_of_parent & np.isin(groups, groups[solved(outcome)])))
    if again.size:
        looked = settle(
            take(branches, again), np.arange(len(again)), take(outcome, again), progress
        )
        outcome = jax.tree.map(lambda old, new: put(old, again, new), outcome, looked)
    end = Ended(take(outcome, (slice(None), None)))
    found: dict[int, list[Solved]] = {n: [] for n, _ in rows}
    for (n, item), x, value, bound in zip(rows, outcome.x, end.value, end.bound, strict=True):
        if bound < math.inf:
            bound = item.bound if bound_of_parent else float(bound)
            found[n].append(replace(item, x=np.asarray(x), value=float(value), bound=bound))
    return {n: sorted(items, key=lambda item: item.value) for n, items in found.items()}


def _stacks(item: Solved) -> Iterator[dict[str, float]]:
    """Whole stacks per die: the two numbers on both sides of the relaxed one."""
    dies = item.choice.dies_per_package
    below, *above = _around(item.variables["memory_stacks"], dies)
    for stacks in sorted({below - dies, below, *above, (above or [below])[-1] + dies}):
        if stacks >= dies:
            yield {"memory_stacks": stacks}


def _capacities(item: Solved, offered: Sequence[float]) -> Iterator[dict[str, float]]:
    """Every capacity on offer."""
    stacks = item.variables["memory_stacks"]
    for gb in offered:
        yield {"memory_gb": stacks * gb}


def _ports(item: Solved) -> Iterator[dict[str, float]]:
    """Whole ports on both sides of the relaxed bandwidth."""
    port_gb_s = float(item.branch.technology.interconnect.port_gb_s)
    for gb_s in _around(item.variables["network_gb_s"], port_gb_s):
        yield {"network_gb_s": gb_s}


def _wholes(relaxed: Solved) -> Iterator[dict[str, float]]:
    """Whole SMs per die and sequences next to the relaxed values."""
    steps = {"sm_count": float(relaxed.choice.dies_per_package)} | {
        name: 1.0 for name in relaxed.layout.variables if name.startswith("batch_")
    }
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
