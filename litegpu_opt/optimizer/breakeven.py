"""Break-even: the value of an assumption at which two designs, each at its best, cost the same.

The optimal values of both are searched on a grid of the assumption, even in logarithms; where their
order changes, the grid is drawn closer until the crossing is pinned.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from ..catalog import HARDWARE_TABLES
from ..study import Study, StudyBreakEven
from .ended import Ended
from .groups import Group
from .result import BreakEven
from .search import search, solve_parts
from .solving import Progress
from .variants import narrowed, revalued


POINTS = 9
"""Values of the assumption in one round."""
ROUNDS = 4
"""Rounds: the last interval is (1/8)^4 of the range, and the crossing in it is interpolated."""
BRANCHES = 24
"""Best branches of each side, by their bounds at the study's own value, that are searched."""


def search_break_evens(
    groups: Sequence[Group], ended: Sequence[Ended], study: Study, progress: Progress
) -> list[tuple[int, BreakEven]]:
    """All break-evens that a study asks for, each with the number of its workload."""
    found = []
    for asked in study.break_evens:
        for workload, row in enumerate(study.workloads):
            sides = [_side(groups, ended, workload, name) for name in asked.between]
            pair = [side for side in sides if side is not None]
            if asked.concerns(row.name):
                both = len(pair) == len(sides)
                answer = _search(asked, pair, study, progress) if both else _infeasible(asked)
                found.append((workload, answer))
    return found


def _infeasible(asked: StudyBreakEven) -> BreakEven:
    """The answer where a side cannot serve the workload at all."""
    return BreakEven(asked.parameter, asked.between, asked.ends, (math.nan, math.nan), ())


def _side(
    groups: Sequence[Group], ended: Sequence[Ended], workload: int, name: str
) -> Group | None:
    """The best branches of a candidate or baseline on a workload, if it is feasible there."""
    own = Path(name).stem if name.endswith(".toml") else name
    for group, end in zip(groups, ended, strict=True):
        if (group.workload, group.name) == (workload, own) and end.best is not None:
            return narrowed(group, end, BRANCHES)
    return None


def _search(
    asked: StudyBreakEven, sides: Sequence[Group], study: Study, progress: Progress
) -> BreakEven:
    values = np.geomspace(*asked.ends, POINTS)
    logs = _log_ratios(asked.parameter, values, sides, study, progress)
    first = values, np.exp(logs)
    brackets = _brackets(values.tolist(), logs.tolist())
    for _ in range(ROUNDS - 1):
        closer = [np.geomspace(low, high, POINTS) for (low, high), _ in brackets]
        if not closer:
            break
        logs = _log_ratios(asked.parameter, np.concatenate(closer), sides, study, progress)
        brackets = [
            bracket
            for row, own in zip(closer, np.split(logs, len(closer)), strict=True)
            for bracket in _brackets(row.tolist(), own.tolist())
        ]
    return BreakEven(
        parameter=asked.parameter,
        sides=asked.between,
        values=tuple(map(float, first[0])),
        ratios=tuple(map(float, first[1])),
        crossings=tuple(_crossing(*bracket) for bracket in brackets),
    )


Bracket = tuple[tuple[float, float], tuple[float, float]]
"""Two values of the parameter, and the logarithm of the ratio at each, of different signs."""


def _brackets(values: Sequence[float], logs: Sequence[float]) -> list[Bracket]:
    return [
        ((low, high), (a, b))
        for (low, high), (a, b) in zip(pairwise(values), pairwise(logs), strict=True)
        if math.isfinite(a) and math.isfinite(b) and (a < 0.0) != (b < 0.0)
    ]


def _crossing(ends: tuple[float, float], logs: tuple[float, float]) -> float:
    """Root between two values, linear in logarithms."""
    share = logs[0] / (logs[0] - logs[1])
    low, high = map(math.log, ends)
    return math.exp(low + share * (high - low))


def _at(side: Group, parameter: str, value: float) -> Group:
    """A side with the parameter at a value; a chip that exists keeps its own hardware."""
    kept = side.candidate is None and parameter.partition(".")[0] in HARDWARE_TABLES
    return side if kept else revalued(side, {parameter: value})


def _log_ratios(
    parameter: str, values: np.ndarray, sides: Sequence[Group], study: Study, progress: Progress
) -> np.ndarray:
    """Logarithm of the first side's best objective over the second's, at each value."""
    variants = [_at(side, parameter, value) for side in sides for value in values]
    ended = search(variants, solve_parts(variants, progress), study, progress)
    first, second = np.split(np.array([end.least for end in ended]), 2)
    with np.errstate(invalid="ignore"):  # where neither is feasible
        return first - second
