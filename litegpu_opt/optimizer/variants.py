"""The same group asked again: with another technology value, another limit, fewer branches."""

from collections.abc import Mapping
from dataclasses import replace

import equinox as eqx
import numpy as np

from ..limits import Caps
from ..machine.technology import Technology
from ..space import OBJECTIVES
from ..workload.phases import PHASES
from .branches import Task
from .ended import Ended
from .groups import Group
from .problem import Branch


LATENCIES = {"ttft": "prefill", "tbt": "decode"}
"""Latency limit -> the phase whose pool has it."""
DESIGN_CAPS = {
    "die_area_max": "die_area_max_mm2",
    "tdp_max": "tdp_max_w",
    "unit_cost_max": "unit_cost_max_usd",
}
"""Limit of the study's own on a design -> field of `Caps`."""


def narrowed(group: Group, end: Ended, count: int) -> Group:
    """The group with its best branches by their bounds alone."""
    rows = np.argsort(end.bound, kind="stable")[:count]
    return replace(group, branches=[group.branches[row] for row in rows])


def revalued(group: Group, values: Mapping[str, float]) -> Group:
    """The group with technology leaves `"table.field"` at other values."""
    changed: dict[int, Technology] = {}

    def other(branch: Branch) -> Branch:
        tree = branch.technology
        if id(tree) not in changed:
            changed[id(tree)] = _with_values(tree, values)
        return replace(branch, technology=changed[id(tree)])

    return replace(group, branches=[(choice, other(branch)) for choice, branch in group.branches])


def _with_values(technology: Technology, values: Mapping[str, float]) -> Technology:
    for name, value in values.items():
        table, field = name.split(".")
        technology = eqx.tree_at(
            lambda t, table=table, field=field: getattr(getattr(t, table), field),
            technology,
            np.asarray(value, float),
        )
    return technology


def with_objective(group: Group, exponents: Mapping[str, float]) -> Group:
    """The group with another objective."""
    task = Task(group.task.workloads, exponents)
    weights = group.layout.of_objectives(exponents)
    branches = [(choice, replace(branch, objective=weights)) for choice, branch in group.branches]
    return replace(group, task=task, branches=branches)


def with_limit(group: Group, limit: str, value: float) -> Group:
    """The group with one limit of the study at another value, in the limit's own unit.

    **Arguments:**

    - `limit`: a latency, a limit on the design, or an objective that is held.
    """
    applies = group.layout.limit_names.index(f"{limit}_max" if limit in OBJECTIVES else limit)
    pools: dict[int, object] = {}
    caps: dict[int, Caps] = {}

    def other(branch: Branch) -> Branch:
        on = np.array(branch.applies)
        on[applies] = True
        if limit in LATENCIES:
            row = PHASES.index(LATENCIES[limit])
            key = id(branch.pools)
            if key not in pools:
                limit_ms = np.array(branch.pools.limit_ms)
                limit_ms[row] = value
                pools[key] = eqx.tree_at(lambda p: p.limit_ms, branch.pools, limit_ms)
            return replace(branch, applies=on, pools=pools[key])
        key = id(branch.caps)
        if key not in caps:
            caps[key] = _with_cap(branch.caps, limit, value)
        return replace(branch, applies=on, caps=caps[key])

    return replace(group, branches=[(choice, other(branch)) for choice, branch in group.branches])


def allowed(branch: Branch, limit: str) -> float:
    """Value of a limit of the study on a branch, by its name in `limits.LIMITS`."""
    if limit in LATENCIES:
        return float(branch.pools.limit_ms[PHASES.index(LATENCIES[limit])])
    if limit in DESIGN_CAPS:
        return float(getattr(branch.caps, DESIGN_CAPS[limit]))
    return float(branch.caps.objectives[list(OBJECTIVES).index(limit.removesuffix("_max"))])


def _with_cap(caps: Caps, limit: str, value: float) -> Caps:
    if limit in DESIGN_CAPS:
        field = DESIGN_CAPS[limit]
        return eqx.tree_at(lambda c: getattr(c, field), caps, np.asarray(value, float))
    objectives = np.array(caps.objectives)
    objectives[list(OBJECTIVES).index(limit)] = value
    return eqx.tree_at(lambda c: c.objectives, caps, objectives)
