"""Points as values: what an index stands for, and Parquet files of points.

Every column of a file has its unit in its metadata (`unit`).
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import UserError
from ..study.sweep import METRICS, axis_unit
from .grid import TECHNOLOGY, batch_at
from .problem import Problem


def pyarrow() -> Any:
    """The library that writes Parquet. **Raises:** `UserError` where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        what = "pyarrow is not installed, which writes Parquet"
        raise UserError(what, where="sweep", allowed="pip install 'litegpu-opt[report]'") from None
    return pyarrow


def hardware_values(problem: Problem, hardware: np.ndarray) -> dict[str, np.ndarray]:
    """Axis -> values of some hardware points; names of technologies where there are several."""
    grid = problem.grid
    columns: dict[str, np.ndarray] = {}
    digits = grid.hardware.digits(hardware)
    if TECHNOLOGY in digits:
        columns[TECHNOLOGY] = np.array(problem.technology_names)[digits[TECHNOLOGY]]
    values = jax.vmap(lambda i: grid.hardware.values(i, grid.seed))(jnp.asarray(hardware))
    return columns | {name: np.asarray(column) for name, column in values.items()}


def deployment_values(problem: Problem, deployment: np.ndarray) -> dict[str, np.ndarray]:
    """Axis -> values of some deployments."""
    grid = problem.grid

    def at(group, prefill, decode):
        values = grid.groups.values(group, grid.seed)
        for name, axis, row in (
            ("batch_prefill", grid.prefill, prefill),
            ("batch_decode", grid.decode, decode),
        ):
            if axis is not None:
                values[name] = batch_at(axis, row, values, name)
        return values

    split = (jnp.asarray(index) for index in grid.split(deployment))
    return {name: np.asarray(column) for name, column in jax.vmap(at)(*split).items()}


def values_at(
    problem: Problem, hardware: np.ndarray, deployment: np.ndarray
) -> list[dict[str, Any]]:
    """Axis -> value of each of some points."""
    if not len(hardware):
        return []
    columns = hardware_values(problem, hardware) | deployment_values(problem, deployment)
    return [
        {name: column[row].item() for name, column in columns.items()}
        for row in range(len(hardware))
    ]


def best_of_each(problem: Problem, each: Sequence[tuple[np.ndarray, ...]]) -> Any:
    """Best deployment of every hardware point, as an Arrow table.

    **Arguments:**

    - `each`: value, hardware and deployment of the points of each tile.
    """
    value, hardware, deployment = (np.concatenate(column) for column in zip(*each, strict=True))
    order = np.lexsort((deployment, value, hardware))
    first = np.concatenate([[True], np.diff(hardware[order]) > 0])
    rows = order[first]
    feasible = np.isfinite(value[rows])
    columns = {"hardware": hardware[rows], "feasible": feasible}
    columns |= hardware_values(problem, hardware[rows])
    of_best = {
        "deployment": deployment[rows],
        **deployment_values(problem, deployment[rows]),
        "value": value[rows],
    }
    return _table(problem, columns, of_best, ~feasible)


def points_table(
    problem: Problem,
    hardware: np.ndarray,
    first: int,
    metrics: Mapping[str, np.ndarray],
    feasible: np.ndarray,
) -> Any:
    """Every point of some hardware, as an Arrow table; arrays are `(deployments, hardware)`."""
    deployment = first + np.arange(len(feasible))
    everywhere = np.repeat(hardware, len(deployment))
    rows = {"hardware": everywhere, "deployment": np.tile(deployment, len(hardware))}
    of_hardware = hardware_values(problem, hardware)
    of_deployment = deployment_values(problem, deployment)
    rows |= {name: np.repeat(column, len(deployment)) for name, column in of_hardware.items()}
    rows |= {name: np.tile(column, len(hardware)) for name, column in of_deployment.items()}
    rows["feasible"] = feasible.T.ravel()
    rows |= {name: column.T.ravel() for name, column in metrics.items()}
    return _table(problem, rows, {}, np.zeros(0, bool))


def _table(
    problem: Problem,
    columns: Mapping[str, np.ndarray],
    open_columns: Mapping[str, np.ndarray],
    missing: np.ndarray,
) -> Any:
    """An Arrow table; `open_columns` have no value in the rows that are `missing`."""
    arrow = pyarrow()
    arrays, fields = [], []
    for name, column in {**columns, **open_columns}.items():
        array = arrow.array(column, mask=missing if name in open_columns else None)
        unit = METRICS.get(name, "") or _unit(problem, name)
        arrays.append(array)
        fields.append(arrow.field(name, array.type, metadata={"unit": unit}))
    return arrow.Table.from_arrays(arrays, schema=arrow.schema(fields))


def _unit(problem: Problem, name: str) -> str:
    if name == "value" and list(problem.objective.values()) == [1.0]:
        return METRICS[next(iter(problem.objective))]
    return axis_unit(name)


def parquet(tables: Iterable[Any]) -> bytes:
    """Tables of one schema as the content of a Parquet file."""
    arrow = pyarrow()
    sink, writer = io.BytesIO(), None
    for table in tables:
        if writer is None:
            writer = arrow.parquet.ParquetWriter(sink, table.schema, compression="zstd")
        writer.write_table(table)
    if writer is not None:
        writer.close()
    return sink.getvalue()
