"""What a result means, in sentences. Works on the dictionaries of `result_json`."""

from collections.abc import Mapping
from typing import Any

from ..workload.phases import PHASES
from .document import figure, percent


NOT_MODELLED = (
    "mixture-of-experts and MLA models",
    "pipeline and expert parallelism",
    "queueing at an arrival rate",
    "chunked prefill in a mixed pool",
    "reliability and spares",
    "cold-plate cost",
    "idle power of links",
    "activation memory beyond the 10 % reserve",
    "efficiency by kernel shape (the efficiency priors are not fitted yet)",
)
"""What the model leaves out and a reader might expect."""

TRUST_NOTE = (
    "Most prices are recalled or assumed (trust D): read every dollar as an order of magnitude and "
    "the ratios with the elasticities beside them; `litegpu catalog technologies` shows each value "
    "with its range and source."
)

SAME = 1e-4
"""Costs that differ by less are called equal."""

Result = Mapping[str, Any]


def findings(workload: Result) -> list[str]:
    """Sentences on one workload, the decision first."""
    optima = workload["optima"]
    if not optima:
        return []
    best = min(optima, key=lambda optimum: optimum["objective"])
    return [
        *_winner(best, optima, workload["baselines"]),
        *(_staying_small(optimum, optima) for optimum in optima if optimum["die_area_max_mm2"]),
        *_network(optima),
        *_at_box(optima),
        *_withheld(optima),
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


def _winner(best: Result, optima: list[Result], baselines: list[Result]) -> list[str]:
    limited = [optimum for optimum in optima if optimum["die_area_max_mm2"]]
    if not limited or len(limited) == len(optima):
        verdict = "Cheapest"
    else:
        verdict = "Small dies win" if best["die_area_max_mm2"] else "Big dies win"
    sentence = (
        f"{verdict}: {best['name']}, {dies(best)}, costs {figure(best['objective'])} USD per "
        "million output tokens"
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
    first = f"Staying small ({small['name']}, {limit}) costs {compared}. " if others else ""
    if worth:
        return f"{first}1 % more die area for {small['name']}: -{figure(worth, 3)} % cost."
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
    return [f"At a bound of the search box: {'; '.join(reached)}."] if reached else []


def _withheld(optima: list[Result]) -> list[str]:
    names = [optimum["name"] for optimum in optima if not optimum["sensitivities"]]
    if not names:
        return []
    return [f"Sensitivities of {', '.join(names)} are withheld: the gap is too large."]


def shortfall_text(shortfall: Result) -> str:
    """One limit that cannot be met, with the smallest relaxation that helps."""
    unit, allowed, reachable = shortfall["unit"], shortfall["allowed"], shortfall["reachable"]
    stated = f"{shortfall['limit']}: allowed {figure(allowed)} {unit}, "
    if reachable is None:
        return stated + "relaxing this limit alone does not help"
    return (
        stated + f"reachable {figure(reachable)} {unit} with every other limit kept; smallest "
        f"relaxation that helps: x{figure(reachable / allowed)}"
    )
