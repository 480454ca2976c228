"""The compiled programs of a sweep: tiles of points reduced, and single points in full.

A tile is a block of hardware points times a run of groups. In its program the hardware is worked
out once, the rows of both pools once per group, and then every pair of rows: the loop over pairs
holds one block of hardware points per quantity and nothing of the size of the grid.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..limits import NO_CAP, TOLERANCE
from ..space import OBJECTIVES
from ..study.sweep import LARGER_IS_BETTER, METRICS
from .grid import batch_at
from .problem import Problem, Tables, degree_index, traffic_index
from .terms import (
    DOMAIN,
    HARDWARE_LIMITS,
    ROW_LIMITS,
    Hardware,
    Row,
    cast_to,
    hardware_at,
    metrics_of,
    row_of,
    value_of,
)


LARGEST_BLOCK, SMALLEST_BLOCK = 4096, 64
"""Hardware points of a block: as many as keep its quantities in a core's cache."""
ROW_BYTES = 2**26
"""For the rows of a group."""
BINS = 32
"""Edges of a histogram."""
SCREENED = 24
"""Points of a front that every point is compared with."""
TILE_POINTS = 2**26
DETAIL_BYTES = 2**26
FRONT_MARGIN = 1e-5
"""A point is passed over where another one is better by this much in everything: more than single
precision can be wrong by."""


@dataclass(frozen=True)
class Layout:
    """How the points are cut up. Depends on the grid alone: every run has the same parts."""

    block: int
    """Hardware points of a tile."""
    groups: int
    """Groups of a tile."""
    runs: int
    """Tiles that a block takes."""
    blocks: int
    detail: int
    """Hardware points that are looked at in full together."""

    @property
    def tiles(self) -> int:
        """Tiles of the sweep; those of a block follow each other."""
        return self.blocks * self.runs


def layout_of(problem: Problem) -> Layout:
    """The tiles of a sweep."""
    grid = problem.grid
    pairs = grid.prefill_rows * grid.decode_rows
    row_bytes = 8 * 8 * (grid.prefill_rows + grid.decode_rows)
    block = min(LARGEST_BLOCK, max(SMALLEST_BLOCK, ROW_BYTES // row_bytes), grid.hardware.size)
    if problem.sweep.part_points:
        block = max(1, min(block, problem.sweep.part_points // grid.deployments))
    groups = max(1, min(grid.groups.size, TILE_POINTS // (block * pairs)))
    return Layout(
        block=block,
        groups=groups,
        runs=-(-grid.groups.size // groups),
        blocks=-(-grid.hardware.size // block),
        detail=max(1, min(256, block, DETAIL_BYTES // (8 * len(METRICS) * groups * pairs))),
    )


class Screens(eqx.Module):
    """What a tile is compared with."""

    edges: Array
    """Upper edges of the bins of every histogram, `(histograms, edges)`."""
    fronts: tuple[Array, ...]
    """Some points of every front, `(points, metrics)`, as costs."""


class Tile(eqx.Module):
    """A tile reduced over its deployments, per hardware point of the block `(block,)`."""

    best: Array
    """Least value; infinite where nothing is feasible."""
    arg: Array
    """Its deployment, counted from the first of the tile."""
    feasible: Array
    within: Array
    """Points within all limits, finite or not."""
    violated: dict[str, Array]
    """Limit -> points that break it."""
    below: Array
    """Feasible points up to every edge, `(histograms, edges)`."""
    candidates: tuple[Array, ...]
    """Points that may be on a front."""
    cells: tuple[tuple[Array, Array], ...]
    """Of every map: best value and deployment by cell of the deployments, `(cells, block)`."""


class Points(eqx.Module):
    """Points in full: deployments of a tile times some hardware points."""

    metrics: dict[str, Array]
    feasible: Array
    candidates: tuple[Array, ...]


def cost(metrics: dict[str, Array], name: str) -> Array:
    """A metric such that smaller is better."""
    return 1.0 / metrics[name] if name in LARGER_IS_BETTER else metrics[name]


class Engine:
    """The programs of one sweep, compiled when they are first used."""

    def __init__(self, problem: Problem, dtype: Any, devices: list | None = None):
        self.problem, self.dtype = problem, jnp.dtype(dtype)
        self.layout = layout_of(problem)
        self.devices = devices or jax.local_devices()
        self._tables = jax.tree.map(jnp.asarray, problem.tables)
        self._mesh = Mesh(np.array(self.devices), ("device",))
        self.capped = [
            (name, float(cap))
            for name, cap in zip(OBJECTIVES, problem.tables.caps.objectives, strict=True)
            if cap < NO_CAP
        ]

    def prepare(self) -> None:
        """Compile the programs."""
        none = np.zeros(len(self.devices), np.int64)
        hardware, screens = self._at(none), self.no_screens()
        self._tiles = self._tiles.lower(none, none, hardware, screens, self._tables).compile()
        self._points = self._points.lower(hardware, jnp.int64(0), screens, self._tables).compile()

    def tiles(self, first: np.ndarray, group: np.ndarray, screens: Screens) -> Tile:
        """One tile for every device, on a leading axis.

        **Arguments:**

        - `first`: first hardware point of each tile; beyond the last one for none.
        - `group`: first group of each.
        """
        return self._tiles(first, group, self._at(first), screens, self._tables)

    def points(self, hardware: np.ndarray, group: int, screens: Screens) -> Points:
        """All deployments of a tile for `layout.detail` hardware points, in full.

        Values are `(deployments, hardware)`; deployments beyond the last are to be left out.
        """
        count = self.layout.block * len(self.devices)
        found = self._of_devices(np.resize(hardware, count))
        return self._points(found, jnp.int64(group), screens, self._tables)

    def _at(self, first: np.ndarray) -> Hardware:
        """Hardware of the tiles of all devices, in double precision."""
        index = (first[:, None] + np.arange(self.layout.block)).ravel()
        index = np.minimum(index, self.problem.grid.hardware.size - 1)
        return self._of_devices(index)

    def _of_devices(self, index: np.ndarray) -> Hardware:
        """Hardware points, a block for each device."""
        if len(self.devices) == 1:
            return self._hardware(index, self._tables)
        split = NamedSharding(self._mesh, PartitionSpec("device"))
        return self._hardware(jax.device_put(index, split), self._tables)

    @functools.cached_property
    def _hardware(self) -> Callable[[Any, Tables], Hardware]:
        """Hardware points by index, on a leading axis: a program of its own, which is half of what
        there is to compile, and the same for single points and for tiles.
        """
        problem = self.problem
        return jax.jit(
            lambda index, tables: jax.vmap(lambda i: hardware_at(i, problem, tables))(index)
        )

    def _cast(self, hardware: Hardware) -> Hardware:
        """Hardware in the precision of the sweep, with its limits in front."""
        turned = eqx.tree_at(lambda found: found.within, hardware, hardware.within.T)
        return cast_to(turned, self.dtype)

    def memory_bytes(self) -> int:
        """Memory of one device that the compiled program for tiles takes."""
        sizes = self._tiles.memory_analysis()  # pyright: ignore[reportFunctionMemberAccess]
        return int(
            sizes.temp_size_in_bytes + sizes.argument_size_in_bytes + sizes.output_size_in_bytes
        )

    def no_screens(self) -> Screens:
        """Nothing to compare with."""
        sweep = self.problem.sweep
        return Screens(
            edges=jnp.full((len(sweep.histograms), BINS), jnp.inf, self.dtype),
            fronts=tuple(jnp.full((SCREENED, len(n)), jnp.inf, self.dtype) for n in sweep.fronts),
        )

    @functools.cached_property
    def _tiles(self) -> Callable[..., Tile]:
        def each(first: Array, group: Array, found: Hardware, screens: Screens, tables: Tables):
            tile = self._tile(first[0], group[0], self._cast(found), screens, tables)
            return jax.tree.map(lambda leaf: leaf[None], tile)

        split, whole = PartitionSpec("device"), PartitionSpec()
        return jax.jit(
            jax.shard_map(
                each,
                mesh=self._mesh,
                in_specs=(split, split, split, whole, whole),
                out_specs=split,
                check_vma=False,
            )
        )

    @functools.cached_property
    def _points(self) -> Callable[..., Points]:
        return jax.jit(self._in_full)

    def _rows(self, group: Array, hardware: Hardware, tables: Tables) -> tuple[Row, Row, Array]:
        """Prefill rows and decode rows of a group, each on a leading axis, and whether a scale-up
        domain joins its devices.
        """
        grid, problem = self.problem.grid, self.problem
        digits = grid.groups.digits(group)
        given = grid.groups.values(group, grid.seed) | (
            {} if problem.workload.serves_prefill else {"batch_prefill": jnp.ones(())}
        )
        (pair, degree), traffic = degree_index(grid, digits), traffic_index(grid, digits)
        sides = {
            "prefill": (tables.prefill, pair, grid.prefill, grid.prefill_rows, hardware.prefill),
            "decode": (tables.decode, degree, grid.decode, grid.decode_rows, hardware.decode),
        }
        rows, devices = [], []
        for phase, (pools, number, axis, count, device) in sides.items():
            pool = jax.tree.map(lambda leaf, n=number: leaf[n, traffic], pools)
            pool = cast_to(pool, self.dtype)

            def one(row, pool=pool, axis=axis, device=device, phase=phase):
                batch = batch_at(axis, row, given, f"batch_{phase}")
                batch = batch.astype(self.dtype)
                return row_of(pool, batch, device, hardware, phase, problem)

            rows.append(jax.lax.map(one, jnp.arange(count)))
            devices.append(pool.devices)
        domain = hardware.largest_domain * (1.0 + TOLERANCE)
        joined = jnp.maximum(*devices) <= domain
        return rows[0], rows[1], joined | (not problem.applies[DOMAIN])

    def _tile(
        self, first: Array, group: Array, hardware: Hardware, screens: Screens, tables: Tables
    ) -> Tile:
        problem, grid, layout = self.problem, self.problem.grid, self.layout
        index = first + jnp.arange(layout.block)
        real = index < grid.hardware.size
        sound = jnp.all(hardware.within, axis=0) & real
        pairs = grid.prefill_rows * grid.decode_rows
        shape = (layout.block,)
        none = jnp.zeros(shape, jnp.int32)
        far = jnp.full(shape, jnp.inf, self.dtype)
        start = Tile(
            best=far,
            arg=none,
            feasible=none,
            within=none,
            violated={
                name: none
                for names in (*ROW_LIMITS.values(), (DOMAIN,), (f"{n}_max" for n, _ in self.capped))
                for name in names
            },
            below=jnp.zeros((*screens.edges.shape, *shape), jnp.int32),
            candidates=tuple(none for _ in screens.fronts),
            cells=tuple(
                (
                    jnp.full((cells, *shape), jnp.inf, self.dtype),
                    jnp.zeros((cells, *shape), "int32"),
                )
                for cells in self.cells_of_deployments
            ),
        )

        def visit(number: Array, tile: Tile) -> Tile:
            prefill, decode, joined = self._rows(group + number, hardware, tables)
            tile = self._count_rows(tile, prefill, decode, joined)
            fits_prefill = jnp.all(prefill.within, axis=1) & (joined & sound)[None]
            fits_decode = jnp.all(decode.within, axis=1)

            def take(step: Array, tile: Tile) -> Tile:
                one, two = step // grid.decode_rows, step % grid.decode_rows
                metrics = metrics_of(
                    jax.tree.map(lambda leaf: leaf[one], prefill),
                    jax.tree.map(lambda leaf: leaf[two], decode),
                    hardware,
                )
                cells = [
                    cell_of(problem, m, group + number, one, two)
                    for m in range(len(problem.sweep.maps))
                ]
                inside = fits_prefill[one] & fits_decode[two]
                return self._add(tile, metrics, inside, number * pairs + step, cells, screens)

            return jax.lax.fori_loop(0, pairs, take, tile)

        groups = jnp.minimum(layout.groups, grid.groups.size - group)
        tile = jax.lax.fori_loop(0, groups, visit, start)
        deployments = groups * pairs
        of_hardware = {
            name: jnp.where(real & ~hardware.within[row], deployments, 0)
            for row, name in enumerate(HARDWARE_LIMITS)
        }
        total = functools.partial(jnp.sum, axis=-1, dtype=jnp.int64)
        return Tile(
            best=tile.best,
            arg=tile.arg,
            feasible=total(tile.feasible),
            within=total(tile.within),
            violated={
                name: total(jnp.where(real, count, 0))
                for name, count in (of_hardware | tile.violated).items()
            },
            below=total(tile.below),
            candidates=tile.candidates,
            cells=tile.cells,
        )

    def _count_rows(self, tile: Tile, prefill: Row, decode: Row, joined: Array) -> Tile:
        """Points that break a limit of a row: those of a broken row with every row of the other
        pool.
        """
        grid = self.problem.grid
        violated = dict(tile.violated)
        sides = (
            ("prefill", prefill, grid.decode_rows),
            ("decode", decode, grid.prefill_rows),
        )
        for phase, rows, partners in sides:
            broken = jnp.sum(~rows.within, axis=0, dtype=jnp.int32) * partners
            for place, name in enumerate(ROW_LIMITS[phase]):
                violated[name] = violated[name] + broken[place]
        pairs = grid.prefill_rows * grid.decode_rows
        violated[DOMAIN] = violated[DOMAIN] + jnp.where(joined, 0, pairs)
        return eqx.tree_at(lambda t: t.violated, tile, violated)

    def _add(
        self,
        tile: Tile,
        metrics: dict[str, Array],
        inside: Array,
        place: Array,
        cells: list[Array],
        screens: Screens,
    ) -> Tile:
        """The tile with one deployment more on all hardware points of the block."""
        sweep = self.problem.sweep
        violated = dict(tile.violated)
        for name, cap in self.capped:
            over = ~(metrics[name] <= cap * (1.0 + TOLERANCE))
            violated[f"{name}_max"] = violated[f"{name}_max"] + over.astype("int32")
            inside = inside & ~over
        value = value_of(metrics, self.problem.objective)
        feasible = inside & (jnp.abs(value) < jnp.inf)
        value = jnp.where(feasible, value, jnp.inf)
        place = place.astype(jnp.int32)
        below = tile.below
        if sweep.histograms:
            columns = jnp.stack([metrics[name] for name in sweep.histograms])
            reached = (columns[:, None] <= screens.edges[..., None]) & feasible[None, None]
            below = below + reached.astype(jnp.int32)
        candidates = tuple(
            count + (feasible & ~dominated(metrics, names, points)).astype(jnp.int32)
            for count, names, points in zip(
                tile.candidates, sweep.fronts, screens.fronts, strict=True
            )
        )
        updated = []
        for (best, arg), cell in zip(tile.cells, cells, strict=True):
            better = value < best[cell]
            updated.append(
                (
                    best.at[cell].set(jnp.where(better, value, best[cell])),
                    arg.at[cell].set(jnp.where(better, place, arg[cell])),
                )
            )
        better = value < tile.best
        return Tile(
            best=jnp.where(better, value, tile.best),
            arg=jnp.where(better, place, tile.arg),
            feasible=tile.feasible + feasible.astype(jnp.int32),
            within=tile.within + inside.astype(jnp.int32),
            violated=violated,
            below=below,
            candidates=candidates,
            cells=tuple(updated),
        )

    @functools.cached_property
    def cells_of_deployments(self) -> tuple[int, ...]:
        """Cells along the axes of the deployment, for each map."""
        grid = self.problem.grid
        sizes = []
        for pair in self.problem.sweep.maps:
            cells = 1
            for name in pair:
                if name not in grid.hardware.dimensions:
                    cells *= self.problem.sweep.axes[name].size
            sizes.append(cells)
        return tuple(sizes)

    def _in_full(self, found: Hardware, group: Array, screens: Screens, tables: Tables) -> Points:
        grid, sweep = self.problem.grid, self.problem.sweep
        count = self.layout.detail
        hardware = self._cast(jax.tree.map(lambda leaf: leaf[:count], found))
        sound = jnp.all(hardware.within, axis=0)

        def visit(number: Array) -> tuple[dict[str, Array], Array]:
            at = jnp.minimum(number, grid.groups.size - 1)
            prefill, decode, joined = self._rows(at, hardware, tables)
            decode = jax.tree.map(lambda leaf: leaf[None], decode)
            prefill = jax.tree.map(lambda leaf: leaf[:, None], prefill)
            within = jnp.all(prefill.within, axis=2) & jnp.all(decode.within, axis=2)
            lifted = jax.tree.map(
                lambda leaf: leaf[None, None] if leaf.ndim == 1 else leaf, hardware
            )
            metrics = metrics_of(prefill, decode, lifted)
            shape = (grid.prefill_rows, grid.decode_rows, count)
            full = {name: jnp.broadcast_to(value, shape) for name, value in metrics.items()}
            return full, within & (joined & sound)[None, None] & (number < grid.groups.size)

        metrics, feasible = jax.lax.map(visit, group + jnp.arange(self.layout.groups))
        metrics = {name: jnp.reshape(v, (-1, count)) for name, v in metrics.items()}
        feasible = jnp.reshape(feasible, (-1, count))
        for name, cap in self.capped:
            feasible = feasible & (metrics[name] <= cap * (1.0 + TOLERANCE))
        feasible = feasible & (jnp.abs(value_of(metrics, self.problem.objective)) < jnp.inf)
        return Points(
            metrics=metrics,
            feasible=feasible,
            candidates=tuple(
                feasible & ~dominated(metrics, names, points)
                for names, points in zip(sweep.fronts, screens.fronts, strict=True)
            ),
        )


def dominated(metrics: dict[str, Array], names: tuple[str, ...], points: Array) -> Array:
    """Whether one of some points is better in everything, by more than rounding."""
    result = jnp.zeros(jnp.shape(cost(metrics, names[0])), bool)
    for row in range(points.shape[0]):
        worse = [
            cost(metrics, n) > points[row, i] * (1.0 + FRONT_MARGIN) for i, n in enumerate(names)
        ]
        result = result | functools.reduce(jnp.logical_and, worse)
    return result


def cell_of(problem: Problem, number: int, group: Any, prefill: Any, decode: Any) -> Any:
    """Cell of a deployment in map `number`, along the map's axes of the deployment."""
    grid = problem.grid
    digits = grid.groups.digits(group)
    cell = 0 * group
    for name in problem.sweep.maps[number]:
        if name in grid.hardware.dimensions:
            continue
        axis = problem.sweep.axes[name]
        digit = prefill if axis is grid.prefill else decode if axis is grid.decode else digits[name]
        cell = cell * axis.size + digit
    return cell
