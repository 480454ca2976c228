"""Groups: all branches of one candidate or baseline on one workload."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..catalog import HARDWARE_TABLES, load_accelerator, technology
from ..limits import NO_CAP, Caps
from ..machine.technology import Technology
from ..space import OBJECTIVES
from ..study import Study, StudyCandidate, StudyWorkload, study_transformers
from ..workload.traffic import NO_LIMIT_MS, Workload, make_workload
from .branches import (
    Choice,
    Task,
    candidate_branches,
    existing_branches,
    parallel_pairs,
    stacked_pools,
)
from .layout import Layout
from .problem import Branch


@dataclass(frozen=True)
class Group:
    """One candidate, or one baseline, on one workload."""

    workload: int
    task: Task
    name: str
    branches: list[tuple[Choice, Branch]]
    candidate: StudyCandidate | None
    """`None` for a baseline."""

    @property
    def layout(self) -> Layout:
        """Names along the vectors of its branches."""
        return self.task.layout


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
    return {
        "/".join(entries[table] for table in HARDWARE_TABLES): (
            entries,
            technology(study.technology.overrides, **entries),
        )
        for entries in study.technology_choices()
    }


def study_groups(study: Study, workloads: Sequence[Workload]) -> list[Group]:
    """Every candidate and baseline on every workload."""
    trees = {name: tree for name, (_, tree) in study_technologies(study).items()}
    experts = any(workload.transformer.has_experts for workload in workloads)
    groups = []
    for index, workload in enumerate(workloads):
        task = Task({"": workload}, study.objective)
        pairs = parallel_pairs(workload, study.space.tensor_parallel_max)
        pools = stacked_pools(workload, pairs, experts=experts)
        for candidate in study.candidates:
            branches = candidate_branches(
                task,
                trees,
                pools=pools,
                aspect_ratios=study.space.aspect_ratios,
                dies_per_package=candidate.dies_per_package,
                caps=_caps(candidate, study.workloads[index]),
                bounds=candidate.bounds,
            )
            groups.append(Group(index, task, candidate.name, branches, candidate))
        for baseline in study.baselines:
            accelerator = load_accelerator(baseline.accelerator)
            branches = existing_branches(
                task,
                accelerator.design(),
                accelerator.technology(
                    study.technology.overrides,
                    prices=study.basis,
                    execution=study.technology.execution,
                ),
                name=accelerator.name,
                pools={
                    (pair,): pools[(pair,)]
                    for pair in pairs
                    if max(pair) <= accelerator.largest_group
                },
            )
            groups.append(Group(index, task, accelerator.name, branches, None))
    return groups


def _caps(candidate: StudyCandidate, workload: StudyWorkload) -> Caps:
    """The study's own limits on a candidate that serves a workload."""

    def cap(value: float | None) -> float:
        return NO_CAP if value is None else value

    return Caps(
        die_area_max_mm2=cap(candidate.die_area_max_mm2),
        tdp_max_w=cap(candidate.tdp_max_w),
        unit_cost_max_usd=cap(candidate.unit_cost_max_usd),
        objectives=np.array([workload.limits.get(name, NO_CAP) for name in OBJECTIVES]),
    )
