"""One design for a mix of workloads: as plain data, and as tables made of that."""

from collections.abc import Callable, Mapping
from typing import Any

from ..optimizer.result import Mix, MixedDesign, OnWorkload, Run
from .document import Block, Section, Table, figure, percent


Result = Mapping[str, Any]


def mix_json(item: Mix, run: Callable[[str, Run], dict[str, Any]]) -> dict[str, Any]:
    """The common design of a candidate, and what it costs on each workload.

    **Arguments:**

    - `run`: a design on a workload, by its name, as plain data.
    """
    return {
        "mix": item.mix,
        "name": item.name,
        "relaxed": item.relaxed and _design(item.relaxed, run),
        "buildable": item.buildable and _design(item.buildable, run),
    }


def _design(mixed: MixedDesign, run: Callable[[str, Run], dict[str, Any]]) -> dict[str, Any]:
    return {
        "objective": mixed.objective.value,
        "lower_bound": mixed.objective.lower_bound,
        "gap": mixed.objective.gap,
        "own": sum(row.share * row.own for row in mixed.workloads),
        "workloads": [_on_workload(row, run) for row in mixed.workloads],
    }


def _on_workload(row: OnWorkload, run: Callable[[str, Run], dict[str, Any]]) -> dict[str, Any]:
    return {
        "workload": row.name,
        "share": row.share,
        "objective": row.objective,
        "own": row.own,
        "loss": row.objective / row.own - 1.0,
        "run": run(row.name, row.run),
    }


def mix_sections(content: Result) -> list[Section]:
    """A section for every mix."""
    mixes: dict[str, list[Result]] = {}
    for item in content["mixes"]:
        mixes.setdefault(item["mix"], []).append(item)
    text = content["panel"][0]["objective_text"]
    return [
        Section(f"Mix {name}: one design for several workloads", tuple(_blocks(items, text)))
        for name, items in mixes.items()
    ]


def _blocks(items: list[Result], objective: str) -> list[Block]:
    found = [item for item in items if item["relaxed"]]
    blocks: list[Block] = [
        f"{item['name']} is not feasible for all workloads at once."
        for item in items
        if not item["relaxed"]
    ]
    if not found:
        return blocks
    shares = ", ".join(
        f"{row['workload']} {percent(row['share'])}" for row in found[0]["relaxed"]["workloads"]
    )
    columns = ("", *(item["name"] for item in found))
    rows = [_row("common design", found, lambda d: figure(d["objective"]))]
    rows += [_row("  no design is below", found, lambda d: figure(d["lower_bound"]))]
    rows += [_row("a design for each workload", found, lambda d: figure(d["own"]))]
    for number, row in enumerate(found[0]["relaxed"]["workloads"]):
        rows.append(
            _row(
                f"{row['workload']}: common against own",
                found,
                lambda d, n=number: (
                    f"{figure(d['workloads'][n]['objective'])}, "
                    f"{percent(d['workloads'][n]['loss'])} more"
                ),
            )
        )
    rows += [
        _row("die area, mm2", found, lambda d: figure(_first(d)["die_area_mm2"])),
        _row("SMs", found, lambda d: figure(_first(d)["design"]["sm_count"])),
        _row("memory, GB", found, lambda d: figure(_first(d)["design"]["memory_gb"])),
    ]
    title = f"{objective}, by share of the tokens ({shares})"
    built = [item for item in found if item["buildable"]]
    return [
        *blocks,
        Table(columns, tuple(rows), title),
        *(
            f"Buildable {item['name']}: {figure(item['buildable']['objective'])} "
            f"(within {percent(item['buildable']['gap'], 2)} of any buildable design), "
            f"{figure(_first(item['buildable'])['die_area_mm2'])} mm2, "
            f"{figure(_first(item['buildable'])['design']['sm_count'])} SMs, "
            f"{figure(_first(item['buildable'])['design']['memory_gb'])} GB."
            for item in built
        ),
    ]


def _row(label: str, found: list[Result], cell: Callable[[Result], str]) -> tuple[str, ...]:
    return label, *(cell(item["relaxed"]) for item in found)


def _first(design: Result) -> Result:
    return design["workloads"][0]["run"]
