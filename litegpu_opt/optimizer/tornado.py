"""Tornado: the optimum re-searched with one assumption at a time at the ends of its range.

The elasticity of an optimum is a slope. Here the design is searched again, so that the answer holds
over the whole range; at -10 % and +10 % it says how far the slope can be trusted.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..catalog import Record, provenance
from ..catalog.domains import is_allowed
from ..study import Study
from .ended import Ended
from .groups import Group, study_technologies
from .result import Bar
from .search import search, solve_parts
from .solving import Progress
from .variants import narrowed, revalued


BRANCHES = 4
"""Best branches of a group, by their bounds, that are searched again."""
STEP = 0.1
"""Relative step at which elasticities are checked."""


def search_tornados(
    groups: Sequence[Group],
    ended: Sequence[Ended],
    elasticities: Mapping[int, Mapping[str, float]],
    study: Study,
    progress: Progress,
) -> dict[int, tuple[Bar, ...]]:
    """Number of a candidate's group -> its largest assumptions, largest elasticity first.

    **Arguments:**

    - `elasticities`: of the optimum of each group, by the name of the leaf.
    """
    entries = {name: chosen for name, (chosen, _) in study_technologies(study).items()}
    rows: list[tuple[int, str, tuple[float, ...]]] = []
    variants: list[Group] = []
    for n, slopes in elasticities.items():
        group, best = groups[n], ended[n].best
        if group.candidate is None or best is None:
            continue
        chosen = entries[group.branches[best][0].technology]
        records = provenance(study.technology.overrides, **chosen)
        few = narrowed(group, ended[n], BRANCHES)
        for name in _largest(slopes, records, study.tornado):
            record = records[name]
            steps = (record.value * (1.0 - STEP), record.value * (1.0 + STEP))
            rows.append((n, name, (record.low, record.high, *steps)))
            variants += [
                revalued(few, {name: value if is_allowed(name, value) else record.value})
                for value in rows[-1][2]
            ]
    if not variants:
        return {}
    found = search(variants, solve_parts(variants, progress), study, progress)
    objectives = np.exp([end.least for end in found]).reshape(len(rows), 4)
    bars: dict[int, list[Bar]] = {n: [] for n, _, _ in rows}
    for (n, name, values), row in zip(rows, objectives, strict=True):
        at = (
            float(objective) if is_allowed(name, value) else math.nan
            for value, objective in zip(values, row, strict=True)
        )
        bars[n].append(Bar(name, *values[:2], *at))
    return {n: tuple(of_group) for n, of_group in bars.items()}


def _largest(slopes: Mapping[str, float], records: Mapping[str, Record], count: int) -> list[str]:
    """The assumptions with a range that matter most; numbers of the workload have none."""
    ranged = [name for name in slopes if name in records and records[name].low < records[name].high]
    return sorted(ranged, key=lambda name: -abs(slopes[name]))[:count]
