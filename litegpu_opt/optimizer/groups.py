"""Groups: all branches of one candidate or baseline on one workload, and how they ended."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np

from ..catalog import load_accelerator, technology
from ..machine.technology import Technology
from ..numerics import AnyArray
from ..study import Study, StudyCandidate, study_transformers
from ..workload.traffic import NO_LIMIT_MS, Workload, make_workload
from .branches import (
    Choice,
    candidate_branches,
    existing_branches,
    parallel_pairs,
    stack,
    stacked_pools,
)
from .lanes import Outcome, put, solve_lanes
from .problem import BOX, VARIABLES, Branch
from .result import Starts


CONVERGED = 1e-7
"""Largest KKT residual of a solved lane, and largest relaxation of a feasible one."""
COST_WEIGHT = 1e-2
"""Weight of the cost where its multipliers come near the solver's penalty."""
AGREE = 1e-6
"""Starts whose log objectives differ by less found the same optimum."""

Progress = Callable[[str, int, int], None]
"""Called with a stage, the lanes done and the lanes in all."""


@dataclass(frozen=True)
class Group:
    """One candidate, or one baseline, on one workload."""

    workload: int
    name: str
    branches: list[tuple[Choice, Branch]]
    candidate: StudyCandidate | None
    """`None` for a baseline."""


@dataclass(frozen=True)
class Ended:
    """The outcome of a group; leaves of `lanes` have axes (branches, starts)."""

    lanes: Outcome

    @property
    def value(self) -> np.ndarray:
        """Least value of each branch; infinite where no start is solved."""
        return self._best_of(self.lanes.value)

    @property
    def hard_value(self) -> np.ndarray:
        """Least value of each branch under the hard roofline."""
        return self._best_of(self.lanes.hard_value)

    @property
    def bound(self) -> np.ndarray:
        """Lower bound of each branch; infinite where proved infeasible."""
        proved = np.any(self.lanes.infeasibility > 0.0, axis=1) & ~solved(self.lanes).any(axis=1)
        return np.where(proved, np.inf, np.max(self.lanes.bound, axis=1))

    @property
    def best(self) -> int | None:
        """The best feasible branch."""
        return int(np.argmin(self.value)) if np.isfinite(self.value).any() else None

    def at_best_start(self, leaf: AnyArray) -> np.ndarray:
        """A leaf of `lanes` at the best start of every branch."""
        start = np.argmin(np.where(solved(self.lanes), self.lanes.value, np.inf), axis=1)
        return np.asarray(leaf)[np.arange(len(start)), start]

    def starts(self) -> Starts:
        """How the starts ended."""
        done = solved(self.lanes)
        feasible = done.any(axis=1)
        least = np.where(feasible, self.value, 0.0)
        agree = done & (np.abs(self.lanes.value - least[:, None]) <= AGREE)
        shares = agree.mean(axis=1)[feasible]
        incumbent = self.value.min()
        proved = np.isposinf(self.bound)
        beaten = ~feasible & ~proved & (self.bound >= incumbent)
        return Starts(
            total=done.size,
            converged=int(done.sum()),
            feasible_branches=int(feasible.sum()),
            infeasible_branches=int(proved.sum()),
            beaten_branches=int(beaten.sum()),
            open_branches=int((~feasible & ~proved & ~beaten).sum()),
            least_agreement=float(shares.min()) if shares.size else 0.0,
        )

    def _best_of(self, leaf: AnyArray) -> np.ndarray:
        return np.min(np.where(solved(self.lanes), leaf, np.inf), axis=1)


def solved(lanes: Outcome) -> np.ndarray:
    """Lanes that ended at a KKT point of a feasible problem."""
    return np.asarray((lanes.residual <= CONVERGED) & (lanes.relaxation <= CONVERGED))


def solve(
    branches: Branch,
    starts: np.ndarray,
    stage: str,
    progress: Progress,
    *,
    sharpness: float = 0.0,
    explore: bool = False,
) -> Outcome:
    """`solve_lanes` that reports its progress under the name of a stage."""
    return solve_lanes(
        branches,
        starts,
        sharpness=sharpness,
        explore=explore,
        progress=lambda done: progress(stage, done, len(starts)),
    )


def study_workloads(study: Study) -> list[Workload]:
    """The workloads of a study. **Raises:** `UserError` for a model that cannot be read."""
    return [
        make_workload(
            transformer,
            row.precision(),
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            ttft_ms=NO_LIMIT_MS if row.ttft_ms is None else row.ttft_ms,
            tbt_ms=NO_LIMIT_MS if row.tbt_ms is None else row.tbt_ms,
            pools=row.pools,
            where=f"workload[{index}]",
        )
        for index, (row, transformer) in enumerate(
            zip(study.workloads, study_transformers(study), strict=True)
        )
    ]


def study_technologies(study: Study) -> dict[str, tuple[dict[str, str], Technology]]:
    """Name of each combination of technologies -> its catalogue entries and its pytree."""
    named = ("process", "memory", "interconnect", "package", "cooling")
    return {
        "/".join(entries[table] for table in named): (
            entries,
            technology(study.technology.overrides, **entries),
        )
        for entries in study.technology_choices()
    }


def study_groups(study: Study, workloads: Sequence[Workload]) -> list[Group]:
    """Every candidate and baseline on every workload."""
    trees = {name: tree for name, (_, tree) in study_technologies(study).items()}
    groups = []
    for index, workload in enumerate(workloads):
        pairs = parallel_pairs(workload, study.space.tensor_parallel_max)
        pools = stacked_pools(workload, pairs)
        for candidate in study.candidates:
            branches = candidate_branches(
                workload,
                trees,
                pools=pools,
                aspect_ratios=study.space.aspect_ratios,
                dies_per_package=candidate.dies_per_package,
                die_area_max_mm2=candidate.die_area_max_mm2,
            )
            groups.append(Group(index, candidate.name, branches, candidate))
        for baseline in study.baselines:
            accelerator = load_accelerator(baseline.accelerator)
            branches = existing_branches(
                workload,
                accelerator.design(),
                accelerator.technology(
                    study.technology.overrides,
                    prices=study.basis,
                    execution=study.technology.execution,
                ),
                name=accelerator.name,
                pools={
                    pair: pools[pair] for pair in pairs if max(pair) <= accelerator.largest_group
                },
            )
            groups.append(Group(index, accelerator.name, branches, None))
    return groups


def search(groups: Sequence[Group], study: Study, progress: Progress) -> list[Ended]:
    """Solve all branches of all groups from random starts, in one stream of lanes."""
    branches = stack([branch for group in groups for _, branch in group.branches])
    count = len(branches.free)
    lower, upper = np.log(list(BOX.values())).T
    random = np.random.default_rng(study.seed)
    lanes = np.repeat(np.arange(count), study.starts)
    starts = lower + (upper - lower) * random.uniform(size=(len(lanes), len(VARIABLES)))
    outcome = solve(_take(branches, lanes), starts, "search", progress, explore=True)
    outcome = _look_again(branches, lanes, outcome, progress)
    by_branch = jax.tree.map(
        lambda leaf: leaf.reshape(count, study.starts, *leaf.shape[1:]), outcome
    )
    ended, first = [], 0
    for group in groups:
        rows = slice(first, first + len(group.branches))
        ended.append(Ended(_take(by_branch, rows)))
        first = rows.stop
    return ended


def _take(tree, rows):
    return jax.tree.map(lambda leaf: leaf[rows], tree)


def _look_again(
    branches: Branch, lanes: np.ndarray, outcome: Outcome, progress: Progress
) -> Outcome:
    """Settle the branches of which no start is solved, and are not proved infeasible either.

    Without the cost in the objective, the least relaxation is found, and proves tightly. What turns
    out feasible has multipliers near the solver's penalty: there the cost is weighed down, which is
    a larger penalty, and the outcome scaled back.
    """
    done = solved(outcome)
    settled = np.union1d(lanes[done], lanes[np.asarray(outcome.infeasibility) > 0.0])
    rows = np.flatnonzero(~np.isin(lanes, settled))
    if not rows.size:
        return outcome
    stage = "what is infeasible"
    costless = solve(
        _weighed(_take(branches, lanes[rows]), 0.0), np.asarray(outcome.x)[rows], stage, progress
    )
    proofs = put(outcome.infeasibility, rows, costless.infeasibility)
    outcome = eqx.tree_at(lambda o: o.infeasibility, outcome, proofs)
    possible = solved(costless)
    rows = rows[possible]
    if not rows.size:
        return outcome
    weighed = solve(
        _weighed(_take(branches, lanes[rows]), COST_WEIGHT),
        np.asarray(costless.x)[possible],
        stage,
        progress,
    )
    scaled = ("value", "bound", "hard_value", "hard_bound", "multipliers", "residual")
    weighed = eqx.tree_at(
        lambda o: [getattr(o, name) for name in scaled],
        weighed,
        [getattr(weighed, name) / COST_WEIGHT for name in scaled],
    )
    better = solved(weighed)
    weighed, rows = _take(weighed, better), rows[better]
    return jax.tree.map(lambda old, new: put(old, rows, new), outcome, weighed)


def _weighed(branches: Branch, weight: float) -> Branch:
    """The same branches with the objective times a weight."""
    return eqx.tree_at(lambda b: b.objective, branches, weight * np.asarray(branches.objective))
