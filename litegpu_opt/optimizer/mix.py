"""One design for several workloads at once, each with a share of the tokens.

    min_x sum_w share_w f_w(x)  >=  sum_w share_w min_x f_w(x)

The design is common; every workload keeps its own pools, batches, clocks and limits. The bounds of
the branches of each workload alone, which are known already, rule most combinations out.
"""

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import numpy as np

from ..numerics import stack_padded
from ..study import Study, StudyMix
from ..workload.pool import Pool
from .branches import Choice, Task, with_aspect
from .ended import Ended
from .experts import with_all_batches
from .groups import Group
from .lattice import Built, search_buildable
from .layout import SINGLE
from .problem import Branch, log_objectives
from .search import divide, search_bounded
from .solved import Solved, best_of
from .solving import Progress


MOST = 2048
"""Combinations that are searched, the best by their bounds; the bound of the next one holds for all
the others."""

Outline = tuple[float, int, str]
"""Aspect ratio, dies per package and technology."""


@dataclass(frozen=True)
class _Alone:
    """A branch of one workload, and its share of the mix."""

    choice: Choice
    branch: Branch
    least: float
    """Share x bound: no design serves the workload in this branch for less."""
    share: float


Combination = tuple[_Alone, ...]
"""One branch for each workload, with the same outline."""


@dataclass(frozen=True)
class SearchedMix:
    """The best common design of a candidate."""

    groups: tuple[int, ...]
    """Of the workloads alone."""
    item: Solved
    """Its value and bound are those of the whole mix, in logarithms."""
    runs: tuple[Solved, ...]
    """The same design on each workload, with the value there."""
    built: Built | None
    built_runs: tuple[Solved, ...]


def search_mixes(
    groups: Sequence[Group], ended: Sequence[Ended], study: Study, progress: Progress
) -> list[tuple[StudyMix, str, SearchedMix | None]]:
    """Every mix that a study asks for, with each candidate; `None` where nothing is feasible."""
    numbers = {(g.workload, g.name): n for n, g in enumerate(groups) if g.candidate is not None}
    workloads = {row.name: number for number, row in enumerate(study.workloads)}
    return [
        (
            mix,
            candidate.name,
            _search(
                mix,
                tuple(numbers[workloads[name], candidate.name] for name in mix.workloads),
                groups,
                ended,
                study,
                progress,
            ),
        )
        for mix in study.mixes
        for candidate in study.candidates
    ]


def _search(
    mix: StudyMix,
    numbers: tuple[int, ...],
    groups: Sequence[Group],
    ended: Sequence[Ended],
    study: Study,
    progress: Progress,
) -> SearchedMix | None:
    own = [groups[n] for n in numbers]
    rows = [
        rows_by_outline(groups[n], ended[n], share)
        for n, share in zip(numbers, mix.parts_of_one, strict=True)
    ]
    outlines = [outline for outline in rows[0] if all(outline in other for other in rows)]
    of_outlines = [[row[outline] for row in rows] for outline in outlines]
    labels = dict(zip(mix.workloads, (group.task.workloads[""] for group in own), strict=True))
    task = Task(labels, study.objective)

    def searched(combinations: Sequence[Combination]) -> tuple[Group, Ended]:
        group = combinations_as_group(task, own[0], combinations)
        bounds = np.log([_least(combination) for combination in combinations])
        unknown = np.full(len(bounds), -np.inf)
        [end] = search_bounded([group], [bounds], [unknown], study, progress)
        return group, end

    # the best combination of each outline gives an incumbent; then all that could be better
    first = [combination for of_one in of_outlines for combination in _ascending(of_one, 1)]
    if not first:
        return None
    _, end = searched(first)
    candidates = heapq.merge(*(_ascending(of_one, MOST + 1) for of_one in of_outlines), key=_least)
    possible = list(
        itertools.takewhile(
            lambda combination: math.log(_least(combination)) < end.least,
            itertools.islice(candidates, MOST + 1),
        )
    )
    rest = math.log(_least(possible[MOST])) if len(possible) > MOST else math.inf
    group, end = searched(possible[:MOST])
    [group], [end] = divide([group], [end], study, progress)
    item = best_of(group, end)
    if item is None:
        return None
    item = replace(item, bound=min(float(end.bound.min()), rest))
    built = search_buildable([group], [end], study, progress).get(0)
    return SearchedMix(
        groups=numbers,
        item=item,
        runs=_apart(item, own),
        built=built and replace(built, lattice_bound=min(built.lattice_bound, rest)),
        built_runs=_apart(built.item, own) if built else (),
    )


def rows_by_outline(group: Group, end: Ended, share: float) -> dict[Outline, list[_Alone]]:
    """The branches of a workload alone that are not proved infeasible, best first."""
    rows: dict[Outline, list[_Alone]] = {}
    for row in np.argsort(end.bound, kind="stable"):
        if np.isfinite(end.bound[row]):
            choice, branch = group.branches[row]
            outline = (choice.aspect_ratio, choice.dies_per_package, choice.technology)
            alone = _Alone(choice, branch, share * math.exp(end.bound[row]), share)
            rows.setdefault(outline, []).append(alone)
    return rows


def _least(combination: Combination) -> float:
    """No design serves the mix in this combination for less."""
    return sum(alone.least for alone in combination)


def _ascending(rows: Sequence[Sequence[_Alone]], most: int) -> Iterator[Combination]:
    """Combinations of one outline by their bounds, at most so many of them.

    From each, the next ones take the next branch of one workload.
    """
    start = tuple(0 for _ in rows)
    at = lambda places: tuple(row[i] for row, i in zip(rows, places, strict=True))  # noqa: E731
    queue: list[tuple[float, tuple[int, ...]]] = [(_least(at(start)), start)]
    seen = {start}
    for _ in range(most):
        if not queue:
            return
        _, places = heapq.heappop(queue)
        yield at(places)
        for workload, row in enumerate(rows):
            following = tuple(i + (n == workload) for n, i in enumerate(places))
            if following[workload] < len(row) and following not in seen:
                seen.add(following)
                heapq.heappush(queue, (_least(at(following)), following))


def combinations_as_group(task: Task, first: Group, combinations: Sequence[Combination]) -> Group:
    """The combinations as branches with the variables and limits of all workloads."""
    pools: dict[tuple[int, ...], Pool] = {}
    branches = []
    for combination in combinations:
        key = tuple(id(alone.branch.pools) for alone in combination)
        if key not in pools:  # one for all, so that `stack` recognises it
            pools[key] = _joined_pools(combination)
        choices = [alone.choice for alone in combination]
        choice = replace(
            choices[0],
            pairs=sum((choice.pairs for choice in choices), ()),
            ranges=sum((choice.ranges for choice in choices), ()),
            split=sum((choice.split for choice in choices), ()),
        )
        branches.append((choice, _joined(combination, task, pools[key])))
    return replace(first, task=task, branches=branches)


def _joined_pools(combination: Combination) -> Pool:
    """The pools of all workloads on one axis; each makes its share of the tokens."""
    rows = []
    for alone in combination:
        pools = alone.branch.pools
        made = alone.share * np.asarray(pools.executions_per_token)
        pools = eqx.tree_at(lambda p: p.executions_per_token, pools, made)
        rows += [jax.tree.map(lambda leaf, n=n: leaf[n], pools) for n in range(len(made))]
    return stack_padded(rows, np)


def _joined(combination: Combination, task: Task, pools: Pool) -> Branch:
    """What workloads share is that of the first; the rest comes from each."""
    layout, first = task.layout, combination[0].branch

    def joined(names: Sequence[str], of_one: Sequence[str], field: str) -> np.ndarray:
        origins = [layout.origin(name) for name in names]
        return np.array(
            [
                getattr(combination[workload].branch, field)[of_one.index(name)]
                for workload, name in origins
            ]
        )

    return replace(
        first,
        pools=pools,
        objective=layout.of_objectives(task.objective),
        tilt=np.zeros(len(layout.variables)),
        applies=joined(layout.limit_names, SINGLE.limit_names, "applies"),
        **{
            field: joined(layout.variables, SINGLE.variables, field)
            for field in ("free", "fixed", "lower", "upper")
        },
    )


def _apart(item: Solved, own: Sequence[Group]) -> tuple[Solved, ...]:
    """A common design on each workload alone."""
    apart = []
    for number, group in enumerate(own):
        pair = (item.choice.pairs[number],)
        branch = next(
            branch
            for choice, branch in group.branches
            if choice.pairs == pair
            and choice.dies_per_package == item.choice.dies_per_package
            and choice.technology == item.choice.technology
        )
        branch = with_aspect(with_all_batches(branch), item.choice.aspect_ratio)
        rows = [
            item.layout.variables.index(item.layout.name_for(number, name))
            for name in SINGLE.variables
        ]
        x = item.x[rows]
        free, fixed = item.branch.free[rows], item.branch.fixed[rows]
        branch = replace(branch, free=free, fixed=fixed)
        values = log_objectives(x, branch)
        value = float(
            np.asarray(values) @ SINGLE.of_objectives(group.task.objective)[: len(values)]
        )
        choice = replace(item.choice, pairs=pair)
        apart.append(Solved(choice, branch, SINGLE, x, value, -math.inf))
    return tuple(apart)
