"""Branches: every combination of the discrete choices, each a convex problem of its own."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np

from ..limits import LIMIT_NAMES, LIMITS, limits_that_apply
from ..machine.design import Design
from ..machine.silicon import field_area_mm2
from ..machine.technology import Technology
from ..numerics import stack_padded
from ..workload.parallelism import Parallelism, tensor_parallel_degrees
from ..workload.pool import Pool, decode_pool, handed_over_gb, prefill_pool
from ..workload.traffic import Workload
from .problem import COST_OBJECTIVE, DESIGN_VARIABLES, VARIABLES, Branch, reach_objective


NO_AREA_LIMIT_MM2 = 1e9

PREFILL_VARIABLES = ("batch_prefill", "clock_prefill_ghz")
DECODE_VARIABLES = ("batch_decode", "clock_decode_ghz")


@dataclass(frozen=True)
class Choice:
    """The discrete choices of a branch."""

    tp_prefill: int
    tp_decode: int
    aspect_ratio: float
    dies_per_package: int
    technology: str
    """Name of the combination of technologies."""


def parallel_pairs(workload: Workload, limit: int) -> list[tuple[int, int]]:
    """Tensor-parallel degrees (prefill, decode) that divide the model, up to a limit.

    A phase that the workload does not have gets one device.
    """
    degrees = tensor_parallel_degrees(workload.transformer, limit)
    prefill = degrees if workload.serves_prefill else (1,)
    decode = degrees if workload.serves_decode else (1,)
    return list(itertools.product(prefill, decode))


def stacked_pools(
    workload: Workload, pairs: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], Pool]:
    """Pools of every pair of degrees as NumPy arrays, each with its leading axis (prefill, decode).

    Operators are counted once per degree; only the KV hand-over belongs to a pair.
    """
    pairs, workload = list(pairs), _on_host(workload)
    prefill = {
        tp: _on_host(prefill_pool(workload, Parallelism(tp))) for tp in {tp for tp, _ in pairs}
    }
    decode = {
        tp: _on_host(decode_pool(workload, Parallelism(tp))) for tp in {tp for _, tp in pairs}
    }
    pools = {}
    for pair in pairs:
        sender, receiver = prefill[pair[0]], decode[pair[1]]
        if workload.serves_prefill:
            handed_over = _on_host(handed_over_gb(workload, *map(Parallelism, pair)))
            sender = eqx.tree_at(
                lambda pool: (pool.sent_gb_per_seq, pool.handover_gb_per_seq), sender, handed_over
            )
        pools[pair] = stack_padded([sender, receiver], np)
    return pools


def _on_host(tree):
    return jax.tree.map(np.asarray, tree)


def _mask(names: Iterable[str], excluded: Iterable[str]) -> np.ndarray:
    excluded = set(excluded)
    return np.array([name not in excluded for name in names])


def _of_kinds(*kinds: str) -> set[str]:
    """Names of the limits of some kinds."""
    return {limit.name for limit in LIMITS if limit.kind in kinds}


def _idle_variables(workload: Workload) -> tuple[str, ...]:
    """Variables of a phase that the workload does not have."""
    prefill = () if workload.serves_prefill else PREFILL_VARIABLES
    decode = () if workload.serves_decode else DECODE_VARIABLES
    return prefill + decode


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
    workload: Workload,
    technologies: Mapping[str, Technology],
    *,
    pools: Mapping[tuple[int, int], Pool],
    aspect_ratios: Iterable[float],
    dies_per_package: Iterable[int],
    die_area_max_mm2: float | None,
) -> list[tuple[Choice, Branch]]:
    """All branches of one class of accelerators on one workload.

    A degree beyond the scale-up domain of a technology is no branch.
    """
    off = _of_kinds("domain") | {
        name
        for name, applies in limits_that_apply(
            workload, has_die_area_max=die_area_max_mm2 is not None
        ).items()
        if not applies
    }
    applies = _mask(LIMIT_NAMES, off)
    free = _mask(VARIABLES, _idle_variables(workload))
    fixed = np.zeros(len(VARIABLES))
    area_max = np.asarray(die_area_max_mm2 or NO_AREA_LIMIT_MM2)
    # one array per value, so that `stack` recognises it in every branch
    outlines = {ratio: np.asarray(ratio, float) for ratio in aspect_ratios}
    dies_of = {dies: np.asarray(dies, float) for dies in dies_per_package}
    outlined = [
        (name, ratio)
        for name, tree in technologies.items()
        for ratio in undominated_aspects(outlines, tree, float(area_max))
    ]
    domains = {name: float(tree.largest_domain) for name, tree in technologies.items()}
    combinations = [
        (pair, dies, (name, ratio))
        for pair, dies, (name, ratio) in itertools.product(pools, dies_of, outlined)
        if max(pair) <= domains[name]
    ]
    return [
        (
            Choice(*pair, aspect_ratio, dies, technology),
            Branch(
                technology=technologies[technology],
                pools=pools[pair],
                aspect_ratio=outlines[aspect_ratio],
                dies_per_package=dies_of[dies],
                die_area_max_mm2=area_max,
                objective=COST_OBJECTIVE,
                applies=applies,
                free=free,
                fixed=fixed,
            ),
        )
        for pair, dies, (technology, aspect_ratio) in combinations
    ]


def existing_branches(
    workload: Workload,
    design: Design,
    technology: Technology,
    *,
    name: str,
    pools: Mapping[tuple[int, int], Pool],
) -> list[tuple[Choice, Branch]]:
    """Branches of an accelerator that exists: only its deployment is searched.

    Limits of the machine do not apply (it was built), but for its clock and its rated power.
    """
    off = _of_kinds("machine", "domain")
    off |= {
        limit
        for limit, applies in limits_that_apply(workload, has_die_area_max=False).items()
        if not applies
    }
    applies = _mask(LIMIT_NAMES, off)
    free = _mask(VARIABLES, (*DESIGN_VARIABLES, *_idle_variables(workload)))
    values = [float(getattr(design, field)) for field in DESIGN_VARIABLES]
    fixed = np.zeros(len(VARIABLES))
    fixed[: len(values)] = np.log(values)
    return [
        (
            Choice(*pair, float(design.aspect_ratio), int(design.dies_per_package), name),
            Branch(
                technology=technology,
                pools=pools[pair],
                aspect_ratio=design.aspect_ratio,
                dies_per_package=design.dies_per_package,
                die_area_max_mm2=np.asarray(NO_AREA_LIMIT_MM2),
                objective=COST_OBJECTIVE,
                applies=applies,
                free=free,
                fixed=fixed,
            ),
        )
        for pair in pools
    ]


def hold(branch: Branch, values: Mapping[str, float]) -> Branch:
    """The branch with some variables no longer free, at given values in their own units."""
    held = np.array([name in values for name in VARIABLES])
    logs = np.array([math.log(values.get(name, 1.0)) for name in VARIABLES])
    return eqx.tree_at(
        lambda b: (b.free, b.fixed),
        branch,
        (branch.free & ~held, np.where(held, logs, branch.fixed)),
    )


def with_aspect(branch: Branch, aspect_ratio: float) -> Branch:
    """The branch with another outline of the die."""
    return eqx.tree_at(lambda b: b.aspect_ratio, branch, np.asarray(aspect_ratio, float))


def push(branch: Branch, limit: str) -> Branch:
    """The branch that minimises the use of one limit, with all the others kept."""
    others = np.array([name != limit for name in LIMIT_NAMES])
    return eqx.tree_at(
        lambda b: (b.objective, b.applies),
        branch,
        (reach_objective(limit), branch.applies & others),
    )


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
