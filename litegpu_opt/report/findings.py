"""What a result means, in sentences. Works on the dictionaries of `result_json`."""

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

from ..workload.phases import PHASES
from .document import figure, percent


NOT_MODELLED = (
    "pipeline and expert parallelism in a search (evaluate has them)",
    "queueing at an arrival rate",
    "chunked prefill in a mixed pool",
    "failures by kind and size of device (all own the same share of spares)",
    "cold-plate cost",
    "idle power of links",
    "activation memory beyond the 10 % reserve",
    "kernels on dies smaller than any measured one (their fixed times stay, in us)",
)
"""What the model leaves out and a reader might expect."""

SAME = 1e-4
"""Costs that differ by less are called equal."""

SOLVER_ERROR = Decimal("1e-6")
"""A limit that is this much (relative) above the least use found can surely be met."""

Result = Mapping[str, Any]


def findings(workload: Result) -> list[str]:
    """Sentences on one workload, the decision first."""
    optima = workload["optima"]
    if not optima:
        return []
    best = min(optima, key=lambda optimum: optimum["objective"])
    return [
        *_winner(best, optima, workload["baselines"], workload["objective_text"]),
        *(_staying_small(optimum, optima) for optimum in optima if optimum["die_area_max_mm2"]),
        *_network(optima),
        *_at_box(optima),
        *_withheld(optima),
        *_not_buildable(optima),
        *_unverified(workload["baselines"]),
        *_impossible(workload["baselines"]),
    ]


def dies(entry: Result) -> str:
    """`4 dies of 807 mm2`."""
    count = round(entry["design"]["dies_per_package"])
    noun = "die" if count == 1 else "dies"
    return f"{count} {noun} of {figure(entry['die_area_mm2'])} mm2"


def _against(entry: Result, other: Result) -> str:
    """`12 % more than reticle`."""
    change = entry["objective"] / other["objective"] - 1.0
    if abs(change) < SAME:
        return f"as much as {other['name']}"
    return f"{percent(abs(change))} {'more' if change > 0 else 'less'} than {other['name']}"


def _winner(
    best: Result, optima: list[Result], baselines: list[Result], objective: str
) -> list[str]:
    limited = [optimum for optimum in optima if optimum["die_area_max_mm2"]]
    if not limited or len(limited) == len(optima):
        verdict = "Best candidate"
    else:
        verdict = "Small dies win" if best["die_area_max_mm2"] else "Big dies win"
    cheaper = [
        baseline["name"]
        for baseline in baselines
        if baseline["feasible"] and baseline["objective"] < best["objective"] * (1.0 - SAME)
    ]
    if cheaper:
        verdict = f"No candidate beats {' or '.join(cheaper)}. Best candidate"
    sentence = (
        f"{verdict}: {best['name']}, {dies(best)}, takes {figure(best['objective'])} {objective}"
    )
    compared = [_against(best, baseline) for baseline in baselines]
    return [sentence + (f", {' and '.join(compared)}." if compared else ".")]


def _staying_small(small: Result, optima: list[Result]) -> str:
    area = small["die_area_max_mm2"]
    others = [
        other
        for other in optima
        if other["die_area_max_mm2"] is None or other["die_area_max_mm2"] > area
    ]
    worth = small["multipliers"].get("die_area_max", 0.0)
    limit = f"die at most {figure(area)} mm2"
    compared = " and ".join(_against(small, other) for other in others)
    first = f"Staying small ({small['name']}, {limit}) takes {compared}. " if others else ""
    if worth:
        return f"{first}1 % more die area for {small['name']}: -{figure(worth, 3)} %."
    return f"{first}A larger die would not help {small['name']}: its {limit} does not bind."


def _network(optima: list[Result]) -> list[str]:
    alone = [
        optimum["name"]
        for optimum in optima
        if {optimum["deployment"][f"tp_{pool}"] for pool in PHASES} <= {1, None}
    ]
    if not alone:
        return []
    return [
        f"The network is irrelevant for {', '.join(alone)}: tp = 1 throughout, so no group "
        "needs it; only the floor for host and KV traffic is paid."
    ]


def _at_box(optima: list[Result]) -> list[str]:
    reached = [
        f"{optimum['name']} {variable} ({bound})"
        for optimum in optima
        for variable, bound in optimum["at_box"].items()
    ]
    return [f"At a bound: {'; '.join(reached)}."] if reached else []


def _withheld(optima: list[Result]) -> list[str]:
    names = [optimum["name"] for optimum in optima if not optimum["sensitivities"]]
    if not names:
        return []
    return [f"Sensitivities of {', '.join(names)} are withheld: the gap is too large."]


def _not_buildable(optima: list[Result]) -> list[str]:
    return [
        f"{optimum['name']}: no buildable design among the neighbours searched."
        for optimum in optima
        if not optimum["buildable"]
    ]


def _unverified(baselines: list[Result]) -> list[str]:
    return [
        f"{baseline['name']} is unverified: no source of the accelerator was checked."
        for baseline in baselines
        if baseline["unverified"]
    ]


def _impossible(baselines: list[Result]) -> list[str]:
    return [
        f"{baseline['name']} cannot be built as described: {broken}."
        for baseline in baselines
        if (broken := violations_text(baseline, "machine"))
    ]


def violations_text(entry: Result, kind: str) -> str:
    """The limits of a kind that are violated, by how much; empty if none is."""
    return "; ".join(
        f"{row['name']} needs {figure(row['use'], 5)} {row['unit']}, has "
        f"{figure(row['limit'], 5)} {row['unit']}, short by {figure(row['shortfall'], 5)} "
        f"{row['unit']}" + (f" ({row['meaning']})" if kind == "machine" else "")
        for row in entry["violations"]
        if row["kind"] == kind
    )


def trust_text(counts: Mapping[str, int]) -> str:
    """How far the study's technology values can be trusted."""
    letters = [
        f"{count} are {'given by the user' if letter == 'user' else f'trust {letter}'}"
        for letter, count in sorted(counts.items())
    ]
    return (
        f"Of {sum(counts.values())} technology values of the study, {', '.join(letters)} (from A, "
        "vendor specification, to D, recalled or assumed): read every dollar as an order of "
        "magnitude and the ratios with the elasticities beside them; `litegpu catalog "
        "technologies` shows each value with its range and source."
    )


def open_branches(entry: Result) -> int:
    """Branches of a candidate without a feasible point that are not proved to have none."""
    return entry.get("starts", {}).get("open_branches", 0)


def infeasible_texts(entry: Result) -> list[str]:
    """What keeps a candidate or baseline from being feasible: the limits whose relaxation helps."""
    if count := open_branches(entry):
        return [f"not solved: {count} {'branch is' if count == 1 else 'branches are'} open"]
    helpful = [row for row in entry["shortfalls"] if row["relaxation"] is not None]
    if helpful:
        return [shortfall_text(row) for row in helpful]
    if any(row["allowed"] is None for row in entry["shortfalls"]):
        return ["no single limit helps: several must be relaxed together"]
    several = "several must be relaxed together, or " if len(entry["shortfalls"]) > 1 else ""
    return [
        f"no single limit of the study helps; {several}the memory or the group size is too small "
        "(--explain-infeasible pushes those limits as well)"
    ]


def shortfall_text(shortfall: Result) -> str:
    """A limit that cannot be met, with the smallest relaxation that helps."""
    if shortfall["allowed"] is None:
        factor = _rounded_up(Decimal(shortfall["relaxation"]) * (1 + SOLVER_ERROR))
        return (
            f"{shortfall['limit']} ({shortfall['meaning']}): with every other limit kept, "
            f"smallest relaxation that helps: x{factor:f}"
        )
    unit = shortfall["unit"].replace("mm2", "mm^2")  # as a study file takes it
    allowed = Decimal(repr(float(shortfall["allowed"])))
    reachable = Decimal(repr(float(shortfall["reachable"])))
    reachable = _rounded_up(max(reachable, allowed) * (1 + SOLVER_ERROR))
    return (
        f"{shortfall['limit']}: allowed {figure(float(allowed))} {unit}, reachable {reachable:f} "
        f"{unit} with every other limit kept; smallest relaxation that helps: "
        f"x{_rounded_up(reachable / allowed):f}"
    )


def _rounded_up(value: Decimal) -> Decimal:
    """Four significant digits, never less than the value, for a user to type."""
    step = Decimal(1).scaleb(min(0, value.adjusted() - 3))
    return value.quantize(step, ROUND_CEILING).normalize()
