"""Why nothing is feasible: how far each limit can be pushed with the others kept."""

from collections.abc import Sequence

import numpy as np

from .branches import push, stack
from .ended import Ended, solved
from .groups import Group
from .result import Shortfall
from .solving import Progress, solve
from .variants import allowed


def search_shortfalls(
    groups: Sequence[Group], ended: Sequence[Ended], progress: Progress, *, physical: bool = False
) -> dict[int, tuple[Shortfall, ...]]:
    """Number of a group without a feasible branch -> what each of its limits would have to be.

    The use of one limit at a time is minimised over all branches subject to every other limit; the
    problems are convex, so the least use found is the smallest relaxation that helps.

    **Arguments:**

    - `physical`: whether to push physics and market as well as limits of the study.
    """
    stuck = [n for n, end in enumerate(ended) if end.best is None]
    rows = [
        (n, limit, push(branch, groups[n].layout, limit.name))
        for n in stuck
        for number, limit in enumerate(groups[n].layout.limits)
        if limit.set_by_study or physical
        for _, branch in groups[n].branches
        if branch.applies[number]
    ]
    if not rows:
        return {n: () for n in stuck}
    branches = stack([branch for _, _, branch in rows])
    outcome = solve(branches, branches.middle, "what would help", progress)
    least_log = np.where(solved(outcome), outcome.value, np.inf)
    found: dict[int, list[Shortfall]] = {n: [] for n in stuck}
    for n, limit in dict.fromkeys((n, limit) for n, limit, _ in rows):
        mine = [row for row, key in enumerate(rows) if key[:2] == (n, limit)]
        least = float(least_log[mine].min())
        most = allowed(rows[mine[0]][2], limit.name) if limit.set_by_study else None
        relaxation = float(np.exp(least)) if np.isfinite(least) else None
        found[n].append(
            Shortfall(
                limit=limit.name,
                meaning=limit.meaning,
                unit=limit.unit,
                allowed=most,
                reachable=most * relaxation if most and relaxation else None,
                relaxation=relaxation,
            )
        )
    return {n: tuple(items) for n, items in found.items()}
