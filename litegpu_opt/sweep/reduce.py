"""What is kept of the points: a state that parts fill and that merges in any order.

Where values tie, the point with the lower index stays, so that a sweep has one result however it
was cut up, interrupted or spread.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Found:
    """Points with their index and what they were kept for, as columns."""

    value: np.ndarray
    """`(points,)`, or `(points, metrics)` of a front."""
    hardware: np.ndarray
    deployment: np.ndarray

    def take(self, rows: np.ndarray) -> "Found":
        """Some of the points."""
        return Found(self.value[rows], self.hardware[rows], self.deployment[rows])

    def with_others(self, other: "Found") -> "Found":
        """The points of both."""
        return Found(
            np.concatenate([self.value, other.value]),
            np.concatenate([self.hardware, other.hardware]),
            np.concatenate([self.deployment, other.deployment]),
        )


def nothing(metrics: int = 0) -> Found:
    """No points."""
    shape = (0, metrics) if metrics else (0,)
    return Found(np.zeros(shape), np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass
class State:
    """What is known of the points visited so far."""

    points: int = 0
    within: int = 0
    """Within all limits, finite or not."""
    feasible: int = 0
    violated: dict[str, int] = field(default_factory=dict)
    below: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """Feasible points up to each edge of the histograms."""
    best: Found = field(default_factory=nothing)
    """Best hardware points, each with its best deployment."""
    fronts: list[Found] = field(default_factory=list)
    maps: list[Found] = field(default_factory=list)
    """Best point of every cell; infinite where nothing is feasible."""

    def add(self, other: "State", keep: int) -> None:
        """Take in another state. `keep`: how many of the best stay."""
        self.points += other.points
        self.within += other.within
        self.feasible += other.feasible
        for name, count in other.violated.items():
            self.violated[name] = self.violated.get(name, 0) + count
        self.below = self.below + other.below if self.below.size else other.below.copy()
        self.best = lowest(self.best.with_others(other.best), keep)
        self.fronts = [
            front(mine.with_others(theirs))
            for mine, theirs in zip(self.fronts, other.fronts, strict=True)
        ]
        self.maps = [
            better(mine, theirs) for mine, theirs in zip(self.maps, other.maps, strict=True)
        ]


def lowest(found: Found, keep: int) -> Found:
    """The points with the least values, in their order."""
    rows = np.lexsort((found.deployment, found.hardware, found.value))
    rows = rows[: max(keep, 0)]
    return found.take(rows[np.isfinite(found.value[rows])])


def better(one: Found, other: Found) -> Found:
    """Cell by cell, the better of two points."""
    ahead = other.value < one.value
    tie = (other.value == one.value) & (
        (other.hardware < one.hardware)
        | ((other.hardware == one.hardware) & (other.deployment < one.deployment))
    )
    take = ahead | tie
    return Found(
        np.where(take, other.value, one.value),
        np.where(take, other.hardware, one.hardware),
        np.where(take, other.deployment, one.deployment),
    )


def front(found: Found) -> Found:
    """The points that no other one beats in every metric; of equal points, the first.

    After sorting by all metrics and index, a point is beaten by an earlier one or by none.
    """
    keys = (found.deployment, found.hardware, *found.value.T[::-1])
    found = found.take(np.lexsort(keys))
    kept: list[int] = []
    if found.value.shape[1] == 2:
        second = found.value[:, 1]
        least = np.minimum.accumulate(np.concatenate([[np.inf], second[:-1]]))
        return found.take(np.flatnonzero(second < least))
    rows = np.arange(len(found.value))
    while len(rows):
        kept.append(int(rows[0]))
        rows = rows[np.any(found.value[rows] < found.value[rows[0]], axis=1)]
    return found.take(np.array(kept, np.int64))


def spread(found: Found, count: int) -> np.ndarray:
    """Some points of a front, evenly in rank, for a first look at others; `(count, metrics)`."""
    if not len(found.value):
        return np.full((count, found.value.shape[1]), np.inf)
    rows = np.linspace(0, len(found.value) - 1, count).round().astype(int)
    return found.value[rows]


def cells(values: np.ndarray, hardware: np.ndarray, deployment: np.ndarray, size: int) -> Found:
    """Best point of every cell `(size,)` among points `(cell, value...)`.

    **Arguments:**

    - `values`: value of each point, with its cell in front: `(2, points)`.
    """
    cell = values[0].astype(np.int64)
    rows = np.lexsort((deployment, hardware, values[1], cell))
    cell = cell[rows]
    first = rows[np.concatenate([[True], cell[1:] != cell[:-1]])] if len(rows) else rows
    result = Found(np.full(size, np.inf), np.full(size, -1), np.full(size, -1))
    feasible = first[np.isfinite(values[1][first])]
    places = values[0][feasible].astype(np.int64)
    result.value[places] = values[1][feasible]
    result.hardware[places] = hardware[feasible]
    result.deployment[places] = deployment[feasible]
    return result


def packed(state: State) -> bytes:
    """The state as the content of a file."""
    names = sorted(state.violated)
    arrays = {
        "counts": np.array([state.points, state.within, state.feasible], np.int64),
        "limits": np.array(names, "U64"),
        "violated": np.array([state.violated[name] for name in names], np.int64),
        "below": state.below,
    }
    for key, found in _columns(state):
        for column in ("value", "hardware", "deployment"):
            arrays[f"{key}.{column}"] = getattr(found, column)
    content = io.BytesIO()
    np.savez(content, **arrays)  # pyright: ignore[reportArgumentType]
    return content.getvalue()


def unpacked(content: bytes) -> State:
    """The state in the content of a file. **Raises:** `ValueError` or `KeyError` if it is none."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:

        def read(key: str) -> Found:
            columns = (arrays[f"{key}.{name}"] for name in ("value", "hardware", "deployment"))
            return Found(*columns)

        def several(kind: str) -> list[Found]:
            count = sum(name.startswith(f"{kind}") and name.endswith("value") for name in arrays)
            return [read(f"{kind}{number}") for number in range(count)]

        points, within, feasible = (int(count) for count in arrays["counts"])
        violated = zip(arrays["limits"].tolist(), arrays["violated"].tolist(), strict=True)
        return State(
            points=points,
            within=within,
            feasible=feasible,
            violated=dict(violated),
            below=arrays["below"],
            best=read("best"),
            fronts=several("front"),
            maps=several("map"),
        )


def _columns(state: State) -> Sequence[tuple[str, Found]]:
    return [
        ("best", state.best),
        *((f"front{number}", found) for number, found in enumerate(state.fronts)),
        *((f"map{number}", found) for number, found in enumerate(state.maps)),
    ]
