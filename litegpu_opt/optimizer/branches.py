"""Branches: every combination of the discrete choices, each a convex problem of its own."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..limits import Caps, limits_that_apply
from ..machine.design import Design
from ..machine.silicon import field_area_mm2
from ..machine.technology import Technology
from ..numerics import stack_padded
from ..space import DESIGN_VARIABLES
from ..workload.counts import with_idle_experts
from ..workload.parallelism import Parallelism, tensor_parallel_degrees
from ..workload.phases import PHASES
from ..workload.pool import Pool, decode_pool, handed_over_gb, prefill_pool
from ..workload.traffic import Workload
from .experts import Range, ranges_of, within
from .layout import Layout
from .problem import Branch


Pairs = tuple[tuple[int, int], ...]
"""Tensor-parallel degrees (prefill, decode) for each workload."""


@dataclass(frozen=True)
class Choice:
    """The discrete choices of a branch."""

    pairs: Pairs
    aspect_ratio: float
    dies_per_package: int
    technology: str
    """Name of the combination of technologies."""
    ranges: tuple[Range, ...]
    """Batches of every pool, between which its experts are bounded (`experts`); all, without."""
    split: tuple[int, ...] = ()
    """Which part of these ranges, where they were divided."""


@dataclass(frozen=True)
class Task:
    """What a design has to serve, and what is to be made small."""

    workloads: Mapping[str, Workload]
    """By label, as in `Layout.labels`."""
    objective: Mapping[str, float]
    """Exponents of `OBJECTIVES`."""

    @property
    def layout(self) -> Layout:
        """Names along the vectors."""
        return Layout(tuple(self.workloads))

    @property
    def idle_variables(self) -> set[str]:
        """Variables of phases that a workload does not have."""
        return {
            name
            for label, workload in self.workloads.items()
            for phase, served in zip(PHASES, workload.served, strict=True)
            if not served
            for name in self.layout.pool_variables(phase, label)
        }


def parallel_pairs(workload: Workload, limit: int) -> list[tuple[int, int]]:
    """Tensor-parallel degrees (prefill, decode) that divide the model, up to a limit.

    A phase that the workload does not have gets one device.
    """
    degrees = tensor_parallel_degrees(workload.transformer, limit)
    prefill = degrees if workload.serves_prefill else (1,)
    decode = degrees if workload.serves_decode else (1,)
    return list(itertools.product(prefill, decode))


def stacked_pools(
    workload: Workload, pairs: Iterable[tuple[int, int]], *, experts: bool = False
) -> dict[Pairs, Pool]:
    """Pools of every pair of degrees as NumPy arrays, each with its leading axis (prefill, decode).

    Operators are counted once per degree; only the KV hand-over belongs to a pair.

    **Arguments:**

    - `experts`: whether some model beside which it is searched has experts.
    """
    pairs, workload = list(pairs), _on_host(workload)

    def counted(pool: Pool) -> Pool:
        operators = with_idle_experts(pool.operators) if experts else pool.operators
        return _on_host(replace(pool, operators=operators))

    prefill = {
        tp: counted(prefill_pool(workload, Parallelism(tp))) for tp in {tp for tp, _ in pairs}
    }
    decode = {tp: counted(decode_pool(workload, Parallelism(tp))) for tp in {tp for _, tp in pairs}}
    pools = {}
    for pair in pairs:
        sender, receiver = prefill[pair[0]], decode[pair[1]]
        if workload.serves_prefill:
            handed_over = _on_host(handed_over_gb(workload, *map(Parallelism, pair)))
            sender = eqx.tree_at(
                lambda pool: (pool.sent_gb_per_seq, pool.handover_gb_per_seq), sender, handed_over
            )
        pools[(pair,)] = stack_padded([sender, receiver], np)
    return pools


def _on_host(tree):
    return jax.tree.map(np.asarray, tree)


def undominated_aspects(
    aspect_ratios: Iterable[float], technology: Technology, die_area_max_mm2: float
) -> list[float]:
    """Aspect ratios that are worth a branch.

    The perimeter grows with the ratio. So a ratio is dominated by a larger one whose field holds
    dies at least as large: every design of the first is feasible with the second, at the same cost.
    """
    largest_mm2 = {
        ratio: min(float(field_area_mm2(np.asarray(ratio), technology)), die_area_max_mm2)
        for ratio in sorted(set(aspect_ratios))
    }
    return [
        ratio
        for ratio, area_mm2 in largest_mm2.items()
        if not any(
            other > ratio and other_mm2 >= area_mm2 for other, other_mm2 in largest_mm2.items()
        )
    ]


def candidate_branches(
    task: Task,
    technologies: Mapping[str, Technology],
    *,
    pools: Mapping[Pairs, Pool],
    aspect_ratios: Iterable[float],
    dies_per_package: Iterable[int],
    caps: Caps,
    bounds: Mapping[str, tuple[float, float]],
) -> list[tuple[Choice, Branch]]:
    """All branches of one class of accelerators. A degree beyond a scale-up domain is none.

    **Arguments:**

    - `bounds`: of the study's own, design variable -> bounds in its unit; equal ones fix it.
    """
    common = _common(task, caps, bounds)
    applies = _applies(task, caps, "domain")
    boxes = _boxes(pools, common)
    # one array per value, so that `stack` recognises it in every branch
    outlines = {ratio: np.asarray(ratio, float) for ratio in aspect_ratios}
    dies_of = {dies: np.asarray(dies, float) for dies in dies_per_package}
    outlined = [
        (name, ratio)
        for name, tree in technologies.items()
        for ratio in undominated_aspects(outlines, tree, float(caps.die_area_max_mm2))
    ]
    domains = {name: float(tree.largest_domain) for name, tree in technologies.items()}
    combinations = [
        (pairs, dies, (name, ratio), ranges)
        for pairs, dies, (name, ratio), ranges in itertools.product(pools, dies_of, outlined, boxes)
        if max(max(pair) for pair in pairs) <= domains[name]
    ]
    return [
        (
            Choice(pairs, aspect_ratio, dies, technology, ranges),
            Branch(
                technology=technologies[technology],
                pools=pools[pairs],
                aspect_ratio=outlines[aspect_ratio],
                dies_per_package=dies_of[dies],
                applies=applies,
                **common | boxes[ranges],
            ),
        )
        for pairs, dies, (technology, aspect_ratio), ranges in combinations
    ]


def existing_branches(
    task: Task,
    design: Design,
    technology: Technology,
    *,
    name: str,
    pools: Mapping[Pairs, Pool],
) -> list[tuple[Choice, Branch]]:
    """Branches of an accelerator that exists: only its deployment is searched.

    Limits of the machine do not apply (it was built), but for its clock and its rated power.
    """
    values = {field: float(getattr(design, field)) for field in DESIGN_VARIABLES}
    caps = Caps()
    common = _common(task, caps, {field: (value, value) for field, value in values.items()})
    applies = _applies(task, caps, "machine", "domain")
    boxes = _boxes(pools, common)
    return [
        (
            Choice(pairs, float(design.aspect_ratio), int(design.dies_per_package), name, ranges),
            Branch(
                technology=technology,
                pools=pools[pairs],
                aspect_ratio=design.aspect_ratio,
                dies_per_package=design.dies_per_package,
                applies=applies,
                **common | boxes[ranges],
            ),
        )
        for pairs, ranges in itertools.product(pools, boxes)
    ]


def _boxes(
    pools: Mapping[Pairs, Pool], common: Mapping[str, Any]
) -> dict[tuple[Range, ...], dict[str, Any]]:
    """Ranges of the batches of all pools -> the box with them: fields of `Branch`.

    How many experts a batch touches does not depend on the degree of parallelism.
    """
    of_pools = ranges_of(next(iter(pools.values())))
    return {
        ranges: within(common["lower"], common["upper"], common["free"], ranges)
        for ranges in itertools.product(*of_pools)
    }


def _applies(task: Task, caps: Caps, *kinds_off: str) -> np.ndarray:
    """Which limits hold, without those of some kinds."""
    concerned = limits_that_apply(task.workloads, caps)
    return np.array(
        [
            limit.kind not in kinds_off and concerned.get(limit.name, True)
            for limit in task.layout.limits
        ]
    )


def _common(task: Task, caps: Caps, bounds: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """What all branches of a class of accelerators share: fields of `Branch`."""
    layout = task.layout
    fixed = {name: low for name, (low, high) in bounds.items() if low == high}
    idle = dict.fromkeys(task.idle_variables, 1.0)
    lower, upper = np.log([bounds.get(name, box) for name, box in layout.box.items()]).T
    held = np.array([name in fixed or name in idle for name in layout.variables])
    logs = np.array([math.log((fixed | idle).get(name, 1.0)) for name in layout.variables])
    return {
        "caps": jax.tree.map(np.asarray, caps),
        "objective": layout.of_objectives(task.objective),
        "tilt": np.zeros(len(layout.variables)),
        "free": ~held,
        "fixed": logs,
        "lower": np.where(held, logs - 1.0, lower),
        "upper": np.where(held, logs + 1.0, upper),
    }


def hold(branch: Branch, layout: Layout, values: Mapping[str, float]) -> Branch:
    """The branch with some variables no longer free, at given values in their own units."""
    held = np.array([name in values for name in layout.variables])
    logs = np.array([math.log(values.get(name, 1.0)) for name in layout.variables])
    return replace(
        branch,
        free=branch.free & ~held,
        fixed=np.where(held, logs, branch.fixed),
        lower=np.where(held, logs - 1.0, branch.lower),
        upper=np.where(held, logs + 1.0, branch.upper),
    )


def with_aspect(branch: Branch, aspect_ratio: float) -> Branch:
    """The branch with another outline of the die."""
    return replace(branch, aspect_ratio=np.asarray(aspect_ratio, float))


def push(branch: Branch, layout: Layout, limit: str) -> Branch:
    """The branch that minimises the use of one limit, with all the others kept."""
    others = np.array([name != limit for name in layout.limit_names])
    return replace(branch, objective=layout.of_limit(limit), applies=branch.applies & others)


def stack(branches: Sequence[Branch]) -> Branch:
    """Branches on a leading lane axis, as NumPy arrays.

    Branches share most of their parts (technologies, pools, masks); each part is stacked once and
    then gathered. Models with fewer operators get idle ones.
    """

    def gather(*parts):
        unique = {id(part): part for part in parts}
        row = {identity: number for number, identity in enumerate(unique)}
        rows = np.array([row[id(part)] for part in parts])
        return jax.tree.map(lambda leaf: leaf[rows], stack_padded(list(unique.values()), np))

    parts = lambda leaf: not isinstance(leaf, Branch)  # noqa: E731 - stop below the branch
    return jax.tree.map(gather, *branches, is_leaf=parts)
