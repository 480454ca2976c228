"""A sweep from its study to its result: parts that are missing are worked out, all are merged."""

import concurrent.futures
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..files import write_atomic
from ..limits import LIMITS
from ..study import Study, resolved_toml, sweep_content
from ..study.sweep import LARGER_IS_BETTER, METRICS
from .engine import Engine
from .parts import (
    best_points,
    compute_part,
    count_parts,
    empty_state,
    first_look,
    tiles_of_part,
    visit_part,
)
from .problem import sweep_problem
from .reduce import Found, State
from .rows import pyarrow, values_at
from .store import RESULT, Store


@dataclass(frozen=True)
class Progress:
    """How far a sweep is."""

    done: int
    """Points visited, with those of earlier runs."""
    total: int
    visited: int
    """Points of this run."""
    seconds: float
    """Of this run, without compilation."""
    compile_s: float
    feasible: int
    best: float
    """Infinite where nothing is feasible yet."""

    @property
    def per_s(self) -> float:
        """Points per second."""
        return self.visited / self.seconds if self.seconds > 0.0 else 0.0

    @property
    def left_s(self) -> float:
        """Seconds that are left at this rate."""
        return (self.total - self.done) / self.per_s if self.per_s else float("inf")


Report = Callable[[Progress], None]
Spread = Callable[[list[int]], Iterable[tuple[int, Mapping[str, bytes]]]]
"""Works out parts, in any order: number and files of each."""


def make_engine(study: Study, *, x64: bool = False, devices: list | None = None) -> Engine:
    """The programs of the sweep of a study, on all local devices by default."""
    problem = sweep_problem(study)
    if problem.sweep.rows or problem.sweep.each:
        pyarrow()
    return Engine(problem, np.float64 if x64 else np.float32, devices)


def asked(study: Study, *, x64: bool) -> dict[str, Any]:
    """What a result depends on."""
    return sweep_content(study) | {"precision": "x64" if x64 else "x32", "version": __version__}


def sweep(
    study: Study,
    out: str | Path,
    *,
    x64: bool = False,
    shard: tuple[int, int] = (1, 1),
    report: Report = lambda progress: None,
    spread: Spread | None = None,
    devices: list | None = None,
) -> dict[str, Any] | None:
    """Visit all points of the sweep of a study that a folder does not have yet.

    **Arguments:**

    - `out`: folder of the results; one that holds a part of the same sweep is completed.
    - `x64`: double precision; single by default.
    - `shard`: `(i, n)`: only every n-th part, from the i-th (of 1 to n).
    - `spread`: works out parts elsewhere; by default this process does.
    - `devices`: local devices; all by default.

    **Returns:**

    The result, also in `result.json`; `None` while parts of other shards are missing.

    **Raises:** `UserError` for a study without a sweep, and a folder that holds another one.
    """
    engine = make_engine(study, x64=x64, devices=devices)
    store = Store(Path(out), asked(study, x64=x64), count_parts(engine))
    with store.locked(shard):
        began = time.monotonic()
        engine.prepare()
        edges, fronts = first_look(engine)
        compile_s = time.monotonic() - began
        write_atomic(store.folder / "study.toml", resolved_toml(study))
        edges = np.array(store.open({"edges": edges.tolist()})["edges"]).reshape(edges.shape)
        state, present = empty_state(engine), store.done()
        for part in sorted(present):
            state.add(store.read(part), engine.problem.sweep.best)
        wanted = [
            part
            for part in range(store.parts)
            if part % shard[1] == shard[0] - 1 and part not in present
        ]
        before, began = state.points, time.monotonic()
        work = spread or partial(locally, engine, edges, fronts)
        for part, files in work(wanted):
            store.write(files)
            state.add(store.read(part), engine.problem.sweep.best)
            report(
                Progress(
                    done=state.points,
                    total=engine.problem.grid.points,
                    visited=state.points - before,
                    seconds=time.monotonic() - began,
                    compile_s=compile_s,
                    feasible=state.feasible,
                    best=float(state.best.value[0]) if len(state.best.value) else float("inf"),
                )
            )
        return finished(engine, store, state, edges)


def locally(
    engine: Engine, edges: np.ndarray, fronts: list[Found], parts: list[int]
) -> Iterator[tuple[int, Mapping[str, bytes]]]:
    """Parts worked out by this process: one thread for every core, where the device is the CPU."""
    one_cpu = [device.platform for device in engine.devices] == ["cpu"]
    workers = (os.cpu_count() or 1) if one_cpu else 1
    compute = partial(compute_part, engine, edges=edges, fronts=fronts)
    queue = iter(parts)
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        running = {pool.submit(compute, part): part for part in itertools.islice(queue, workers)}
        while running:
            done, _ = concurrent.futures.wait(running, return_when="FIRST_COMPLETED")
            for future in done:
                part = running.pop(future)
                for following in itertools.islice(queue, 1):
                    running[pool.submit(compute, following)] = following
                yield part, future.result()


def finished(
    engine: Engine, store: Store, state: State, edges: np.ndarray
) -> dict[str, Any] | None:
    """The result of a sweep whose parts are all there, written; `None` while some are missing."""
    if state.points < engine.problem.grid.points:
        return None
    content = result_of(engine, state, store.asked, edges)
    text = json.dumps(content, indent=2, allow_nan=False)
    write_atomic(store.folder / RESULT, text + "\n")
    return content


def result_of(
    engine: Engine, state: State, what: Mapping[str, Any], edges: np.ndarray
) -> dict[str, Any]:
    """The result of a sweep: nothing in it depends on how it was run."""
    problem = engine.problem
    grid, study = problem.grid, problem.sweep
    if state.points != grid.points:
        raise RuntimeError(f"{state.points} points of {grid.points} were counted")
    best, metrics = best_points(engine, np.sort(state.best.hardware), study.best)
    chips = _entries(engine, state.best, ("value",))
    counted = {name: state.violated.get(name, 0) for name in (limit.name for limit in LIMITS)}
    return {
        "kind": "sweep",
        "asked": dict(what),
        "objective": dict(problem.objective),
        "points": grid.points,
        "hardware_points": grid.hardware.size,
        "deployments": grid.deployments,
        "feasible": state.feasible,
        "feasible_share": state.feasible / grid.points,
        "not_finite": state.within - state.feasible,
        "infeasible": grid.points - state.within,
        "violated": {name: n for name, n in counted.items() if problem.applies[name]},
        "within_share": {
            name: 1.0 - n / grid.points for name, n in counted.items() if problem.applies[name]
        },
        "best": [
            entry | {"metrics": found}
            for entry, found in zip(_entries(engine, best, ("value",)), metrics, strict=True)
        ],
        "best_hardware": chips,
        "fronts": [
            {
                "metrics": list(names),
                "points": _entries(engine, _uncosted(found, names), names),
            }
            for names, found in zip(study.fronts, state.fronts, strict=True)
        ],
        "maps": [
            _map_json(engine, pair, found)
            for pair, found in zip(study.maps, state.maps, strict=True)
        ],
        "histograms": _histograms(engine, state, edges),
        "units": {name: METRICS[name] for name in METRICS},
    }


def _uncosted(found: Found, names: tuple[str, ...]) -> Found:
    """A front in its metrics instead of costs."""
    columns = [
        1.0 / found.value[:, place] if name in LARGER_IS_BETTER else found.value[:, place]
        for place, name in enumerate(names)
    ]
    return Found(np.stack(columns, axis=1), found.hardware, found.deployment)


def _entries(engine: Engine, found: Found, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Points as JSON: indices, axes, and what they were kept for."""
    values = np.reshape(found.value, (len(found.value), len(names))).tolist()
    axes = values_at(engine.problem, found.hardware, found.deployment)
    return [
        {
            "hardware": int(found.hardware[row]),
            "deployment": int(found.deployment[row]),
            "axes": axes[row],
            **dict(zip(names, values[row], strict=True)),
        }
        for row in range(len(values))
    ]


def _map_json(engine: Engine, pair: tuple[str, ...], found: Found) -> dict[str, Any]:
    """A map: values of both axes, and the best point of every cell, or `None`."""
    problem = engine.problem
    sides = []
    for name in pair:
        axis = problem.sweep.axes[name]
        if axis.values:
            sides.append(list(axis.values))
            continue
        share = np.arange(axis.points) / (axis.points - 1)
        ends = np.array([axis.low, axis.high])
        low, high = np.log(ends) if axis.scale == "log" else ends
        line = low * (1.0 - share) + high * share
        sides.append((np.exp(line) if axis.scale == "log" else line).tolist())
    shape = [len(side) for side in sides]
    there = np.isfinite(found.value)
    value = [v if ok else None for v, ok in zip(found.value.tolist(), there, strict=True)]
    return {
        "axes": list(pair),
        "values": sides,
        "best": np.reshape(np.array(value, object), shape).tolist(),
        "hardware": np.reshape(found.hardware, shape).tolist(),
        "deployment": np.reshape(found.deployment, shape).tolist(),
    }


def _histograms(engine: Engine, state: State, edges: np.ndarray) -> list[dict[str, Any]]:
    """Feasible points between edges; those below the first and above the last one apart."""
    return [
        {
            "metric": name,
            "edges": edges[row].tolist(),
            "below": int(state.below[row][0]),
            "counts": np.diff(state.below[row]).tolist(),
            "above": int(state.feasible - state.below[row][-1]),
        }
        for row, name in enumerate(engine.problem.sweep.histograms)
    ]


def dry_run(study: Study, *, x64: bool = False) -> dict[str, Any]:
    """What a sweep would take: points, files, memory, and time from a short measured run."""
    engine = make_engine(study, x64=x64)
    grid, layout = engine.problem.grid, engine.layout
    began = time.monotonic()
    engine.prepare()
    compile_s = time.monotonic() - began
    edges, fronts = first_look(engine)
    began = time.monotonic()
    state, files = visit_part(engine, 0, edges, fronts)
    seconds = time.monotonic() - began
    parts = count_parts(engine)
    bytes_of_part = sum(len(content) for content in files.values())
    return {
        "points": grid.points,
        "hardware_points": grid.hardware.size,
        "deployments": grid.deployments,
        "parts": parts,
        "tiles_per_part": tiles_of_part(engine),
        "hardware_points_per_tile": layout.block,
        "devices": len(engine.devices),
        "device_memory_bytes": engine.memory_bytes(),
        "output_bytes": bytes_of_part * parts,
        "compile_s": compile_s,
        "points_per_s": state.points / seconds,
        "estimated_s": grid.points / state.points * seconds,
    }
