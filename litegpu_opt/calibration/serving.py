"""The few numbers of serving stacks: fitted to the rows given for it, held against all others.

Of the closed loop (one stack, `FITTED`): k, time per sequence, time of a request, share b of the
prefills in the way. Of every stack that was measured with static batches: k and time per sequence.
The kernels stay as they are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..catalog import technology
from ..catalog.measurements import stack_records
from ..machine.technology import Execution
from .execution import replaced
from .fitting import Fit, Values, fit
from .load import fits_memory, loads, predictions
from .requests import CLOSED_LOOP, Request


FITTED = "InferenceX vLLM"
"""Stack of the closed loop whose rows are fitted."""
CLOSED = ("fixed_time_factor", "sequence_us", "request_ms", "queueing")
ROOFLINE_NAME = "roofline with six constants"
STATIC = ("fixed_time_factor", "sequence_us")
ROOFLINE = ("compute", "memory", "launch_us", "sequence_us", "request_ms", "queueing")
"""Constants of the roofline that the model stands beside: shares of the peaks, and fixed times."""

_SHORT = 0.9 * 1024
"""Mean prompt of the rows from which a stack's own k is taken, where it is given."""
_FACTORS = np.geomspace(0.4, 3.0, 204)
"""k that are tried: steps of 1 %."""


def stack_of(request: Request) -> str:
    """Who benchmarked which engine: what k and time per sequence belong to."""
    source = "documentation of" if request.source.startswith("trtllm-docs") else request.source
    return f"{source} {request.stack}"


def reason_excluded(request: Request, metric: str, usable: float) -> str:
    """Why a metric of a row is not compared; empty if it is.

    **Arguments:** `usable`: share of the memory that weights and cache may have.
    """
    streamed = request.stack == "TensorRT-LLM" and request.tp < 8 and request.prompt <= _SHORT
    if metric == "ttft" and request.load == CLOSED_LOOP and streamed:
        return "streams every 20 tokens: time to the first is that of twenty"
    if not fits_memory(request, usable):
        return "the cache of all requests exceeds the memory: time is spent in a queue"
    return ""


def _log_ratios(
    requests: Sequence[Request], execution_of: Callable[[Values], tuple[Execution, Array]]
) -> tuple[Callable[[Values], Array], int]:
    """Values -> log(model/measured) of all metrics of all rows, and how many there are."""
    given = loads(requests)
    rows: dict[str, list[int]] = {}
    measured: dict[str, list[float]] = {}
    for row, request in enumerate(requests):
        for metric, value in request.measured_ms.items():
            rows.setdefault(metric, []).append(row)
            measured.setdefault(metric, []).append(value)

    def ratios(values: Values) -> Array:
        execution, factor = execution_of(values)
        ones = jnp.ones(len(requests))
        found = predictions(
            given,
            execution,
            factor * ones,
            values.get("sequence_us", jnp.zeros(())) * ones,
            values.get("queueing", jnp.zeros(())),
        )
        return jnp.concatenate(
            [
                jnp.log(found[metric][jnp.array(rows[metric])] / jnp.array(measured[metric]))
                for metric in rows
            ]
        )

    return ratios, sum(map(len, rows.values()))


def fit_stack(requests: Sequence[Request], stack: str, execution: Execution) -> Fit:
    """Numbers of one stack, fitted to its rows that are given for it.

    Rows that are not (`Request.may_fit`) are never looked at.
    """
    used = [row for row in requests if row.may_fit and stack_of(row) == stack]
    names = CLOSED if used[0].load == CLOSED_LOOP else STATIC
    if all("e2e" not in row.measured_ms for row in used) and names == STATIC:
        names = STATIC[:1]  # no steps, so no time of their sequences
    start = {name: _START[name] for name in names}

    def execution_of(values: Values) -> tuple[Execution, Array]:
        return replaced(execution, values), values["fixed_time_factor"]

    ratios, count = _log_ratios(used, execution_of)
    return fit(ratios, start, np.ones(count))


_START = {
    "fixed_time_factor": 1.0,
    "sequence_us": 20.0,
    "request_ms": 20.0,
    "queueing": 0.1,
    "compute": 0.5,
    "memory": 0.5,
    "launch_us": 5.0,
}


def roofline(values: Mapping[str, Array | float]) -> Execution:
    """A roofline with constants: shares of all FLOP/s and of the bandwidth, fixed times."""
    shares = dict.fromkeys(
        ("compute_efficiency_bf16", "compute_efficiency_fp8", "attention_efficiency"),
        values["compute"],
    )
    times = {name: values[name] for name in ("launch_us", "sequence_us", "request_ms")}
    ideal = technology(execution="ideal").execution
    return replaced(ideal, shares | times | {"memory_efficiency": values["memory"]})


def fit_roofline(requests: Sequence[Request]) -> Fit:
    """The six constants of that roofline, fitted to the same rows as the closed loop."""
    used = [row for row in requests if row.may_fit and stack_of(row) == FITTED]

    def execution_of(values: Values) -> tuple[Execution, Array]:
        return roofline(values), jnp.ones(())

    ratios, count = _log_ratios(used, execution_of)
    return fit(ratios, {name: _START[name] for name in ROOFLINE}, np.ones(count))


@dataclass(frozen=True)
class Predictions:
    """Held-out rows, predicted by everything that is compared."""

    requests: Sequence[Request]
    by_name: Mapping[str, Mapping[str, np.ndarray]]
    """`model`, `ideal` or `roofline` -> metric -> ms, `(rows,)`."""


def predict(
    requests: Sequence[Request],
    execution: Execution,
    factor_of: Callable[[Request], float] | None = None,
) -> Predictions:
    """Model and rooflines on held-out rows.

    **Arguments:**

    - `execution`: table of the kernels.
    - `factor_of`: k of a row; by default that of its stack, or of the fitted one if it has none.

    **Raises:** `ValueError` for a row that a fit may use.
    """
    if any(request.may_fit for request in requests):
        raise ValueError("rows of the fit are no held-out rows")
    stacks = stack_records()
    closed = {name: record.value for name, record in stacks[FITTED].items()}
    six = {name: record.value for name, record in stacks[ROOFLINE_NAME].items()}
    given = loads(requests)
    alone = eqx.tree_at(lambda g: g.others, given, jnp.zeros(len(requests)))

    def column(value: Callable[[Request], float]) -> Array:
        return jnp.array([value(request) for request in requests])

    def of_stack(name: str) -> Callable[[Request], float]:
        return lambda request: stacks.get(stack_of(request), stacks[FITTED])[name].value

    own = replaced(execution, {"request_ms": closed["request_ms"]})
    ideal = technology(execution="ideal").execution
    ones = jnp.ones(len(requests))
    found = {
        "model": predictions(
            given,
            own,
            column(factor_of or of_stack("fixed_time_factor")),
            column(of_stack("sequence_us")),
            jnp.asarray(closed["queueing"]),
        ),
        "ideal": predictions(alone, ideal, ones, 0.0 * ones, jnp.zeros(())),
        "roofline": predictions(
            given, roofline(six), ones, six["sequence_us"] * ones, jnp.asarray(six["queueing"])
        ),
    }
    return Predictions(
        requests,
        {
            name: {metric: np.asarray(values) for metric, values in metrics.items()}
            for name, metrics in found.items()
        },
    )


def fitted_factor() -> float:
    """k of the fitted stack."""
    return stack_records()[FITTED]["fixed_time_factor"].value


def own_factor(requests: Sequence[Request], execution: Execution) -> float:
    """k that meets the time between tokens of rows best: the least mean |log(model/measured)|."""
    given = loads(requests)
    closed = {name: record.value for name, record in stack_records()[FITTED].items()}
    measured = jnp.array([request.measured_ms["tpot"] for request in requests])
    ones = jnp.ones(len(requests))

    def deviation(factor: Array) -> Array:
        found = predictions(
            given, execution, factor * ones, closed["sequence_us"] * ones, jnp.zeros(())
        )
        return jnp.mean(jnp.abs(jnp.log(found["tpot"] / measured)))

    return float(_FACTORS[int(jnp.argmin(jax.lax.map(deviation, jnp.asarray(_FACTORS))))])
