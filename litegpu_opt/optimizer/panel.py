"""A whole study: every workload, candidate and baseline as lanes of one search.

Search, polish and certify all branches at once; then, for the best branch of each
candidate, the hard roofline, the sensitivities and the buildable neighbours.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from ..objectives import TOKENS_PER_MILLION
from ..space import OBJECTIVES, PHYSICAL
from ..study import FRONT_LIMITS, Study, StudyMix
from ..workload.phases import PHASES
from ..workload.traffic import Workload
from .assess import assess_solved, sensitivities_at
from .breakeven import search_break_evens
from .ended import Ended
from .groups import Group, study_groups, study_workloads
from .hard import HardOptimum, search_hard
from .lattice import Built, search_buildable
from .mix import SearchedMix, search_mixes
from .pareto import SearchedFront, search_fronts
from .result import (
    Baseline,
    Buildable,
    Certified,
    Front,
    FrontPoint,
    Infeasible,
    Mix,
    MixedDesign,
    OnWorkload,
    Optimum,
    PanelResult,
    PhaseDesigns,
    Run,
    WorkloadResult,
)
from .search import divide, search, solve_parts
from .shortfall import search_shortfalls
from .solved import Solved, best_of
from .solving import Progress
from .specialised import Specialised, search_specialised
from .tornado import search_tornados


GAP_SHOWN = 1e-3
"""Sensitivities are withheld above this gap."""
NEGLIGIBLE = 1e-6
"""A multiplier, or a distance to the box, below this is zero."""


def optimize(
    study: Study,
    progress: Progress = lambda stage, done, total: None,
    *,
    explain_infeasible: bool = False,
) -> PanelResult:
    """Search every candidate of a study on every workload, and certify what is found.

    **Arguments:**

    - `explain_infeasible`: for what cannot serve, the smallest relaxation of every limit; without
      it, of those that the study sets.

    **Raises:** `UserError` for an unknown model or accelerator.
    """
    seconds: dict[str, float] = {}

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        seconds[name] = time.perf_counter() - begin

    with stage("branches"):
        workloads = study_workloads(study)
        groups = study_groups(study, workloads)
    with stage("search"):
        parts = solve_parts(groups, progress)
        ended = search(groups, parts, study, progress)
        groups, ended = divide(groups, ended, study, progress)
    with stage("hard roofline"):
        hard = search_hard(groups, ended, parts, progress)
    with stage("buildable"):
        built = search_buildable(groups, ended, study, progress)
    with stage("infeasible"):
        shortfalls = search_shortfalls(groups, ended, progress, physical=explain_infeasible)
    with stage("report"):
        optima, baselines = _optima(groups, workloads, ended, hard, built)
    with stage("questions"):
        pairs = search_specialised(groups, parts, progress) if study.specialised else {}
        fronts = search_fronts(groups, ended, study, progress)
        break_evens = search_break_evens(groups, ended, study, progress)
        slopes = {n: optimum.sensitivities for n, optimum in optima.items()}
        tornados = search_tornados(groups, ended, slopes, study, progress)
        phase_designs = _phase_designs(groups, workloads, pairs)
        drawn = [(front.group, _front(groups, workloads, front)) for front in fronts]
        mixes = tuple(
            _mix(mix, name, found, groups, workloads, ended)
            for mix, name, found in search_mixes(groups, ended, study, progress)
        )
    panel = tuple(
        WorkloadResult(
            name=study.workloads[index].name,
            workload=workload,
            optima=tuple(_of_workload(optima, groups, index)),
            baselines=tuple(_of_workload(baselines, groups, index)),
            infeasible=tuple(
                Infeasible(groups[n].name, limits, ended[n].starts())
                for n, limits in shortfalls.items()
                if groups[n].workload == index
            ),
            specialised=tuple(_of_workload(phase_designs, groups, index)),
            fronts=tuple(front for n, front in drawn if groups[n].workload == index),
            break_evens=tuple(found for number, found in break_evens if number == index),
            tornados={
                groups[n].name: bars for n, bars in tornados.items() if groups[n].workload == index
            },
        )
        for index, workload in enumerate(workloads)
    )
    return PanelResult(study, panel, mixes, seconds)


def _phase_designs(
    groups: Sequence[Group], workloads: Sequence[Workload], pairs: Mapping[int, Specialised]
) -> dict[int, PhaseDesigns]:
    """Number of a group -> its designs for one phase each, with their metrics."""
    runs = [
        _runs(groups, workloads, {n: pair.designs[phase] for n, pair in pairs.items()})
        for phase in range(len(PHASES))
    ]
    return {
        n: PhaseDesigns(groups[n].name, prefill, decode, Certified(pair.value, pair.lower_bound))
        for (n, pair), prefill, decode in zip(pairs.items(), *runs, strict=True)
    }


def _front(groups: Sequence[Group], workloads: Sequence[Workload], front: SearchedFront) -> Front:
    group = groups[front.group]
    items = {row: point.item for row, point in enumerate(front.points) if point.item is not None}
    prompt = float(workloads[group.workload].traffic.prompt_tokens)
    runs = dict(zip(items, _runs_at(items.values(), [prompt] * len(items)), strict=True))
    units = FRONT_LIMITS | OBJECTIVES
    return Front(
        name=group.name,
        over=front.over,
        unit=units[front.over],
        points=tuple(
            FrontPoint(
                limit=point.limit,
                lower_bound=math.exp(point.lower_bound),
                objective=math.exp(items[row].value) if row in items else math.inf,
                run=runs.get(row),
            )
            for row, point in enumerate(front.points)
        ),
    )


def _mix(
    mix: StudyMix,
    name: str,
    found: SearchedMix | None,
    groups: Sequence[Group],
    workloads: Sequence[Workload],
    ended: Sequence[Ended],
) -> Mix:
    if found is None:
        return Mix(mix.name, name, None, None)
    prompts = [float(workloads[groups[n].workload].traffic.prompt_tokens) for n in found.groups]

    def design(items: Sequence[Solved], value: float, bound: float) -> MixedDesign:
        runs = _runs_at(items, prompts)
        return MixedDesign(
            Certified(math.exp(value), math.exp(bound)),
            tuple(
                OnWorkload(label, share, run, math.exp(item.value), math.exp(ended[n].least))
                for label, share, run, item, n in zip(
                    mix.workloads, mix.parts_of_one, runs, items, found.groups, strict=True
                )
            ),
        )

    built = found.built
    return Mix(
        mix.name,
        name,
        design(found.runs, found.item.value, found.item.bound),
        built and design(found.built_runs, built.item.value, built.lattice_bound),
    )


def _of_workload(items: Mapping[int, object], groups: Sequence[Group], index: int) -> Iterator:
    return (item for n, item in items.items() if groups[n].workload == index)


def _optima(
    groups: Sequence[Group],
    workloads: Sequence[Workload],
    ended: Sequence[Ended],
    hard: Mapping[int, HardOptimum],
    built: Mapping[int, Built],
) -> tuple[dict[int, Optimum], dict[int, Baseline]]:
    """Number of a group -> its optimum (candidates) or its best deployment (baselines)."""
    optima = {n: best_of(groups[n], end) for n, end in enumerate(ended)}
    relaxed = {n: item for n, item in optima.items() if item is not None}
    if not relaxed:
        return {}, {}
    runs = dict(zip(relaxed, _runs(groups, workloads, relaxed), strict=True))
    built_runs = dict(
        zip(built, _runs(groups, workloads, {n: b.item for n, b in built.items()}), strict=True)
    )
    multipliers = {
        n: ended[n].at_best_start(ended[n].lanes.multipliers)[ended[n].best] for n in relaxed
    }
    served = [groups[n].task.workloads for n in relaxed]
    tables = sensitivities_at(relaxed.values(), multipliers.values(), served)
    sensitivities = dict(zip(relaxed, tables, strict=True))
    optima, baselines = {}, {}
    for n, item in relaxed.items():
        soft = Certified(math.exp(item.value), math.exp(ended[n].bound.min()))
        if groups[n].candidate is None:
            baselines[n] = Baseline(groups[n].name, runs[n], soft)
            continue
        residual = float(ended[n].at_best_start(ended[n].lanes.residual)[ended[n].best])
        elasticities, slopes = sensitivities[n] if soft.gap <= GAP_SHOWN else ({}, {})
        optima[n] = Optimum(
            name=groups[n].name,
            run=runs[n],
            soft=soft,
            hard=Certified(math.exp(hard[n].value), math.exp(hard[n].bound)),
            kkt_residual=residual,
            multipliers={
                name: float(value) if value > NEGLIGIBLE else 0.0
                for name, value, on in zip(
                    groups[n].layout.limit_names,
                    multipliers[n],
                    np.asarray(item.branch.applies),
                    strict=True,
                )
                if on
            },
            sensitivities=elasticities,
            slopes_at_zero=slopes,
            at_box=_at_box(item),
            starts=ended[n].starts(),
            buildable=_buildable(built[n], built_runs[n], soft) if n in built else None,
        )
    return optima, baselines


def _runs(
    groups: Sequence[Group], workloads: Sequence[Workload], items: Mapping[int, Solved]
) -> list[Run]:
    prompts = [float(workloads[groups[n].workload].traffic.prompt_tokens) for n in items]
    return _runs_at(items.values(), prompts)


def _runs_at(items: Iterable[Solved], prompts: Sequence[float]) -> list[Run]:
    items = list(items)
    return [
        Run(item.choice, item.variables, metrics, TOKENS_PER_MILLION * half)
        for item, (metrics, half) in zip(items, assess_solved(items, prompts), strict=True)
    ]


def _buildable(built: Built, run: Run, soft: Certified) -> Buildable:
    value = math.exp(built.item.value)
    return Buildable(
        run=run,
        objective=value,
        gap=value / soft.lower_bound - 1.0,
        lattice_lower_bound=math.exp(built.lattice_bound),
        lattice_gap=math.expm1(built.item.value - built.lattice_bound),
        branch_gap=math.expm1(built.item.value - built.item.bound),
    )


def _at_box(item: Solved) -> dict[str, str]:
    """Free variables at a bound, and whose it is: nature's, the study's, or that of the box."""
    ends = zip(
        ("lower", "upper"),
        (np.asarray(item.branch.lower), np.asarray(item.branch.upper)),
        item.layout.log_box,
        strict=True,
    )
    found = {}
    for side, bound, of_box in ends:
        for i in np.flatnonzero(item.branch.free & (np.abs(item.x - bound) < NEGLIGIBLE)):
            name = item.layout.variables[i]
            found[name] = (
                PHYSICAL.get((name, side), f"{side} bound of the search box")
                if bound[i] == of_box[i]
                else f"{side} bound of the study"
            )
    return found
