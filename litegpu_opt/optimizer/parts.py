"""One pool at a time: bounds on designs that serve all of them.

No design serves several pools for less than the sum of what each would cost on a design of its own:

    min_x sum_p f_p(x) >= sum_p min_x f_p(x)

A part has fewer discrete choices than the whole, seven degrees of parallelism instead of 7 x 7, and
rules most combinations out. The same parts are the best designs for one phase alone.
"""

from collections.abc import Mapping
from dataclasses import replace

import equinox as eqx
import numpy as np

from ..machine.cost import nre_usd_per_token
from ..machine.technology import Technology
from ..numerics import TINY, AnyArray
from ..objectives import TOKENS_PER_MILLION
from ..workload.phases import PHASES
from ..workload.pool import Pool
from ..workload.traffic import NO_LIMIT_MS
from .branches import Choice, Task
from .experts import Range
from .groups import Group
from .problem import Branch


Part = tuple[int, int, Range, float, int, str]
"""Pool, its tensor-parallel degree and range of batches, aspect ratio, dies per package and
technology."""

ADDITIVE = 1.0
"""Exponent of the one objective whose value is a sum over the pools."""


def splits(task: Task) -> bool:
    """Whether bounds of the parts add up, and say something that the whole does not."""
    served = sum(sum(workload.served) for workload in task.workloads.values())
    return served > 1 and list(task.objective.values()) == [ADDITIVE]


def parts_of(choice: Choice, task: Task) -> list[Part]:
    """The parts of a branch, one for each pool that is served."""
    degrees = [degree for pair in choice.pairs for degree in pair]
    served = [phase for workload in task.workloads.values() for phase in workload.served]
    own = choice.aspect_ratio, choice.dies_per_package, choice.technology
    return [
        (pool, degree, batches, *own)
        for pool, (degree, batches, is_served) in enumerate(
            zip(degrees, choice.ranges, served, strict=True)
        )
        if is_served
    ]


def part_branches(group: Group) -> dict[Part, Branch]:
    """The problem of every part: one pool served, the others idle, no cost of design."""
    whole: dict[Part, list[Branch]] = {}
    for choice, branch in group.branches:
        for part in parts_of(choice, group.task):
            whole.setdefault(part, []).append(branch)
    # made once and shared, so that `stack` recognises them
    technologies = {name: _without_nre(tree) for name, tree in _technologies(group).items()}
    pools: dict[tuple[int, int], Pool] = {}
    parts = {}
    for part, branches in whole.items():
        kept, degree, *_, technology = part
        if (kept, degree) not in pools:
            pools[kept, degree] = _alone([branch.pools for branch in branches], kept)
        idle_variables, idle_limits = _of_other_pools(group, kept)
        branch = branches[0]
        parts[part] = replace(
            branch,
            technology=technologies[technology],
            pools=pools[kept, degree],
            applies=branch.applies & ~idle_limits,
            free=branch.free & ~idle_variables,
            fixed=np.where(idle_variables, 0.0, branch.fixed),
            lower=np.where(idle_variables, -1.0, branch.lower),
            upper=np.where(idle_variables, 1.0, branch.upper),
        )
    return parts


def whole_bounds(group: Group, bounds: Mapping[Part, float]) -> np.ndarray:
    """Lower bound of every branch of a group from those of its parts, in logarithms, `(branches,)`.

    A part that is proved infeasible has an infinite bound, and so has every branch with it.
    """
    design = design_costs(group)
    # a part without a bound adds nothing; one far from feasible may be more than a number holds
    with np.errstate(divide="ignore", over="ignore"):
        sums = [
            sum(np.exp(bounds[part]) for part in parts_of(choice, group.task))
            + design[choice.technology]
            for choice, _ in group.branches
        ]
        return np.log(sums)


def design_costs(group: Group) -> dict[str, float]:
    """Name of each technology -> what a design adds to the objective, which no part has."""
    counts = "usd_per_million_tokens" in group.task.objective
    return {
        name: counts * TOKENS_PER_MILLION * float(nre_usd_per_token(technology))
        for name, technology in _technologies(group).items()
    }


def _technologies(group: Group) -> dict[str, Technology]:
    return {choice.technology: branch.technology for choice, branch in group.branches}


def _without_nre(technology: Technology) -> Technology:
    return eqx.tree_at(lambda t: t.prices.nre_charged, technology, np.zeros(()))


def _alone(pools: list[Pool], kept: int) -> Pool:
    """Pools of which one is served. What it hands over depends on the pool that receives; the least
    of all receivers belongs to the part.
    """
    pool = pools[0]
    others = np.arange(len(pool.devices)) != kept

    def idle(leaf: AnyArray, value: float) -> np.ndarray:
        return np.where(others, value, leaf)

    sent, handed_over = (
        np.min([getattr(row, name) for row in pools], axis=0)
        for name in ("sent_gb_per_seq", "handover_gb_per_seq")
    )
    return eqx.tree_at(
        lambda p: [
            p.executions_per_token,
            p.weights_gb,
            p.kv_gb_per_seq,
            p.sent_gb_per_seq,
            p.handover_gb_per_seq,
            p.limit_ms,
        ],
        pool,
        [
            idle(pool.executions_per_token, 0.0),
            idle(pool.weights_gb, TINY),
            idle(pool.kv_gb_per_seq, TINY),
            idle(sent, 0.0),
            idle(handed_over, 0.0),
            idle(pool.limit_ms, NO_LIMIT_MS),
        ],
    )


def _of_other_pools(group: Group, kept: int) -> tuple[np.ndarray, np.ndarray]:
    """Which variables and which limits belong to the pools that a part leaves out."""
    layout = group.layout
    pools = [(label, phase) for label in layout.labels for phase in PHASES]
    others = [pool for number, pool in enumerate(pools) if number != kept]
    variables = {name for label, phase in others for name in layout.pool_variables(phase, label)}
    limits = {name for label, phase in others for name in layout.pool_limits(phase, label)}
    return (
        np.array([name in variables for name in layout.variables]),
        np.array([name in limits for name in layout.limit_names]),
    )
