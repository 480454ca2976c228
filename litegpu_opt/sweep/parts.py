"""Parts of a sweep: runs of tiles whose results are written together.

A part is a function of the study and its number: who works it out, when, and on how many devices
changes nothing.
"""

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from .engine import BINS, SCREENED, Engine, Screens, Tile, cell_of, cost
from .reduce import Found, State, cells, front, lowest, nothing, packed, spread
from .rows import best_of_each, parquet, points_table
from .terms import value_of


LOOKS = 8
"""Random blocks of points that are looked at for the range of the histograms."""
MOST_FILES = 4096
ROW_POINTS = 2**20
"""Points of a part of which every one is written."""
LEAST_POINTS = 2**26


def tiles_of_part(engine: Engine) -> int:
    """Tiles in a part: whole blocks."""
    problem, layout = engine.problem, engine.layout
    points = problem.sweep.part_points
    if not points:
        points = max(LEAST_POINTS, problem.grid.points // MOST_FILES)
        if problem.sweep.rows:
            points = ROW_POINTS
    blocks = max(1, points // (layout.block * problem.grid.deployments))
    return layout.runs * min(blocks, layout.blocks)


def count_parts(engine: Engine) -> int:
    """Parts of the sweep."""
    return math.ceil(engine.layout.tiles / tiles_of_part(engine))


def first_look(engine: Engine) -> tuple[np.ndarray, list[Found]]:
    """Edges of the histograms `(histograms, edges)` and first points of the fronts, from some
    random points; a function of the seed.
    """
    sweep, grid, layout = engine.problem.sweep, engine.problem.grid, engine.layout
    random = np.random.default_rng([grid.seed, 1])
    none = engine.no_screens()
    ends = {name: (math.inf, 0.0) for name in sweep.histograms}
    fronts = [nothing(len(names)) for names in sweep.fronts]
    for _ in range(LOOKS if sweep.histograms or sweep.fronts else 0):
        hardware = np.sort(random.integers(0, grid.hardware.size, layout.detail))
        group = int(random.integers(0, grid.groups.size))
        metrics, feasible, _ = _in_full(engine, hardware, group, none)
        for name, (low, high) in ends.items():
            values = metrics[name][feasible]
            if len(values):
                ends[name] = min(low, float(values.min())), max(high, float(values.max()))
        fronts = [
            front(mine.with_others(_candidates(engine, metrics, feasible, names, hardware, group)))
            for mine, names in zip(fronts, sweep.fronts, strict=True)
        ]
    edges = [
        np.geomspace(low / 2.0, high * 2.0, BINS) if high > 0.0 else np.geomspace(1e-6, 1e6, BINS)
        for low, high in ends.values()
    ]
    return np.array(edges).reshape(len(edges), BINS), fronts


def empty_state(engine: Engine) -> State:
    """Nothing visited yet."""
    sweep = engine.problem.sweep
    return State(
        fronts=[nothing(len(names)) for names in sweep.fronts],
        maps=[
            Found(np.full(size, np.inf), np.full(size, -1), np.full(size, -1))
            for size in map_sizes(engine)
        ],
    )


def map_sizes(engine: Engine) -> list[int]:
    """Cells of every map."""
    axes = engine.problem.sweep.axes
    return [math.prod(axes[name].size for name in pair) for pair in engine.problem.sweep.maps]


def compute_part(
    engine: Engine, part: int, edges: np.ndarray, fronts: list[Found]
) -> dict[str, bytes]:
    """Files of a part, the state last: path in the folder of the sweep -> content."""
    state, files = visit_part(engine, part, edges, fronts)
    return files | {state_path(part): packed(state)}


def state_path(part: int) -> str:
    """Where the state of a part stands in the folder of the sweep."""
    return f"parts/part-{part:06d}.npz"


def visit_part(
    engine: Engine, part: int, edges: np.ndarray, fronts: list[Found]
) -> tuple[State, dict[str, bytes]]:
    """The state of a part, and its Parquet files."""
    sweep, grid, layout = engine.problem.sweep, engine.problem.grid, engine.layout
    count = tiles_of_part(engine)
    state = empty_state(engine)
    ahead = list(fronts)
    each: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    numbers = np.arange(part * count, min((part + 1) * count, layout.tiles))
    for batch in _batches(numbers, len(engine.devices)):
        screens = Screens(
            edges=jnp.asarray(edges, engine.dtype),
            fronts=tuple(jnp.asarray(spread(f, SCREENED), engine.dtype) for f in ahead),
        )
        first = np.where(batch < 0, grid.hardware.size, batch // layout.runs * layout.block)
        group = np.where(batch < 0, 0, batch % layout.runs * layout.groups)
        tiles: Tile = jax.device_get(engine.tiles(first, group, screens))
        for row in np.flatnonzero(batch >= 0):
            tile = jax.tree.map(lambda leaf, row=row: leaf[row], tiles)
            hardware = first[row] + np.arange(min(layout.block, grid.hardware.size - first[row]))
            seen = reduced(engine, tile, hardware, int(group[row]))
            seen.fronts = _on_fronts(engine, tile, hardware, int(group[row]), screens)
            state.add(seen, sweep.best)
            ahead = [
                front(mine.with_others(new)) for mine, new in zip(ahead, seen.fronts, strict=True)
            ]
            if sweep.each:
                each.append(_block_best(engine, tile, hardware, int(group[row])))
    files = {}
    if sweep.each:
        table = best_of_each(engine.problem, each)
        files[f"each/part-{part:06d}.parquet"] = parquet([table])
    if sweep.rows:
        tables = _all_points(engine, numbers)
        files[f"rows/part-{part:06d}.parquet"] = parquet(tables)
    return state, files


def _batches(numbers: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Tiles for all devices at once; -1 where there is none left."""
    for start in range(0, len(numbers), size):
        batch = numbers[start : start + size]
        yield np.concatenate([batch, np.full(size - len(batch), -1)])


def reduced(engine: Engine, tile: Tile, hardware: np.ndarray, group: int) -> State:
    """The state of one tile, its fronts apart."""
    problem, layout = engine.problem, engine.layout
    grid = problem.grid
    groups = min(layout.groups, grid.groups.size - group)
    pairs = grid.prefill_rows * grid.decode_rows
    value, _, deployment = _block_best(engine, tile, hardware, group)
    return State(
        points=len(hardware) * groups * pairs,
        within=int(tile.within),
        feasible=int(tile.feasible),
        violated={name: int(count) for name, count in tile.violated.items()},
        below=np.asarray(tile.below, np.int64),
        best=lowest(Found(value, hardware, deployment), problem.sweep.best),
        fronts=[nothing(len(names)) for names in problem.sweep.fronts],
        maps=[
            _map(engine, number, tile, hardware, group) for number in range(len(problem.sweep.maps))
        ],
    )


def _block_best(
    engine: Engine, tile: Tile, hardware: np.ndarray, group: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Best value of every hardware point of a tile, its index, and the deployment."""
    grid = engine.problem.grid
    first = group * grid.prefill_rows * grid.decode_rows
    count = len(hardware)
    deployment = first + np.asarray(tile.arg[:count], np.int64)
    return np.asarray(tile.best[:count], float), hardware, deployment


def _map(engine: Engine, number: int, tile: Tile, hardware: np.ndarray, group: int) -> Found:
    """Best point of every cell of a map among those of a tile."""
    problem = engine.problem
    grid, axes = problem.grid, problem.sweep.axes
    value, arg = (np.asarray(leaf)[:, : len(hardware)] for leaf in tile.cells[number])
    first = group * grid.prefill_rows * grid.decode_rows
    deployment = first + arg.astype(np.int64)
    digits = grid.hardware.digits(hardware)
    pair = problem.sweep.maps[number]
    of_deployment = np.asarray(cell_of(problem, number, *grid.split(deployment)))
    cell = np.zeros_like(deployment)
    for place, name in enumerate(pair):
        if name in grid.hardware.dimensions:
            digit = np.broadcast_to(np.asarray(digits[name]), deployment.shape)
        else:
            later = [other for other in pair[place + 1 :] if other not in grid.hardware.dimensions]
            digit = of_deployment // math.prod(axes[other].size for other in later)
            digit = digit % axes[name].size
        cell = cell * axes[name].size + digit
    everywhere = np.broadcast_to(hardware, deployment.shape)
    return cells(
        np.stack([cell.ravel().astype(float), value.ravel().astype(float)]),
        everywhere.ravel(),
        deployment.ravel(),
        map_sizes(engine)[number],
    )


def _on_fronts(
    engine: Engine, tile: Tile, hardware: np.ndarray, group: int, screens: Screens
) -> list[Found]:
    """Points of a tile that may be on the fronts."""
    names = engine.problem.sweep.fronts
    found = [nothing(len(metrics)) for metrics in names]
    if not names:
        return found
    counts = sum(np.asarray(count[: len(hardware)]) for count in tile.candidates)
    chosen = hardware[counts > 0]
    for start in range(0, len(chosen), engine.layout.detail):
        some = chosen[start : start + engine.layout.detail]
        metrics, _, candidates = _in_full(engine, some, group, screens)
        for number, mask in enumerate(candidates):
            new = _candidates(engine, metrics, mask, names[number], some, group)
            found[number] = front(found[number].with_others(new))
    return found


def _in_full(
    engine: Engine, hardware: np.ndarray, group: int, screens: Screens
) -> tuple[dict[str, np.ndarray], np.ndarray, list[np.ndarray]]:
    """Metrics, feasibility and candidates of all deployments of a tile for some hardware."""
    layout, grid = engine.layout, engine.problem.grid
    padded = np.resize(hardware, layout.detail)
    points = jax.device_get(engine.points(padded, group, screens))
    groups = min(layout.groups, grid.groups.size - group)
    rows = groups * grid.prefill_rows * grid.decode_rows
    cut = jax.tree.map(lambda leaf: leaf[:rows, : len(hardware)], points)
    return cut.metrics, cut.feasible, list(cut.candidates)


def _candidates(
    engine: Engine,
    metrics: dict[str, np.ndarray],
    mask: np.ndarray,
    names: tuple[str, ...],
    hardware: np.ndarray,
    group: int,
) -> Found:
    """Points of a mask `(deployments, hardware)` as columns."""
    grid = engine.problem.grid
    rows, columns = np.nonzero(mask)
    value = np.stack([np.asarray(cost(metrics, name)) for name in names], axis=-1)  # pyright: ignore
    first = group * grid.prefill_rows * grid.decode_rows
    return Found(value[rows, columns].astype(float), hardware[columns], first + rows)


def _all_points(engine: Engine, numbers: np.ndarray) -> Iterator:
    """Every point of some tiles, as Arrow tables."""
    layout, grid = engine.layout, engine.problem.grid
    none = engine.no_screens()
    for number in numbers:
        start = number // layout.runs * layout.block
        stop = min(start + layout.block, grid.hardware.size)
        group = int(number % layout.runs * layout.groups)
        for at in range(start, stop, layout.detail):
            hardware = np.arange(at, min(at + layout.detail, stop))
            metrics, feasible, _ = _in_full(engine, hardware, group, none)
            first = group * grid.prefill_rows * grid.decode_rows
            yield points_table(engine.problem, hardware, first, metrics, feasible)


def best_points(engine: Engine, hardware: np.ndarray, keep: int) -> tuple[Found, list[dict]]:
    """The best of all points of some hardware, and their metrics.

    The best points of a sweep are among those of as many best hardware points.
    """
    problem, layout = engine.problem, engine.layout
    found, metrics_found = nothing(), []
    for start in range(0, len(hardware), layout.detail):
        some = hardware[start : start + layout.detail]
        for run in range(layout.runs):
            metrics, feasible, _ = _in_full(engine, some, run * layout.groups, engine.no_screens())
            value = np.asarray(value_of(metrics, problem.objective))  # pyright: ignore
            value = np.where(feasible, value, np.inf)
            worst = np.partition(value, min(keep, value.size) - 1, axis=None)
            enough = worst[min(keep, value.size) - 1]
            rows, columns = np.nonzero((value <= enough) & np.isfinite(value))
            grid = problem.grid
            first = run * layout.groups * grid.prefill_rows * grid.decode_rows
            new = Found(value[rows, columns].astype(float), some[columns], first + rows)
            metrics_found += [
                {name: float(column[r, c]) for name, column in metrics.items()}
                for r, c in zip(rows, columns, strict=True)
            ]
            found = found.with_others(new)
    rows = np.lexsort((found.deployment, found.hardware, found.value))[:keep]
    return found.take(rows), [metrics_found[row] for row in rows]
