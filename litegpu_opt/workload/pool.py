"""A pool: devices that serve one phase, what they hold, and how often they run."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..numerics import TINY, scalar, stack_padded
from .counts import GIGA, OperatorCounts, decode_counts, prefill_counts
from .memory import cached_by_stage, weight_bytes_per_device
from .parallelism import Parallelism, check_parallelism
from .traffic import NO_LIMIT_MS, Workload


class Pool(eqx.Module):
    """One phase on one group of devices. Every leaf but `operators` is a scalar.

    With pipeline stages, everything is that of the slowest or fullest stage.
    """

    operators: OperatorCounts
    devices: Array = eqx.field(converter=scalar)
    """Devices of a group, over all ways of parallelism."""
    microbatches: Array = eqx.field(converter=scalar)
    """Parts of a batch that follow each other through the stages."""
    stage_times: Array = eqx.field(converter=scalar)
    """Executions of a stage that a batch waits for, bubbles included."""
    weights_gb: Array = eqx.field(converter=scalar)
    """Resident per device."""
    kv_gb_per_seq: Array = eqx.field(converter=scalar)
    """Resident per device and sequence at the longest context that the pool holds."""
    sent_gb_per_seq: Array = eqx.field(converter=scalar)
    """KV cache of a prompt that a device hands to the decode pool."""
    handover_gb_per_seq: Array = eqx.field(converter=scalar)
    """The same through the busiest device at either end, which decides how long it takes."""
    executions_per_token: Array = eqx.field(converter=scalar)
    """Executions of the phase per output token and sequence."""
    limit_ms: Array = eqx.field(converter=scalar)
    """Latency limit of one execution: TTFT or TBT."""


def kv_gb_per_seq(workload: Workload, p: Parallelism, tokens: Array) -> Array:
    """KV cache of a sequence of `tokens` on the fullest device, GB, on average over the replicas:
    a layer with a window keeps no more tokens than it sees.
    """
    of_stages = [
        jnp.sum(
            np.array([float(row.bytes_per_token) for row in stage])
            * jnp.minimum(tokens, np.array([float(row.window or np.inf) for row in stage]))
        )
        for stage in cached_by_stage(workload.transformer, workload.precision, p)
    ]
    return jnp.max(jnp.stack(of_stages)) / (p.dp * GIGA)


def handover_gb(workload: Workload, prefill: Parallelism, decode: Parallelism) -> Array:
    """KV cache of a prompt that the busiest device at either end moves, GB per sequence."""
    prompt = workload.traffic.prompt_tokens
    return jnp.maximum(
        kv_gb_per_seq(workload, prefill, prompt), kv_gb_per_seq(workload, decode, prompt)
    )


def prefill_pool(workload: Workload, p: Parallelism, handover_gb_per_seq: Array | float) -> Pool:
    """The pool that reads prompts: it runs 1/T times per output token and holds S tokens.

    A batch goes through pp stages in m microbatches, m + pp - 1 stage times from its first to its
    last token. With `pools == "decode"` prefill is served elsewhere: this pool never runs, holds
    nothing and has no limit.
    """
    served = workload.serves_prefill
    kv_gb = kv_gb_per_seq(workload, p, workload.traffic.prompt_tokens)
    weights = weight_bytes_per_device(workload.transformer, workload.precision, p)
    return Pool(
        operators=prefill_counts(workload, p),
        devices=p.devices,
        microbatches=p.microbatches,
        stage_times=p.microbatches + p.pp - 1,
        weights_gb=weights / GIGA if served else TINY,
        kv_gb_per_seq=kv_gb if served else TINY,
        sent_gb_per_seq=kv_gb if served else 0.0,
        handover_gb_per_seq=handover_gb_per_seq if served else 0.0,
        executions_per_token=1 / workload.traffic.output_tokens if served else 0.0,
        limit_ms=workload.slo.ttft_ms if served else NO_LIMIT_MS,
    )


def decode_pool(workload: Workload, p: Parallelism) -> Pool:
    """The pool that writes answers: (T - 1)/T steps per output token (prefill makes the first),
    holding S + T tokens. With `pools == "decode"`, one step per token.

    A sequence's next token needs its last one, so a step takes max(m, pp) stage times: with fewer
    microbatches than stages, some stages wait.
    """
    prompt, output = workload.traffic.prompt_tokens, workload.traffic.output_tokens
    weights = weight_bytes_per_device(workload.transformer, workload.precision, p)
    return Pool(
        operators=decode_counts(workload, p),
        devices=p.devices,
        microbatches=p.microbatches,
        stage_times=max(p.microbatches, p.pp),
        weights_gb=weights / GIGA,
        kv_gb_per_seq=kv_gb_per_seq(workload, p, prompt + output),
        sent_gb_per_seq=0.0,
        handover_gb_per_seq=0.0,
        executions_per_token=(output - 1) / output if workload.serves_prefill else 1.0,
        limit_ms=workload.slo.tbt_ms,
    )


def build_pools(workload: Workload, prefill: Parallelism, decode: Parallelism) -> Pool:
    """The prefill and the decode pool of a workload, on a leading axis.

    **Raises:** `UserError` for a way of parallelism that the model does not allow.
    """
    check_parallelism(workload.transformer, prefill, "prefill.{}")
    check_parallelism(workload.transformer, decode, "decode.{}")
    busiest_gb = handover_gb(workload, prefill, decode)
    pools = prefill_pool(workload, prefill, busiest_gb), decode_pool(workload, decode)
    return stack_padded(pools)
