"""Branch and bound over the boxes of a lattice.

1. The relaxed optimum gives multipliers, and its neighbours a first point of the lattice.
2. Ranges of the axes are narrowed to where something better can be (`relaxed.ranges`).
3. Boxes are looked at in blocks, depth first and lower bound first. What cannot be better, or
   has nothing feasible, is dropped; the rest is halved along the axis where the objective or a
   limit changes most. The point at the middle of each is tried; a box of one point is done then.
"""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...numerics import TINY
from ..lanes import in_chunks
from ..layout import Layout
from ..problem import Branch
from ..solving import Progress
from .boxes import Rules, Seen, look
from .lattice import Lattice, make_lattice
from .relaxed import ranges, relax


BLOCK = 4096
"""Boxes that are looked at together."""
CHUNK = 512
"""Boxes in a call of the program; calls run on all cores."""
NEIGHBOURS = 4**7
"""Points near the relaxed optimum of which the best is the first."""
GAP = 1e-9
"""Logarithm by which another point would have to be better to be looked for."""


@dataclass(frozen=True)
class LatticeOptimum:
    """The best point of a lattice, and the proof. Values are logarithms of the objective."""

    points: int
    """Of the lattice."""
    values: dict[str, float] | None
    """Variable -> its value in its own unit, tied or not; `None` where nothing is feasible."""
    value: float
    """Infinite where nothing is feasible."""
    bound: float
    """No feasible point of the lattice is below it; infinite where there is none."""
    relaxed_bound: float
    """No point between those of the lattice is below it either."""
    kept: dict[str, tuple[float, float]]
    """Axis -> least and largest of its values that were left to look at."""
    points_kept: int
    boxes: int
    """Looked at."""
    undecided: int
    """Points where the model gives no number: with any, the bound says nothing."""
    seconds: float
    cpu_seconds: float

    @property
    def proved(self) -> bool:
        """Whether no other point can be better by more than rounding."""
        return self.bound == math.inf or self.value - self.bound <= 2.0 * GAP


def lattice_optimum(
    branch: Branch,
    layout: Layout,
    axes: Mapping[str, Sequence[float]],
    *,
    held: Mapping[str, float] | None = None,
    tied: Collection[str] = (),
    hard: bool = False,
    tightened: bool = True,
    progress: Progress = lambda stage, done, total: None,
) -> LatticeOptimum:
    """The best point of a lattice of a convex branch.

    **Arguments:**

    - `axes`: variable -> its values in its own unit. Every variable that the branch searches is an
      axis, held or tied.
    - `tied`: variables that have the least value that their own limits allow (`lattice.TIES`).
    - `hard`: with the hard roofline instead of that of the technology.
    - `tightened`: narrow the ranges first.

    **Raises:** `UserError` as `make_lattice`.
    """
    clocks = time.perf_counter(), time.process_time()
    lattice = make_lattice(branch, layout, axes, held=held or {}, tied=tied)
    relaxed = relax(lattice, hard=hard, progress=progress)
    best = _around(lattice, relaxed.rules, relaxed.x)
    first, last, ceiling = np.zeros_like(lattice.last), lattice.last, math.inf
    if tightened and math.isfinite(best.value):
        ceiling = best.value - GAP
        first, last = ranges(lattice, relaxed, ceiling, hard=hard, progress=progress)
    sizes = np.maximum(last - first + 1, 0)
    proof = _divide(lattice, relaxed.rules, best, first, last, progress)
    best = proof.best
    return LatticeOptimum(
        points=math.prod(int(size) + 1 for size in lattice.last),
        values=lattice.values(best.indices) if best.indices is not None else None,
        value=best.value,
        bound=min(best.value, ceiling, proof.bound),
        relaxed_bound=float(relaxed.bound),
        kept={
            name: (float(values[low]), float(values[high]))
            for (name, values), low, high in zip(lattice.axes.items(), first, last, strict=True)
            if low <= high
        },
        points_kept=math.prod(map(int, sizes)),
        boxes=proof.boxes,
        undecided=proof.undecided,
        seconds=time.perf_counter() - clocks[0],
        cpu_seconds=time.process_time() - clocks[1],
    )


@dataclass(frozen=True)
class _Best:
    """The best point so far."""

    value: float = math.inf
    indices: np.ndarray | None = None

    def or_better(self, values: np.ndarray, indices: np.ndarray) -> "_Best":
        """This point, or the best of others if that is better."""
        row = int(np.argmin(np.where(np.isnan(values), np.inf, values)))
        return _Best(float(values[row]), indices[row]) if values[row] < self.value else self


@dataclass(frozen=True)
class _Proof:
    best: _Best
    bound: float
    """Least bound of the boxes that were dropped though something in them may be feasible."""
    boxes: int
    undecided: int


def _look(
    lattice: Lattice, rules: Rules, first: np.ndarray, middle: np.ndarray, last: np.ndarray
) -> Seen:
    corners = tuple(lattice.logs(indices) for indices in (first, middle, last))
    return in_chunks(look, corners, rules, size=CHUNK)


def _around(lattice: Lattice, rules: Rules, x: np.ndarray) -> _Best:
    """A good point: the best near the relaxed optimum, then of its neighbours while that helps."""
    axes = len(lattice.axes)
    near = int(NEIGHBOURS ** (1.0 / max(axes, 1)) + 1e-9)
    steps = _grid([np.arange(near) - (near - 1) // 2] * axes)
    beside = _grid([np.arange(3) - 1] * axes)
    below = [
        np.searchsorted(np.log(values), x[slot], side="right") - 1
        for slot, values in zip(lattice.slots, lattice.axes.values(), strict=True)
    ]
    best, centre = _Best(), np.array(below, int)
    while True:
        indices = np.unique(np.clip(centre + steps, 0, lattice.last), axis=0)
        values = np.asarray(_look(lattice, rules, indices, indices, indices).value)
        found = best.or_better(values, indices)
        if found is best or found.indices is None:
            return best
        best, centre = found, found.indices
        steps = beside


def _divide(
    lattice: Lattice,
    rules: Rules,
    best: _Best,
    first: np.ndarray,
    last: np.ndarray,
    progress: Progress,
) -> _Proof:
    """Divide the range until no box is left that could hold something better."""
    bound, boxes, undecided = math.inf, 0, 0
    stack = [_Boxes(first[None], last[None], np.array([-np.inf]))] if (first <= last).all() else []
    while stack:
        block = _pop(stack)
        open_ = block.bound < best.value - GAP
        bound = min(bound, block.bound[~open_].min(initial=np.inf))
        block = block.rows(open_)
        if not len(block.bound):
            continue
        middle = (block.first + block.last) // 2
        seen = _look(lattice, rules, block.first, middle, block.last)
        boxes += len(middle)
        best = best.or_better(np.asarray(seen.value), middle)
        single = (block.first == block.last).all(axis=1)
        undecided += int(np.isnan(seen.value[single]).sum())
        halves = replace(block, bound=np.maximum(block.bound, seen.bound)).halves(
            middle, np.nan_to_num(seen.spread[:, lattice.slots]), ~single
        )
        if len(halves.bound):
            stack.append(halves)
        progress("lattice", boxes, boxes + sum(len(part.bound) for part in stack))
    return _Proof(best, -math.inf if undecided else bound, boxes, undecided)


@dataclass(frozen=True)
class _Boxes:
    """Boxes of a lattice: first and last index along every axis, `(boxes, axes)`, and bounds."""

    first: np.ndarray
    last: np.ndarray
    bound: np.ndarray

    def rows(self, chosen: np.ndarray | slice) -> "_Boxes":
        """Some of the boxes."""
        return _Boxes(self.first[chosen], self.last[chosen], self.bound[chosen])

    def halves(self, middle: np.ndarray, spread: np.ndarray, chosen: np.ndarray) -> "_Boxes":
        """Both halves of the chosen ones that may hold something feasible, along the axis with the
        largest spread; the most promising come last.
        """
        chosen = chosen & (self.bound < np.inf)
        sizes = self.last - self.first
        axis = np.argmax(np.where(sizes > 0, spread + TINY * sizes, -1.0), axis=1)[chosen]
        rows = np.arange(len(axis))
        first, last, middle = self.first[chosen], self.last[chosen], middle[chosen]
        lower_last, upper_first = last.copy(), first.copy()
        lower_last[rows, axis] = middle[rows, axis]
        upper_first[rows, axis] = middle[rows, axis] + 1
        order = np.argsort(-np.tile(self.bound[chosen], 2), kind="stable")
        both = _Boxes(
            np.concatenate([first, upper_first]),
            np.concatenate([lower_last, last]),
            np.tile(self.bound[chosen], 2),
        )
        return both.rows(order)


def _pop(stack: list[_Boxes]) -> _Boxes:
    """Up to `BLOCK` boxes from the end of the stack."""
    taken, room = [], BLOCK
    while stack and room:
        top = stack.pop()
        cut = max(0, len(top.bound) - room)
        if cut:
            stack.append(top.rows(slice(cut)))
        taken.append(top.rows(slice(cut, None)))
        room -= len(taken[-1].bound)
    return _Boxes(
        *(
            np.concatenate([getattr(part, name) for part in taken])
            for name in ("first", "last", "bound")
        )
    )


def _grid(steps: Sequence[np.ndarray]) -> np.ndarray:
    """Every combination, `(combinations, axes)`."""
    return np.stack(np.meshgrid(*steps, indexing="ij"), axis=-1).reshape(-1, len(steps))
