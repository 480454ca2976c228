"""Fronts: the best value of the objective as one limit of the study moves.

Every point of a front is a search of its own over all branches, with its own bound, so that nothing
lies below the front by more than the gaps say.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..space import OBJECTIVES
from ..study import Study, StudyFront
from .ended import Ended
from .groups import Group
from .problem import log_objectives
from .search import search, solve_parts
from .solved import Solved, best_of
from .solving import Progress
from .variants import with_limit, with_objective


EDGE = 1e-4
"""The least value of an objective is loosened by this, so that its point is inside."""


@dataclass(frozen=True)
class SearchedPoint:
    """One point of a front."""

    limit: float
    """Of the metric along the front, in its own unit."""
    item: Solved | None
    """`None` where nothing is feasible."""
    lower_bound: float
    """Nothing with this limit is below it, in logarithms; infinite where proved infeasible."""


@dataclass(frozen=True)
class SearchedFront:
    """How the best value of a candidate depends on one limit."""

    group: int
    over: str
    points: tuple[SearchedPoint, ...]


def search_fronts(
    groups: Sequence[Group], ended: Sequence[Ended], study: Study, progress: Progress
) -> list[SearchedFront]:
    """All fronts that a study asks for."""
    asked = [
        (n, front)
        for front in study.fronts
        for n, group in enumerate(groups)
        if group.candidate is not None
        and ended[n].best is not None
        and front.concerns(study.workloads[group.workload].name, group.name)
    ]
    limits = _limits(groups, ended, asked, study, progress)
    variants = [
        with_limit(groups[n], front.over, limit)
        for (n, front), row in zip(asked, limits, strict=True)
        for limit in row
    ]
    if not variants:
        return []
    found = iter(zip(variants, _search(variants, study, progress), strict=True))
    return [
        SearchedFront(n, front.over, tuple(_point(limit, *next(found)) for limit in row))
        for (n, front), row in zip(asked, limits, strict=True)
    ]


def _limits(
    groups: Sequence[Group],
    ended: Sequence[Ended],
    asked: Sequence[tuple[int, StudyFront]],
    study: Study,
    progress: Progress,
) -> list[np.ndarray]:
    """Limits along every front, even in logarithms: as the study says, or from the least that an
    objective can be to what it is at the optimum.
    """
    open_ended = [(n, front) for n, front in asked if front.ends is None]
    least = iter(
        end.least
        for end in _search(
            [with_objective(groups[n], {front.over: 1.0}) for n, front in open_ended],
            study,
            progress,
        )
    )
    rows = []
    for n, front in asked:
        if front.ends is not None:
            rows.append(np.geomspace(*front.ends, front.points))
        else:  # the least itself is on the edge of what is feasible
            ends = next(least) + EDGE, _log_objective(groups[n], ended[n], front.over)
            rows.append(np.exp(np.linspace(*ends, front.points)))
    return rows


def _search(variants: Sequence[Group], study: Study, progress: Progress) -> list[Ended]:
    if not variants:
        return []
    return search(variants, solve_parts(variants, progress), study, progress)


def _log_objective(group: Group, end: Ended, name: str) -> float:
    """Logarithm of an objective at the optimum of a group."""
    best = best_of(group, end)
    assert best is not None
    return float(log_objectives(best.x, best.branch)[list(OBJECTIVES).index(name)])


def _point(limit: float, group: Group, end: Ended) -> SearchedPoint:
    return SearchedPoint(float(limit), best_of(group, end), float(end.bound.min()))
