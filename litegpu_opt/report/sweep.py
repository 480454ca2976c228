"""A sweep on the screen: what was visited, what is best, which limits cost most points."""

from collections.abc import Mapping
from typing import Any

from .document import Section, Table, figure


SHOWN = 10
"""Points of a list."""


def dry_run_sections(content: Mapping[str, Any]) -> list[Section]:
    """What a sweep would take."""
    rows = (
        ("points", f"{content['points']:,}"),
        ("hardware points x deployments", _product(content)),
        ("parts (files)", f"{content['parts']:,}"),
        ("devices", f"{content['devices']}"),
        ("memory of a device, MB", figure(content["device_memory_bytes"] / 1e6)),
        ("output, MB", figure(content["output_bytes"] / 1e6)),
        ("compilation, s", figure(content["compile_s"])),
        ("points per second, one part at a time", f"{content['points_per_s']:.3g}"),
        ("estimated time, s", figure(content["estimated_s"])),
    )
    return [Section("Dry run", (Table(("", ""), rows, ""),))]


def sweep_sections(content: Mapping[str, Any]) -> list[Section]:
    """The result of a sweep."""
    visited = (
        f"{content['points']:,} points ({_product(content)}): "
        f"{100.0 * content['feasible_share']:.3g} % feasible, "
        f"{content['not_finite']:,} without a finite value."
    )
    blocks: list[Any] = [visited]
    if content["best"]:
        blocks.append(_points("Best points", content["best"]))
    for front in content["fronts"]:
        blocks.append(f"Front of {', '.join(front['metrics'])}: {len(front['points'])} points.")
    limits = sorted(content["within_share"].items(), key=lambda item: item[1])
    rows = tuple((name, f"{100.0 * share:.3g} %") for name, share in limits if share < 1.0)
    if rows:
        blocks.append(Table(("limit", "points within it"), rows, "Limits that rule points out"))
    return [Section("Sweep", tuple(blocks))]


def _product(content: Mapping[str, Any]) -> str:
    return f"{content['hardware_points']:,} x {content['deployments']:,}"


def _points(title: str, points: list[dict[str, Any]]) -> Table:
    """Points as columns: their axes, and all metrics."""
    some = points[:SHOWN]
    rows = [(name, *(_text(point["axes"][name]) for point in some)) for name in some[0]["axes"]]
    rows += [
        (name, *(_text(point["metrics"][name]) for point in some)) for name in some[0]["metrics"]
    ]
    return Table(("", *(f"#{row + 1}" for row in range(len(some)))), tuple(rows), title)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else figure(value)
