"""A whole study: every workload, candidate and baseline as lanes of one search.

Search -> polish -> certify all branches at once; then, for the best of each
candidate, the hard roofline, the sensitivities and the buildable neighbours.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..catalog import load_accelerator, offered_gb, technology
from ..evaluate import Metrics, assess
from ..execution.roofline import SoftRoof
from ..limits import LIMIT_NAMES, LIMITS
from ..machine.technology import Technology
from ..study import Study, StudyCandidate
from ..workload.huggingface import read_transformer
from ..workload.traffic import NO_LIMIT_MS, Workload, make_workload
from .branches import (
    Choice,
    candidate_branches,
    existing_branches,
    hold,
    parallel_pairs,
    push,
    stack,
    stacked_pools,
)
from .lanes import Outcome, solve_lanes
from .lattice import fits_on_edges, memory_choices, whole_choices
from .problem import PHYSICAL, VARIABLES, Branch, design_at, values_at
from .result import (
    Baseline,
    Buildable,
    Certified,
    Infeasible,
    Optimum,
    PanelResult,
    Run,
    Shortfall,
    Starts,
    WorkloadResult,
    usd_per_million,
)
from .sensitivity import by_name, technology_elasticities


CONVERGED = 1e-7
"""Largest KKT residual of a solved lane."""
FEASIBLE = 1e-7
"""Largest relaxation of a feasible lane."""
AGREE = 1e-6
"""Starts whose log objectives differ by less found the same optimum."""
HARD_EXPONENT = 1024.0
"""Overlap exponent with which the hard roofline is searched; its bound needs no such number."""
GAP_SHOWN = 1e-3
"""Sensitivities are withheld above this gap."""
LATTICE_BRANCHES = 4
"""Branches whose neighbours are searched for a buildable design."""
LATTICE_MEMORIES = 4
"""Memory choices that go on to the second stage."""
NEGLIGIBLE = 1e-6
"""A multiplier or a distance to the box below this is zero."""

STUDY_LIMITS = ("die_area_max", "ttft", "tbt")
"""Limits that a study sets; the others are physics or market."""

Progress = Callable[[str, int, int], None]
"""Called with stage, lanes done, lanes in all."""


@dataclass(frozen=True)
class _Group:
    """One candidate or baseline on one workload: its branches, and where its lanes are."""

    workload: int
    name: str
    branches: list[tuple[Choice, Branch]]
    candidate: StudyCandidate | None

    def __len__(self) -> int:
        return len(self.branches)


@dataclass(frozen=True)
class _Ended:
    """Outcome of one group: lanes reshaped to (branches, starts)."""

    lanes: Outcome
    solved: np.ndarray
    bound: np.ndarray
    """Per branch; infinite where proved infeasible."""
    best: int | None
    """Best feasible branch."""
    best_start: np.ndarray
    """Best start of each branch."""

    def at_best(self, leaf: np.ndarray) -> np.ndarray:
        return leaf[self.best, self.best_start[self.best]]


class _Clock:
    """Seconds by stage."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


def optimize(study: Study, progress: Progress = lambda stage, done, total: None) -> PanelResult:
    """Search every candidate of a study on every workload, and certify what is found.

    **Raises:** `UserError` for an unknown model or accelerator.
    """
    clock = _Clock()
    with clock.stage("branches"):
        workloads = [_workload(study, index) for index in range(len(study.workloads))]
        technologies = _technologies(study)
        groups = _groups(study, workloads, technologies)
    with clock.stage("search"):
        ended = _search(groups, study, progress)
    with clock.stage("hard roofline"):
        hard = _search_hard(groups, ended, progress)
    with clock.stage("buildable"):
        buildable = _search_buildable(groups, ended, study, progress)
    with clock.stage("infeasible"):
        shortfalls = _search_shortfalls(groups, ended, progress)
    with clock.stage("report"):
        results = _results(study, workloads, groups, ended, hard, buildable, shortfalls)
    return PanelResult(study, results, clock.seconds)


def _workload(study: Study, index: int) -> Workload:
    row = study.workloads[index]
    return make_workload(
        read_transformer(row.model),
        row.precision(),
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
        ttft_ms=NO_LIMIT_MS if row.ttft_ms is None else row.ttft_ms,
        tbt_ms=NO_LIMIT_MS if row.tbt_ms is None else row.tbt_ms,
        pools=row.pools,
        where=f"workload[{index}]",
    )


def _technologies(study: Study) -> dict[str, tuple[dict[str, str], Technology]]:
    """Name of each combination -> its catalogue entries and its pytree."""
    overrides = study.technology.overrides
    return {
        "/".join(entries[table] for table in ("process", "memory", "interconnect", "cooling")): (
            entries,
            technology(overrides, **entries),
        )
        for entries in study.technology_choices()
    }


def _groups(study: Study, workloads: Sequence[Workload], technologies) -> list[_Group]:
    trees = {name: tree for name, (_, tree) in technologies.items()}
    money = {"prices": study.basis, "execution": study.technology.execution}
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
            groups.append(_Group(index, candidate.name, branches, candidate))
        for baseline in study.baselines:
            accelerator = load_accelerator(baseline.accelerator)
            near = [pair for pair in pairs if max(pair) <= accelerator.largest_group]
            branches = existing_branches(
                workload,
                accelerator.design(),
                accelerator.technology(study.technology.overrides, **money),
                name=accelerator.name,
                pools={pair: pools[pair] for pair in near},
            )
            groups.append(_Group(index, accelerator.name, branches, None))
    return groups


def _exponent(branch: Branch) -> float:
    return float(branch.technology.execution.overlap_exponent)


def _search(groups: list[_Group], study: Study, progress: Progress) -> list[_Ended]:
    """All branches from several random starts."""
    branches = [branch for group in groups for _, branch in group.branches]
    lanes = np.repeat(np.arange(len(branches)), study.starts)
    lower, upper = (np.asarray(side) for side in branches[0].box)
    random = np.random.default_rng(study.seed)
    starts = lower + (upper - lower) * random.uniform(size=(len(lanes), len(VARIABLES)))
    stacked = jax.tree.map(lambda leaf: leaf[lanes], stack(branches))
    outcome = _solve(stacked, starts, _exponent(branches[0]), "search", progress)
    ended, first = [], 0
    for group in groups:
        rows = slice(first * study.starts, (first + len(group)) * study.starts)
        ended.append(
            _read(
                jax.tree.map(
                    lambda leaf, rows=rows: leaf[rows].reshape(-1, study.starts, *leaf.shape[1:]),
                    outcome,
                )
            )
        )
        first += len(group)
    return ended


def _solve(
    branches: Branch,
    starts: np.ndarray,
    exponent: float,
    stage: str,
    progress: Progress,
    explore: bool = True,
) -> Outcome:
    total, done = len(starts), 0

    def advance(lanes: int) -> None:
        nonlocal done
        done += lanes
        progress(stage, done, total)

    return solve_lanes(branches, starts, exponent, explore=explore, progress=advance)


def _solved(lanes: Outcome) -> np.ndarray:
    return (lanes.residual <= CONVERGED) & (lanes.relaxation <= FEASIBLE)


def _read(lanes: Outcome) -> _Ended:
    """Best start of each branch and best branch of a group; arrays `(branches, starts)`."""
    solved = _solved(lanes)
    value = np.where(solved, lanes.value, np.inf)
    best_start = np.argmin(value, axis=1)
    bound = np.where(np.any(lanes.infeasibility > 0.0, axis=1), np.inf, np.max(lanes.bound, axis=1))
    by_branch = np.min(value, axis=1)
    best = int(np.argmin(by_branch)) if np.isfinite(by_branch).any() else None
    return _Ended(lanes, solved, bound, best, best_start)


def _starts(ended: _Ended) -> Starts:
    value = np.where(ended.solved, ended.lanes.value, np.inf)
    feasible = ended.solved.any(axis=1)
    proved = np.isinf(ended.bound)
    best = np.where(feasible, np.min(value, axis=1), 0.0)
    agreement = np.mean(np.abs(value - best[:, None]) <= AGREE, axis=1)[feasible]
    return Starts(
        total=ended.solved.size,
        converged=int(np.sum(ended.lanes.residual <= CONVERGED)),
        feasible_branches=int(feasible.sum()),
        infeasible_branches=int(proved.sum()),
        open_branches=int((~feasible & ~proved).sum()),
        least_agreement=float(agreement.min()) if agreement.size else 0.0,
    )


@dataclass(frozen=True)
class _Hard:
    """Best hard-roofline value of a group, over all its branches, and the bound."""

    value: float
    bound: float
    branch: int


def _search_hard(
    groups: list[_Group], ended: list[_Ended], progress: Progress
) -> list[_Hard | None]:
    """The hard roofline: branches whose bound does not rule them out, solved at a large exponent."""
    rows = []
    for number, end in enumerate(ended):
        if end.best is None or groups[number].candidate is None:
            continue
        reached = np.min(np.where(end.solved, end.lanes.hard_value, np.inf))
        bound = np.max(end.lanes.hard_bound, axis=1)
        open_branches = (bound <= reached) & np.isfinite(end.bound)
        rows += [(number, branch) for branch in np.flatnonzero(open_branches)]
    if not rows:
        return [None] * len(groups)
    branches = stack([groups[number].branches[branch][1] for number, branch in rows])
    starts = np.stack([ended[n].lanes.x[b, ended[n].best_start[b]] for n, b in rows])
    outcome = _solve(branches, starts, HARD_EXPONENT, "hard roofline", progress, explore=False)
    solved = _solved(outcome)
    results: list[_Hard | None] = []
    for number, end in enumerate(ended):
        mine = [row for row, (group, _) in enumerate(rows) if group == number]
        if not mine:
            results.append(None)
            continue
        value = np.where(end.solved, end.lanes.hard_value, np.inf).min(axis=1)
        bound = np.where(np.isinf(end.bound), np.inf, end.lanes.hard_bound.max(axis=1))
        for row in mine:
            branch = rows[row][1]
            bound[branch] = max(bound[branch], outcome.hard_bound[row])
            if solved[row]:
                value[branch] = min(value[branch], outcome.hard_value[row])
        best = int(np.argmin(value))
        results.append(_Hard(float(value[best]), float(bound.min()), best))
    return results


@dataclass(frozen=True)
class _Built:
    choice: Choice
    branch: Branch
    x: np.ndarray
    value: float


def _search_buildable(
    groups: list[_Group], ended: list[_Ended], study: Study, progress: Progress
) -> list[_Built | None]:
    """Round memory, then SMs, ports and batches, and solve the rest again for each neighbour."""
    offered = {entry: offered_gb(entry) for entry in study.technology.memory}
    memory_of = {
        name: entries["memory"] for name, (entries, _) in _technologies(study).items()
    }
    rows: list[tuple[int, Choice, Branch, np.ndarray]] = []
    for number, (group, end) in enumerate(zip(groups, ended, strict=True)):
        if group.candidate is None or end.best is None:
            continue
        value = np.where(end.solved, end.lanes.value, np.inf).min(axis=1)
        for branch in np.argsort(value)[:LATTICE_BRANCHES]:
            if not np.isfinite(value[branch]):
                continue
            choice, problem = group.branches[branch]
            x = end.lanes.x[branch, end.best_start[branch]]
            relaxed = dict(zip(VARIABLES, np.exp(x), strict=True))
            for held in memory_choices(
                relaxed, choice.dies_per_package, offered[memory_of[choice.technology]]
            ):
                rows.append((number, choice, hold(problem, held), x))
    first = _solve_rows(rows, "buildable memory", progress)
    second: list[tuple[int, Choice, Branch, np.ndarray]] = []
    for number in sorted({row[0] for row in rows}):
        mine = [i for i, row in enumerate(rows) if row[0] == number and np.isfinite(first[0][i])]
        for i in sorted(mine, key=lambda i: first[0][i])[:LATTICE_MEMORIES]:
            _, choice, branch, _ = rows[i]
            x = first[1][i]
            relaxed = dict(zip(VARIABLES, np.exp(x), strict=True))
            idle = frozenset(
                name for name, free in zip(VARIABLES, branch.free, strict=True) if not free
            )
            port = float(branch.technology.interconnect.port_gb_s)
            for held in whole_choices(relaxed, choice.dies_per_package, port, idle):
                second.append((number, choice, hold(branch, held), x))
    values, points = _solve_rows(second, "buildable", progress)
    built: list[_Built | None] = [None] * len(groups)
    for i in np.argsort(values):
        number, choice, branch, _ = second[i]
        if built[number] is not None or not np.isfinite(values[i]):
            continue
        if fits_on_edges(design_at(points[i], branch), branch.technology):
            built[number] = _Built(choice, branch, points[i], float(values[i]))
    return built


def _solve_rows(
    rows: list[tuple[int, Choice, Branch, np.ndarray]], stage: str, progress: Progress
) -> tuple[np.ndarray, np.ndarray]:
    """Value (infinite if infeasible) and point of each row."""
    if not rows:
        return np.zeros(0), np.zeros((0, len(VARIABLES)))
    branches = stack([row[2] for row in rows])
    starts = np.stack([row[3] for row in rows])
    outcome = _solve(branches, starts, _exponent(rows[0][2]), stage, progress, explore=False)
    return np.where(_solved(outcome), outcome.value, np.inf), outcome.x


def _search_shortfalls(
    groups: list[_Group], ended: list[_Ended], progress: Progress
) -> dict[int, tuple[Shortfall, ...]]:
    """For groups without a feasible branch: how far each limit of the study can be pushed alone."""
    rows = [
        (number, limit, push(branch, limit))
        for number, (group, end) in enumerate(zip(groups, ended, strict=True))
        if end.best is None
        for limit in STUDY_LIMITS
        for _, branch in group.branches
        if bool(branch.applies[LIMIT_NAMES.index(limit)])
    ]
    found: dict[int, list[Shortfall]] = {
        number: [] for number, end in enumerate(ended) if end.best is None
    }
    if not rows:
        return {number: tuple(items) for number, items in found.items()}
    lower, upper = (np.asarray(side) for side in rows[0][2].box)
    starts = np.broadcast_to((lower + upper) / 2, (len(rows), len(VARIABLES)))
    outcome = _solve(
        stack([row[2] for row in rows]), starts, _exponent(rows[0][2]), "infeasible", progress
    )
    reach = np.where(_solved(outcome), outcome.value, np.inf)
    for number, limit in dict.fromkeys((row[0], row[1]) for row in rows):
        mine = [i for i, row in enumerate(rows) if row[:2] == (number, limit)]
        least = float(np.min(reach[mine]))
        branch = rows[mine[0]][2]
        allowed = {
            "die_area_max": float(branch.die_area_max_mm2),
            "ttft": float(branch.pools.limit_ms[0]),
            "tbt": float(branch.pools.limit_ms[1]),
        }[limit]
        unit = LIMITS[LIMIT_NAMES.index(limit)].unit
        reachable = allowed * float(np.exp(least)) if np.isfinite(least) else None
        found[number].append(Shortfall(limit, unit, allowed, reachable))
    return {number: tuple(items) for number, items in found.items()}


@eqx.filter_jit
def _assess_lanes(branches: Branch, points, prompt_tokens) -> tuple[Metrics, jax.Array]:
    """Metrics of many points, and their cost per token at half load."""

    def one(branch: Branch, x, prompt) -> tuple[Metrics, jax.Array]:
        named = values_at(x, branch)

        def metrics(tree: Technology) -> Metrics:
            exponent = tree.execution.overlap_exponent
            return assess(
                branch.pools,
                jnp.stack([named["batch_prefill"], named["batch_decode"]]),
                jnp.stack([named["clock_prefill_ghz"], named["clock_decode_ghz"]]),
                SoftRoof(jnp.broadcast_to(exponent, (2,))),
                design_at(x, branch),
                tree,
                prompt,
                branch.die_area_max_mm2,
            )

        half = eqx.tree_at(
            lambda tree: tree.prices.load_factor, branch.technology, jnp.asarray(0.5)
        )
        return metrics(branch.technology), metrics(half).usd_per_token

    return jax.vmap(one)(branches, points, prompt_tokens)


@eqx.filter_jit
def _elasticity_lanes(branches: Branch, points, multipliers) -> Technology:
    def one(branch: Branch, x, multiplier) -> Technology:
        exponent = branch.technology.execution.overlap_exponent
        return technology_elasticities(branch, x, multiplier, exponent)

    return jax.vmap(one)(branches, points, multipliers)


def _results(
    study: Study,
    workloads: list[Workload],
    groups: list[_Group],
    ended: list[_Ended],
    hard: list[_Hard | None],
    buildable: list[_Built | None],
    shortfalls: dict[int, tuple[Shortfall, ...]],
) -> tuple[WorkloadResult, ...]:
    feasible = [number for number, end in enumerate(ended) if end.best is not None]
    relaxed = {
        number: _Built(
            *groups[number].branches[ended[number].best or 0],
            x=ended[number].at_best(ended[number].lanes.x),
            value=float(ended[number].at_best(ended[number].lanes.value)),
        )
        for number in feasible
    }
    built = {number: item for number, item in enumerate(buildable) if item is not None}
    runs = _runs(groups, workloads, [*relaxed.items(), *built.items()])
    relaxed_runs = dict(zip(relaxed, runs, strict=False))
    built_runs = dict(zip(built, runs[len(relaxed) :], strict=True))
    elasticities = _elasticities(relaxed, ended)

    def certified(number: int) -> Certified:
        return Certified(
            usd_per_million(relaxed[number].value), usd_per_million(ended[number].bound.min())
        )

    def optimum(number: int) -> Optimum:
        end, soft, other = ended[number], certified(number), hard[number]
        assert other is not None
        residual = float(end.at_best(end.lanes.residual))
        shown = soft.gap <= GAP_SHOWN and residual <= CONVERGED
        multipliers = end.at_best(end.lanes.multipliers)
        applies = np.asarray(relaxed[number].branch.applies)
        bound = Buildable(
            built_runs[number],
            usd_per_million(built[number].value),
            usd_per_million(built[number].value) / soft.lower_bound - 1.0,
        ) if number in built else None
        return Optimum(
            name=groups[number].name,
            run=relaxed_runs[number],
            soft=soft,
            hard=Certified(usd_per_million(other.value), usd_per_million(other.bound)),
            hard_run_choice=groups[number].branches[other.branch][0],
            kkt_residual=residual,
            multipliers={
                name: float(value) if value > NEGLIGIBLE else 0.0
                for name, value, on in zip(LIMIT_NAMES, multipliers, applies, strict=True)
                if on
            },
            sensitivities=elasticities[number] if shown else {},
            at_box=_at_box(relaxed[number]),
            starts=_starts(end),
            buildable=bound,
        )

    results = []
    for index, workload in enumerate(workloads):
        mine = [number for number, group in enumerate(groups) if group.workload == index]
        results.append(
            WorkloadResult(
                name=study.workloads[index].name,
                workload=workload,
                optima=tuple(
                    optimum(n) for n in mine if n in relaxed and groups[n].candidate is not None
                ),
                baselines=tuple(
                    Baseline(groups[n].name, relaxed_runs[n], certified(n))
                    for n in mine
                    if n in relaxed and groups[n].candidate is None
                ),
                infeasible=tuple(
                    Infeasible(groups[n].name, shortfalls[n], _starts(ended[n]))
                    for n in mine
                    if n in shortfalls
                ),
            )
        )
    return tuple(results)


def _runs(
    groups: list[_Group], workloads: list[Workload], items: list[tuple[int, _Built]]
) -> list[Run]:
    if not items:
        return []
    branches = stack([item.branch for _, item in items])
    points = np.stack([item.x for _, item in items])
    prompts = np.array(
        [float(workloads[groups[n].workload].traffic.prompt_tokens) for n, _ in items]
    )
    metrics, half = jax.device_get(_assess_lanes(branches, points, prompts))
    runs = []
    for row, (_, item) in enumerate(items):
        logs = np.where(item.branch.free, item.x, item.branch.fixed)
        runs.append(
            Run(
                choice=item.choice,
                values=dict(zip(VARIABLES, map(float, np.exp(logs)), strict=True)),
                metrics=jax.tree.map(lambda leaf, row=row: leaf[row], metrics),
                usd_per_million_tokens_half_load=float(1e6 * half[row]),
            )
        )
    return runs


def _elasticities(
    relaxed: dict[int, _Built], ended: list[_Ended]
) -> dict[int, dict[str, float]]:
    if not relaxed:
        return {}
    branches = stack([item.branch for item in relaxed.values()])
    points = np.stack([item.x for item in relaxed.values()])
    multipliers = np.stack([ended[n].at_best(ended[n].lanes.multipliers) for n in relaxed])
    table = jax.device_get(_elasticity_lanes(branches, points, multipliers))
    return {
        number: by_name(jax.tree.map(lambda leaf, row=row: leaf[row], table))
        for row, number in enumerate(relaxed)
    }


def _at_box(item: _Built) -> dict[str, str]:
    """Free variables at a bound of the search box, with the reason where nature sets it."""
    lower, upper = (np.asarray(side) for side in item.branch.box)
    reached = {}
    for i, name in enumerate(VARIABLES):
        if not item.branch.free[i]:
            continue
        for side, distance in (("lower", item.x[i] - lower[i]), ("upper", upper[i] - item.x[i])):
            if distance < NEGLIGIBLE:
                reason = PHYSICAL.get((name, side))
                reached[name] = reason if reason else f"{side} bound of the search box"
    return reached
