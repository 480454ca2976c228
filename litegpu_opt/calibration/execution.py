"""The execution table of a chip: its leaves fitted to kernels, and errors on those left out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import UserError
from ..machine.rates import Rates
from ..machine.technology import Execution
from ..workload.counts import OperatorCounts
from .fitting import Fit, fit
from .kernels import Kernel, kernel_times_us, stacked


LEAVES = {
    "gemm": ("memory_efficiency", "overlap_exponent", "launch_us", "launch_us_per_k"),
    "prefill attention": ("attention_efficiency", "attention_extra_keys", "attention_us"),
    "decode attention": ("memory_efficiency", "attention_us"),
    "all-reduce": (
        "network_efficiency",
        "collective_us",
        "collective_us_per_step",
        "collective_us_per_sqrt_mb",
    ),
    "pass": ("pass_slowdown", "pass_us"),
}
"""Kind of kernel -> leaves of the execution table that it determines."""

_OF_FORMAT = {"bf16": "compute_efficiency_bf16", "fp8": "compute_efficiency_fp8"}

CALL_US, CALL_SLOWDOWN = "quantising_call_us", "quantising_call_slowdown"
"""Fixed time and slowness of the quantisation in `_CALLS`: of these measurements, not of a chip."""
_CALLS = "TensorRT-LLM"
"""Stack whose 8-bit matrix products are measured as calls that quantise first, from the host."""

FEWEST_ROWS = 5
"""Rows for each fitted value."""
LONG_US = 100.0
"""Decode attention above it is stated on its own: below, the fixed time is most of it."""


@dataclass(frozen=True)
class Errors:
    """Errors of a group of kernels that no fit has used."""

    kind: str
    chip: str
    number_format: str
    stack: str
    rows: int
    median: float
    """Of the absolute error."""
    percentile90: float
    bias: float
    """Median error."""


def leaves_of(kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """Leaves that some kernels determine."""
    kinds = {kernel.kind for kernel in kernels}
    formats = {kernel.number_format for kernel in kernels if kernel.kind == "gemm"}
    named = [leaf for kind, leaves in LEAVES.items() if kind in kinds for leaf in leaves]
    named += [_OF_FORMAT[name] for name in sorted(formats)]
    return tuple(dict.fromkeys(named))


def is_call(kernel: Kernel) -> bool:
    """Whether it was measured as a call from the host that quantises first."""
    return (kernel.kind, kernel.number_format, kernel.stack) == ("gemm", "fp8", _CALLS)


def fit_execution(kernels: Sequence[Kernel], start: Execution) -> Fit:
    """The leaves that kernels determine, fitted to half of their shapes; the others are kept.

    Every kind of kernel has the same weight.

    **Raises:** `UserError` where there are too few rows.
    """
    used = [kernel for kernel in kernels if kernel.may_fit]
    names = leaves_of(used)
    begin = {name: float(getattr(start, name)) for name in names}
    if any(map(is_call, used)):
        begin |= {CALL_US: 10.0, CALL_SLOWDOWN: 2.0}
    if not begin or len(used) < FEWEST_ROWS * len(begin):
        raise UserError(
            f"{len(used)} rows may be fitted (half of the shapes), for {len(begin)} values",
            where="data",
            allowed=f"{FEWEST_ROWS} for each value, or more",
        )
    measured_us = jnp.array([kernel.time_us for kernel in used])
    predict = _Predictor(used, start)
    kinds = Counter(kernel.kind for kernel in used)
    weights = [len(used) / len(kinds) / kinds[kernel.kind] for kernel in used]
    return fit(lambda values: jnp.log(predict(values) / measured_us), begin, np.array(weights))


class _Predictor:
    """Times of kernels as a function of the values of leaves."""

    def __init__(self, kernels: Sequence[Kernel], start: Execution):
        self.operators: OperatorCounts
        self.rates: Rates
        self.operators, self.rates = stacked(kernels)
        self.calls = jnp.array([is_call(kernel) for kernel in kernels])
        self.start = start

    def __call__(self, values: Mapping[str, Array]) -> Array:
        execution = replaced(self.start, values)
        if CALL_US in values:
            execution = eqx.tree_at(
                lambda e: (e.pass_us, e.pass_slowdown),
                execution,
                (
                    jnp.where(self.calls, values[CALL_US], execution.pass_us),
                    jnp.where(self.calls, values[CALL_SLOWDOWN], execution.pass_slowdown),
                ),
            )
        return kernel_times_us(self.operators, self.rates, execution)


def replaced(execution: Execution, values: Mapping[str, Array | float]) -> Execution:
    """An execution table with other values; names that are no leaves are left out."""
    leaves = [name for name in values if hasattr(execution, name)]
    return eqx.tree_at(
        lambda e: [getattr(e, name) for name in leaves],
        execution,
        [jnp.asarray(values[name], float) for name in leaves],
    )


def errors_of(
    kernels: Sequence[Kernel], values: Mapping[str, float], start: Execution
) -> np.ndarray:
    """Relative errors of kernels, `(kernels,)`.

    **Arguments:** `values`: leaves that replace those of `start`, and what the calls cost.
    """
    given = {name: jnp.asarray(value) for name, value in values.items()}
    predicted = np.asarray(_Predictor(kernels, start)(given))
    return predicted / np.array([kernel.time_us for kernel in kernels]) - 1.0


def held_out(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Those that errors are stated of: no fit has used them, and nothing speaks against them."""
    return [kernel for kernel in kernels if not (kernel.may_fit or kernel.excluded)]


def kind_of(kernel: Kernel) -> str:
    """Kind of a kernel in a table of errors."""
    long = kernel.kind == "decode attention" and kernel.time_us > LONG_US
    return f"{kernel.kind} > {LONG_US:g} us" if long else kernel.kind


def held_out_errors(
    kernels: Sequence[Kernel], values: Mapping[str, float], start: Execution
) -> list[Errors]:
    """Errors by kind, chip, format and stack on the kernels that no fit has used."""
    rest = held_out(kernels)
    if not rest:
        return []
    groups: dict[tuple[str, str, str, str], list[float]] = {}
    for kernel, error in zip(rest, errors_of(rest, values, start), strict=True):
        key = (kind_of(kernel), kernel.chip, kernel.number_format, kernel.stack)
        groups.setdefault(key, []).append(float(error))
    return [
        Errors(*key, len(found), *summary(np.array(found))) for key, found in sorted(groups.items())
    ]


def library_errors(kernels: Sequence[Kernel], start: Execution) -> list[Errors]:
    """Errors of the all-reduces of other libraries, each with fixed times and bandwidth fitted to
    half of its own sizes on the same chip."""
    groups: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in kernels:
        if kernel.kind == "all-reduce" and kernel.only_compared:
            groups.setdefault((kernel.chip, kernel.stack), []).append(kernel)
    found = []
    for (_, stack), rows in sorted(groups.items()):
        own = [replace(row, only_compared="") for row in rows]
        if sum(row.may_fit for row in own) < FEWEST_ROWS * len(LEAVES["all-reduce"]):
            continue
        fitted = fit_execution(own, start)
        rest = [row for row in own if not row.may_fit]
        values = dict(zip(fitted.names, map(float, fitted.values), strict=True))
        [of_rest] = held_out_errors(rest, values, start)
        found.append(replace(of_rest, stack=f"{stack}, own fit"))
    return found


def summary(errors: np.ndarray) -> tuple[float, float, float]:
    """Median and 90th percentile of the absolute error, and the median error."""
    return (
        float(np.median(np.abs(errors))),
        float(np.quantile(np.abs(errors), 0.9)),
        float(np.median(errors)),
    )
