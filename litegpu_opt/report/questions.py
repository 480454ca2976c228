"""Tables of the answers beside the optima. Works on the dictionaries of `questions_json`."""

import math
from collections.abc import Mapping
from typing import Any

from .document import NOT_APPLICABLE, Block, Table, figure, percent


Result = Mapping[str, Any]


def question_blocks(workload: Result) -> list[Block]:
    """Everything that was asked of a workload beside its optima."""
    return [
        *(_specialised(workload["specialised"]) if workload["specialised"] else ()),
        *(_front(front, workload["objective_text"]) for front in workload["fronts"]),
        *map(_break_even, workload["break_evens"]),
        *(_tornado(name, bars) for name, bars in workload["tornados"].items()),
    ]


def _specialised(pairs: list[Result]) -> list[Block]:
    rows = [
        (
            pair["name"],
            figure(pair["objective"]),
            percent(pair["gain"]),
            *(
                f"{figure(half['die_area_mm2'])} mm2, {figure(half['design']['sm_count'])} SMs at "
                f"{figure(half['design']['clock_ghz'])} GHz, "
                f"{figure(half['design']['memory_gb'])} GB, tp {half['deployment'][f'tp_{phase}']}"
                for phase, half in (("prefill", pair["prefill"]), ("decode", pair["decode"]))
            ),
        )
        for pair in pairs
    ]
    title = "A design for each phase, each with a design cost of its own, against one for both"
    columns = ("", "objective", "gain", "for prefill", "for decode")
    return [Table(columns, tuple(rows), title, numeric=False)]


def _front(front: Result, objective: str) -> Table:
    rows = [
        (
            figure(point["limit"]),
            figure(point["objective"]) if point["run"] else "nothing feasible",
            figure(point["lower_bound"]),
            *(_design(point["run"]) if point["run"] else (NOT_APPLICABLE,) * 3),
        )
        for point in front["points"]
    ]
    columns = (
        f"{front['over']}, {front['unit']}",
        objective,
        "lower bound",
        "die area, mm2",
        "SMs",
        "tp, prefill / decode",
    )
    return Table(columns, tuple(rows), f"Front of {front['name']} over {front['over']}")


def _design(run: Result) -> tuple[str, str, str]:
    deployment = run["deployment"]
    degrees = (deployment["tp_prefill"], deployment["tp_decode"])
    return (
        figure(run["die_area_mm2"]),
        figure(run["design"]["sm_count"]),
        " / ".join(NOT_APPLICABLE if degree is None else str(degree) for degree in degrees),
    )


def _break_even(found: Result) -> str:
    first, second = found["sides"]
    low, high = found["values"][0], found["values"][-1]
    where = f"{found['parameter']} from {figure(low)} to {figure(high)}"
    ratios = list(filter(_known, found["ratios"]))
    if found["crossings"]:
        values = " and ".join(figure(value) for value in found["crossings"])
        sides = f"Break-even of {first} and {second}"
        return f"{sides}: {found['parameter']} = {values} (searched: {where})."
    if not ratios:
        return f"Break-even of {first} and {second}: not feasible for {where}."
    side = "cheaper" if ratios[0] < 1.0 else "dearer"
    return (
        f"Break-even of {first} and {second}: none in this range, {where}; {first} is {side} "
        f"throughout, x{figure(min(ratios))} to x{figure(max(ratios))}."
    )


def _known(value: float | None) -> bool:
    """Whether a number is one: neither infeasible nor out of the question."""
    return value is not None and math.isfinite(value)


def _tornado(name: str, bars: list[Result]) -> Table:
    def change(bar: Result, key: str) -> str:
        if not _known(bar[key]):
            return NOT_APPLICABLE
        return f"{100.0 * (bar[key] / bar['objective'] - 1.0):+.1f} %"

    rows = [
        (
            bar["name"],
            f"{figure(bar['low'])} to {figure(bar['high'])}",
            change(bar, "at_low"),
            change(bar, "at_high"),
            change(bar, "at_minus"),
            change(bar, "at_plus"),
            f"{10.0 * bar['elasticity']:+.1f} %",
        )
        for bar in bars
    ]
    columns = ("assumption", "range", "at low", "at high", "-10 %", "+10 %", "10 % by the slope")
    title = f"Tornado of {name}: the optimum searched again, change of the objective"
    return Table(columns, tuple(rows), title)
