"""Requests under load, predicted by the execution model.

A closed loop of c requests with continuous batching, prefill between decode steps:

    TPOT = step(c) + t_prefill (c - 1)/O
    TTFT = h + t_prefill (1 + b (c - 1)) + step(c)/2

step(c) has the time of every sequence in it (`sequence_us`). Each of the other c - 1 requests stops
a sequence once for its prefill within the O tokens that it writes. A new request waits for half a
step, and for the share b of the prefills of the others that arrive with it. The static batch:

    TTFT = h0 + t_prefill(B)        e2e = TTFT + (O - 1) step(B)

Fixed times of kernels carry one factor k for a software stack.
"""

from collections.abc import Mapping, Sequence
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..catalog import load_accelerator
from ..execution.phase import operator_times
from ..execution.roofline import SoftRoof
from ..machine.rates import Rates
from ..machine.technology import Execution
from ..numerics import stack_padded
from ..workload.counts import OperatorCounts, with_idle_experts
from ..workload.huggingface import read_transformer
from ..workload.parallelism import Parallelism
from ..workload.pool import Pool, decode_pool, prefill_pool
from ..workload.precision import Precision
from ..workload.traffic import make_workload
from .kernels import chip_rates
from .requests import CLOSED_LOOP, Request


class Loads(eqx.Module):
    """Requests as arrays, on a leading axis `(rows,)`."""

    prefill: OperatorCounts
    decode: OperatorCounts
    rates: Rates
    relative_hop: Array
    batch: Array
    prefill_batch: Array
    """Requests that are read together."""
    output: Array
    others: Array
    """Further requests of the same replica, in a closed loop."""
    closed: Array
    """1 in a closed loop, 0 for a static batch."""


@cache
def _pools(
    model: str, weights: str, cache_format: str, tp: int, dp: int, ep: int, prompt: float,
    output: float,
) -> tuple[Pool, Pool]:  # fmt: skip
    workload = make_workload(
        read_transformer(model),
        Precision(weights, cache_format, "bf16", "bf16"),
        prompt_tokens=prompt,
        output_tokens=max(output, 2.0),
    )
    way = Parallelism(tp=tp, dp=dp, ep=ep)
    return prefill_pool(workload, way), decode_pool(workload, way)


def pools_of(request: Request) -> tuple[Pool, Pool]:
    """Prefill and decode of a request's deployment."""
    r = request
    return _pools(r.model, r.weights, r.cache, r.tp, r.dp, r.ep, r.prompt, r.output)


@cache
def _chip(name: str) -> tuple[float, float]:
    """Memory of a device, GB, and latency of its hop over the reference."""
    chip = load_accelerator(name)
    return float(chip.design().memory_gb), float(chip.technology().relative_hop)


def fits_memory(request: Request, share: float) -> bool:
    """Whether weights and the cache of all requests fit in a share of the memory: beyond that, time
    is spent in a queue that the model does not have.
    """
    _, decode = pools_of(request)
    needed = float(decode.weights_gb + request.batch * decode.kv_gb_per_seq)
    return needed <= share * _chip(request.chip)[0]


def loads(requests: Sequence[Request]) -> Loads:
    """Requests along a leading axis."""
    pools = [pools_of(request) for request in requests]
    closed = np.array([request.load == CLOSED_LOOP for request in requests])
    batch = np.array([request.batch for request in requests])
    dp = np.array([request.dp for request in requests])
    plain = [[with_idle_experts(pool.operators) for pool in both] for both in pools]
    return Loads(
        prefill=stack_padded([prefill for prefill, _ in plain], np),  # pyright: ignore[reportArgumentType]
        decode=stack_padded([decode for _, decode in plain], np),  # pyright: ignore[reportArgumentType]
        rates=jax.tree.map(
            lambda *leaves: np.stack(leaves), *[chip_rates(r.chip) for r in requests]
        ),
        relative_hop=jnp.array([_chip(request.chip)[1] for request in requests]),
        batch=jnp.asarray(batch),
        # a replica reads one prompt at a time
        prefill_batch=jnp.asarray(np.where(closed, dp, batch)),
        output=jnp.array([request.output for request in requests]),
        others=jnp.asarray(np.where(closed, batch / dp - 1.0, 0.0)),
        closed=jnp.asarray(closed, float),
    )


@eqx.filter_jit
def predictions(
    given: Loads, execution: Execution, factors: Array, sequence_us: Array, queueing: Array
) -> Mapping[str, Array]:
    """Metric -> its value, ms, `(rows,)`.

    **Arguments:**

    - `factors`, `sequence_us`: k and time per sequence of every row, `(rows,)`; `queueing`: b.
    """

    def one(load: Loads, factor: Array, of_sequence_us: Array) -> Mapping[str, Array]:
        own = eqx.tree_at(
            lambda e: (e.fixed_time_factor, e.sequence_us), execution, (factor, of_sequence_us)
        )
        roof = SoftRoof(own.overlap_exponent)

        def time_ms(operators: OperatorCounts, batch: Array) -> Array:
            times = operator_times(operators, batch, load.rates, own, load.relative_hop)
            return jnp.sum(times.total_ms(roof))

        step_ms = time_ms(load.decode, load.batch)
        prefill_ms = time_ms(load.prefill, load.prefill_batch)
        ttft_ms = load.closed * (own.request_ms + step_ms / 2.0) + prefill_ms * (
            1.0 + queueing * load.others
        )
        return {
            "ttft": ttft_ms,
            "tpot": step_ms + prefill_ms * load.others / load.output,
            "e2e": ttft_ms + (load.output - 1.0) * step_ms,
        }

    return jax.vmap(one)(given, factors, sequence_us)
