"""A design for each phase: what two chips, one for prefill and one for decode, would save.

Without a common design the problem falls into its parts, which are solved already: the cost is the
sum of both, each with a design cost of its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..workload.phases import PHASES
from .branches import Choice, stack
from .ended import solved
from .groups import Group
from .parts import Part, design_costs, part_branches, parts_of
from .problem import Branch
from .search import Parts
from .solved import Solved
from .solving import Progress, solve


@dataclass(frozen=True)
class Specialised:
    """The best pair of designs, one for each phase."""

    designs: tuple[Solved, Solved]
    """Of prefill and decode."""
    value: float
    """Objective of both together, in its own unit."""
    lower_bound: float
    """No pair of designs is below it."""


def search_specialised(
    groups: Sequence[Group], parts: Parts, progress: Progress
) -> dict[int, Specialised]:
    """Number of a candidate's group -> its best pair of designs, where one workload has both phases
    and the objective is a sum over them.
    """
    values, bounds = parts.by_group(parts.end.value), parts.by_group(parts.end.bound)
    pairs: dict[int, list[Solved]] = {}
    for n, group in enumerate(groups):
        one_workload = len(group.task.workloads) == 1
        if group.candidate is not None and one_workload and values[n]:
            best = [_least(values[n], pool) for pool in range(len(PHASES))]
            if all(math.isfinite(values[n][part]) for part in best):
                pairs[n] = _problems(group, parts.of_groups[n], *best)
    rows = [item for pair in pairs.values() for item in pair]
    if not rows:
        return {}
    branches = stack([item.branch for item in rows])
    outcome = solve(branches, branches.middle, "specialised", progress)
    found = {}
    for (n, pair), first in zip(pairs.items(), range(0, len(rows), 2), strict=True):
        if solved(outcome)[first : first + 2].all():
            prefill, decode = (
                replace(item, x=np.asarray(outcome.x)[row], value=float(outcome.value[row]))
                for row, item in enumerate(pair, first)
            )
            lowest = [bounds[n][_least(bounds[n], pool)] for pool in range(len(PHASES))]
            design = design_costs(groups[n])
            design_cost = sum(design[item.choice.technology] for item in (prefill, decode))
            found[n] = Specialised(
                designs=(prefill, decode),
                value=math.exp(prefill.value) + math.exp(decode.value) + design_cost,
                lower_bound=sum(map(math.exp, lowest)) + design_cost,
            )
    return found


def _least(values: Mapping[Part, float], pool: int) -> Part:
    return min((part for part in values if part[0] == pool), key=lambda part: values[part])


def _problems(
    group: Group, parts: Mapping[Part, Branch], prefill: Part, decode: Part
) -> list[Solved]:
    """The two problems: what prefill hands over is what this decode pool takes."""
    degrees = ((prefill[1], decode[1]),)
    receiving = replace(
        group,
        branches=[
            (choice, branch)
            for choice, branch in group.branches
            if choice.pairs == degrees and prefill in parts_of(choice, group.task)
        ],
    )
    branches = part_branches(receiving)[prefill], parts[decode]
    return [
        Solved(
            choice=Choice(degrees, *part[3:], ranges=(prefill[2], decode[2])),
            branch=branch,
            layout=group.layout,
            x=np.asarray(branch.lower),
            value=math.inf,
            bound=-math.inf,
        )
        for part, branch in zip((prefill, decode), branches, strict=True)
    ]
