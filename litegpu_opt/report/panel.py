"""Sections of a study's result: what was asked, the optima, what limits them, what is assumed."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..limits import LIMITS
from ..workload.phases import PHASES
from .asked import asked
from .document import NOT_APPLICABLE, NOT_SEARCHED, Section, Table, figure, pair, percent
from .findings import NOT_MODELLED, infeasible_texts, open_branches, trust_text
from .mixes import mix_sections
from .provenance import provenance_sentences
from .questions import question_blocks


LEAST_ELASTICITY = 1e-3
"""Limits that are worth less than this are left off the tables; JSON has them."""
LEAST_GAP = 1e-8
"""Gaps below this are not told apart."""

Result = Mapping[str, Any]
Cell = Callable[[Result], str]


def panel_sections(content: Result) -> list[Section]:
    """The whole result, for the screen."""
    return [
        asked(content),
        *map(workload_section, content["panel"]),
        *mix_sections(content),
        caveats(content),
    ]


def workload_section(workload: Result) -> Section:
    """Decision, comparison, buildable designs, limits, and how the search ended."""
    optima = workload["optima"]
    blocks: list[Table | str] = [*workload["findings"]]
    if optima or workload["baselines"]:
        entries = [*optima, *workload["baselines"]]
        blocks += [_comparison(entries, workload["objective_text"]), _ENERGY_NOTE]
    if any(optimum["buildable"] for optimum in optima):
        blocks.append(_buildable(optima, workload["objective_text"]))
    if optima:
        blocks += [_limits(optima), *_lengths(optima), _starts(optima)]
    blocks += question_blocks(workload)
    blocks += [
        f"{entry['name']}{'' if open_branches(entry) else ' is not feasible'}: "
        f"{'; '.join(infeasible_texts(entry))}."
        for entry in workload["infeasible"]
    ]
    return Section(f"Workload {workload['workload']}", tuple(blocks))


def _grid(
    title: str, first: str, entries: Sequence[Result], rows: Iterable[tuple[str, Cell]]
) -> Table:
    return Table(
        (first, *(entry["name"] for entry in entries)),
        tuple((label, *(cell(entry) for entry in entries)) for label, cell in rows),
        title,
    )


def _gap(entry: Result) -> str:
    gap = entry["gap"]
    if gap is None or not math.isfinite(gap):
        return NOT_APPLICABLE
    return "< 1e-6 %" if gap < LEAST_GAP else percent(gap, 2)


def _hard(entry: Result, cell: Cell) -> str:
    """A cell of the hard roofline, which is searched for candidates alone."""
    return cell(entry["hard"]) if "hard" in entry else NOT_SEARCHED


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


_PRICE = ("unit price (with margin), USD", lambda e: figure(e["unit_price_usd"]))
_DESIGN: tuple[tuple[str, Cell], ...] = (
    (
        "die area, mm2 x dies",
        lambda e: f"{figure(e['die_area_mm2'])} x {round(e['design']['dies_per_package'])}",
    ),
    ("SMs", lambda e: figure(e["design"]["sm_count"])),
    ("clock, GHz", lambda e: figure(e["design"]["clock_ghz"])),
    ("memory stacks", lambda e: figure(e["design"]["memory_stacks"])),
    ("memory, GB", lambda e: figure(e["design"]["memory_gb"])),
    ("network, GB/s per direction", lambda e: figure(e["design"]["network_gb_s"])),
    ("TDP, W", lambda e: figure(e["tdp_w"])),
    ("unit cost (bill of materials), USD", lambda e: figure(e["unit_cost_usd"])),
    _PRICE,
)

_DEPLOYMENT: tuple[tuple[str, Cell], ...] = (
    ("tp, prefill / decode", lambda e: _pools(e, "tp_{}")),
    ("batch, prefill / decode", lambda e: _pools(e, "batch_{}")),
    ("clock, prefill / decode, GHz", lambda e: _pools(e, "clock_{}_ghz")),
)

_SERVICE: tuple[tuple[str, Cell], ...] = (
    ("TTFT, ms", lambda e: figure(_ms(e["ttft_s"]))),
    ("TBT, ms", lambda e: figure(_ms(e["tbt_s"]))),
    ("output tokens/s per SM of decode group", lambda e: figure(e["tokens_per_s_per_sm"])),
    ("energy at the wall, J per output token", lambda e: figure(e["joules_per_token"])),
    ("device power, prefill / decode, W", lambda e: _power(e)),
)

_ENERGY_NOTE = (
    "Energy at the wall includes the host's share, far link ends and idle time; device power is "
    "the device alone while busy."
)

_OBJECTIVE: tuple[tuple[str, Cell], ...] = (
    ("  against the best candidate", lambda e: _ratio(e["ratio_to_best"])),
    ("  lower bound", lambda e: figure(e["lower_bound"])),
    ("  gap to the bound", _gap),
    ("  hard roofline", lambda e: _hard(e, lambda hard: figure(hard["objective"]))),
    ("  gap to its own bound", lambda e: _hard(e, _gap)),
)

_COST: tuple[tuple[str, Cell], ...] = (
    ("output tokens per USD", lambda e: figure(e["tokens_per_dollar"])),
    ("  at half load, USD/M", lambda e: figure(e["usd_per_million_tokens_half_load"])),
)


def _pools(entry: Result, pattern: str) -> str:
    """Prefill / decode, without the phase that does not exist."""
    return pair(
        *(
            entry["deployment"][pattern.format(pool)] if entry["memory"][pool] else None
            for pool in PHASES
        )
    )


def _power(entry: Result) -> str:
    return pair(*(entry[f"power_{phase}_w"] for phase in PHASES))


def _ratio(value: float | None) -> str:
    return NOT_APPLICABLE if value is None else f"x{figure(value)}"


def _design(entries: Sequence[Result]) -> list[tuple[str, Cell]]:
    """Rows of the design; without a margin, the price is the cost again."""
    priced = any(entry["unit_price_usd"] != entry["unit_cost_usd"] for entry in entries)
    return [row for row in _DESIGN if priced or row is not _PRICE]


def _comparison(entries: Sequence[Result], objective: str) -> Table:
    return _grid(
        "Relaxed optima (whole numbers not yet asked for) and existing accelerators",
        "",
        entries,
        (_objective(objective), *_OBJECTIVE, *_COST, *_design(entries), *_DEPLOYMENT, *_SERVICE),
    )


def _objective(text: str) -> tuple[str, Cell]:
    return text, lambda entry: figure(entry["objective"])


def _buildable(optima: list[Result], objective: str) -> Table:
    built = [
        {"name": optimum["name"], **optimum["buildable"]}
        for optimum in optima
        if optimum["buildable"]
    ]
    cost: tuple[tuple[str, Cell], ...] = (
        _objective(objective),
        ("  above the relaxed bound", _gap),
        ("  above the bound of all buildable", lambda e: percent(e["lattice_gap"], 2)),
    )
    title = "Buildable: whole SMs, stacks, ports and batches"
    return _grid(title, "", built, (*cost, *_design(built), *_DEPLOYMENT[:2]))


def _limits(optima: list[Result]) -> Table:
    rows = [
        (
            f"{limit.name} ({limit.meaning})",
            *(_elasticity(optimum["multipliers"].get(limit.name)) for optimum in optima),
        )
        for limit in LIMITS
        if any(
            optimum["multipliers"].get(limit.name, 0.0) >= LEAST_ELASTICITY for optimum in optima
        )
    ]
    return Table(
        ("", *(optimum["name"] for optimum in optima)),
        tuple(rows),
        "Limits that bind: change of the objective when a limit is loosened by 1 %",
    )


def _elasticity(multiplier: float | None) -> str:
    if multiplier is None:
        return NOT_APPLICABLE
    return f"-{figure(multiplier, 3)} %" if multiplier >= LEAST_ELASTICITY else "slack"


_LENGTHS = {
    "workload.prompt_tokens": "prompts 1 % longer",
    "workload.output_tokens": "answers 1 % longer",
}


def _lengths(optima: list[Result]) -> list[str]:
    """What longer requests cost, where sensitivities are not withheld."""
    known = [optimum for optimum in optima if optimum["sensitivities"]]
    changes = [
        f"{words}: "
        + ", ".join(
            f"{optimum['name']} {optimum['sensitivities'][name]:+.3f} %" for optimum in known
        )
        for name, words in _LENGTHS.items()
        if all(name in optimum["sensitivities"] for optimum in known)
    ]
    return [f"Change of the objective with {'; '.join(changes)}."] if known and changes else []


_BRANCHES = (
    ("feasible_branches", "feasible"),
    ("infeasible_branches", "proved infeasible"),
    ("beaten_branches", "ruled out by their bound"),
    ("open_branches", "open"),
)


def _starts(optima: list[Result]) -> str:
    """How the search ended."""
    ended = []
    for optimum in optima:
        starts = optimum["starts"]
        per_branch = starts["total"] // sum(starts[key] for key, _ in _BRANCHES)
        branches = ", ".join(f"{starts[key]} {word}" for key, word in _BRANCHES if starts[key])
        ended.append(
            f"{optimum['name']} {starts['converged']} of "
            f"{per_branch * starts['feasible_branches']}, least agreement "
            f"{percent(starts['least_agreement'])} (branches: {branches})"
        )
    return f"Starts of feasible branches that converged: {'; '.join(ended)}."


def assumptions_table(optimum: Result) -> Table:
    """The assumptions that matter most, with source and trust."""
    return Table(
        ("assumption", "1 % more: objective", "value", "range", "trust", "source"),
        tuple(
            (
                row["name"],
                f"{row['elasticity']:+.3f} %",
                f"{figure(row['value'])} {row['unit']}".strip(),
                f"{figure(row['low'])} to {figure(row['high'])}",
                row["trust"],
                row["source"],
            )
            for row in optimum["top_assumptions"]
        ),
        numeric=False,
    )


def caveats(content: Result) -> Section:
    """What the numbers leave out, and how far they can be trusted."""
    not_modelled = f"Not modelled: {', '.join(NOT_MODELLED)}."
    provenance = provenance_sentences(content["provenance"])
    return Section("Read with care", (trust_text(content["trust"]), not_modelled, *provenance))
