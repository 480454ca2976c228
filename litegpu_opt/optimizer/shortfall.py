"""Why nothing is feasible: how far each limit of the study can be pushed with the others kept."""

from collections.abc import Sequence

import numpy as np

from ..limits import LIMIT_NAMES, LIMITS
from .branches import push, stack
from .groups import Ended, Group, Progress, solve, solved
from .problem import BOX, VARIABLES, Branch
from .result import Shortfall


def search_shortfalls(
    groups: Sequence[Group], ended: Sequence[Ended], progress: Progress
) -> dict[int, tuple[Shortfall, ...]]:
    """Number of a group without a feasible branch -> what each of its limits would have to be.

    The use of one limit at a time is minimised over all branches subject to every other limit; the
    problems are convex, so the least use found is the smallest relaxation that helps.
    """
    stuck = [n for n, end in enumerate(ended) if end.best is None]
    rows = [
        (n, limit, push(branch, limit))
        for n in stuck
        for limit in (item.name for item in LIMITS if item.set_by_study)
        for _, branch in groups[n].branches
        if bool(branch.applies[LIMIT_NAMES.index(limit)])
    ]
    if not rows:
        return {n: () for n in stuck}
    lower, upper = np.log(list(BOX.values())).T
    outcome = solve(
        stack([branch for _, _, branch in rows]),
        np.broadcast_to((lower + upper) / 2.0, (len(rows), len(VARIABLES))),
        "what would help",
        progress,
    )
    least_log = np.where(solved(outcome), outcome.value, np.inf)
    found: dict[int, list[Shortfall]] = {n: [] for n in stuck}
    for n, limit in dict.fromkeys((n, limit) for n, limit, _ in rows):
        mine = [row for row, key in enumerate(rows) if key[:2] == (n, limit)]
        least = float(least_log[mine].min())
        allowed = _allowed(limit, rows[mine[0]][2])
        found[n].append(
            Shortfall(
                limit=limit,
                unit=LIMITS[LIMIT_NAMES.index(limit)].unit,
                allowed=allowed,
                reachable=allowed * float(np.exp(least)) if np.isfinite(least) else None,
            )
        )
    return {n: tuple(items) for n, items in found.items()}


def _allowed(limit: str, branch: Branch) -> float:
    ttft_ms, tbt_ms = branch.pools.limit_ms
    by_name = {"die_area_max": branch.die_area_max_mm2, "ttft": ttft_ms, "tbt": tbt_ms}
    return float(by_name[limit])
