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
    """One phase on one group of devices. Every leaf but `operators` is a scalar."""

    operators: OperatorCounts
    devices: Array = eqx.field(converter=scalar)
    """Devices of a group, over all ways of parallelism."""
    microbatches: Array = eqx.field(converter=scalar)
    """Parts of a batch that follow each other through the stages."""
    waits_for_itself: Array = eqx.field(converter=scalar)
    """1 if an execution needs the last one (decode), 0 if another batch can follow at once."""
    weights_gb: Array = eqx.field(converter=scalar)
    """Resident per device, of the fullest stage."""
    kv_gb_per_seq: Array = eqx.field(converter=scalar)
    """Resident per device of the fullest stage and sequence, at the longest context that the pool
    holds."""
    sent_gb_per_seq: Array = eqx.field(converter=scalar)
    """KV cache of a prompt that a device sends to the decode pool, copies included."""
    handover_gb_per_seq: Array = eqx.field(converter=scalar)
    """The same through the busiest device at either end, which decides how long it takes."""
    executions_per_token: Array = eqx.field(converter=scalar)
    """Executions of the phase per output token and sequence."""
    limit_ms: Array = eqx.field(converter=scalar)
    """Latency limit of one execution: TTFT or TBT."""


def kv_gb_of_stages(workload: Workload, p: Parallelism, tokens: Array) -> Array:
    """KV cache of a sequence of `tokens` on a device of each stage, GB, on average over the
    replicas, `(stages,)`: a layer with a window keeps no more tokens than it sees.
    """
    of_stages = [
        jnp.sum(
            np.array([float(row.bytes_per_token) for row in stage])
            * jnp.minimum(tokens, np.array([float(row.window or np.inf) for row in stage]))
        )
        for stage in cached_by_stage(workload.transformer, workload.precision, p)
    ]
    return jnp.stack(of_stages) / (p.dp * GIGA)


def handed_over_gb(
    workload: Workload, prefill: Parallelism, decode: Parallelism
) -> tuple[Array, Array]:
    """KV cache of a prompt on its way to the decode pool, GB per sequence: what a prefill device
    sends on average, and what the busiest device at either end moves.

    All devices of the replica that decodes a sequence get their part, copies included; the devices
    of the group that read the prompt share the sending, each stage for its layers. The sequences of
    a batch may all go to one replica. Where prefill makes the only token, nothing is handed over.
    """
    prompt = workload.traffic.prompt_tokens
    decoded = jnp.where(workload.traffic.output_tokens > 1.0, 1.0, 0.0)
    received = decoded * decode.dp * kv_gb_of_stages(workload, decode, prompt)
    held = kv_gb_of_stages(workload, prefill, prompt)
    sent = decode.tp * jnp.sum(received) / prefill.devices
    unevenness = prefill.pp * jnp.max(held) / jnp.sum(held)
    return sent, jnp.maximum(unevenness * sent, jnp.max(received))


def prefill_pool(
    workload: Workload,
    p: Parallelism,
    handed_over: tuple[Array | float, Array | float] = (0.0, 0.0),
) -> Pool:
    """The pool that reads prompts: it runs 1/T times per output token and holds S tokens.

    With `pools == "decode"` prefill is served elsewhere: this pool never runs, holds nothing and
    has no limit.

    **Arguments:**

    - `handed_over`: of `handed_over_gb`.
    """
    served = workload.serves_prefill
    kv_gb = jnp.max(kv_gb_of_stages(workload, p, workload.traffic.prompt_tokens))
    weights = weight_bytes_per_device(workload.transformer, workload.precision, p)
    return Pool(
        operators=prefill_counts(workload, p),
        devices=p.devices,
        microbatches=p.microbatches,
        waits_for_itself=0.0,
        weights_gb=weights / GIGA if served else TINY,
        kv_gb_per_seq=kv_gb if served else TINY,
        sent_gb_per_seq=handed_over[0] if served else 0.0,
        handover_gb_per_seq=handed_over[1] if served else 0.0,
        executions_per_token=1 / workload.traffic.output_tokens if served else 0.0,
        limit_ms=workload.slo.ttft_ms if served else NO_LIMIT_MS,
    )


def decode_pool(workload: Workload, p: Parallelism) -> Pool:
    """The pool that writes answers: (T - 1)/T steps per output token (prefill makes the first),
    holding S + T tokens. With `pools == "decode"`, one step per token.
    """
    prompt, output = workload.traffic.prompt_tokens, workload.traffic.output_tokens
    weights = weight_bytes_per_device(workload.transformer, workload.precision, p)
    return Pool(
        operators=decode_counts(workload, p),
        devices=p.devices,
        microbatches=p.microbatches,
        waits_for_itself=1.0,
        weights_gb=weights / GIGA,
        kv_gb_per_seq=jnp.max(kv_gb_of_stages(workload, p, prompt + output)),
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
    handed_over = handed_over_gb(workload, prefill, decode)
    pools = prefill_pool(workload, prefill, handed_over), decode_pool(workload, decode)
    return stack_padded(pools)
