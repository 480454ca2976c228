"""A pool: devices that serve one phase, what they hold, and how often they run."""

import equinox as eqx
from jax import Array

from ..numerics import TINY, scalar
from .memory import kv_bytes_per_token, weight_bytes_per_device
from .operators import GIGA, Operators, decode_operators, prefill_operators
from .traffic import NO_LIMIT_MS, Workload


class Pool(eqx.Module):
    """One phase on one tensor-parallel group. Every leaf but `operators` is a scalar."""

    operators: Operators
    devices: Array = eqx.field(converter=scalar)
    """Tensor-parallel degree."""
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


def handover_gb(workload: Workload, tp_prefill: int, tp_decode: int) -> Array | float:
    """KV cache of a prompt that the busiest device at either end moves, GB per sequence:
    S max(KV bytes per token of a prefill device, of a decode device).
    """
    model, precision = workload.transformer, workload.precision
    most_bytes = max(
        kv_bytes_per_token(model, precision, tp_prefill),
        kv_bytes_per_token(model, precision, tp_decode),
    )
    return most_bytes / GIGA * workload.traffic.prompt_tokens


def prefill_pool(
    workload: Workload, tp: int, handover_gb_per_seq: Array | float, collective: str = "ring"
) -> Pool:
    """The pool that reads prompts: it runs 1/T times per output token and holds S tokens.

    With `pools == "decode"` prefill is served elsewhere: this pool never runs, holds nothing and
    has no limit.
    """
    model, precision = workload.transformer, workload.precision
    served = workload.serves_prefill
    kv_gb = kv_bytes_per_token(model, precision, tp) / GIGA
    weights_gb = weight_bytes_per_device(model, precision, tp) / GIGA
    return Pool(
        operators=prefill_operators(workload, tp, collective),
        devices=tp,
        weights_gb=weights_gb if served else TINY,
        kv_gb_per_seq=kv_gb * workload.traffic.prompt_tokens if served else TINY,
        sent_gb_per_seq=kv_gb * workload.traffic.prompt_tokens if served else 0.0,
        handover_gb_per_seq=handover_gb_per_seq if served else 0.0,
        executions_per_token=1 / workload.traffic.output_tokens if served else 0.0,
        limit_ms=workload.slo.ttft_ms if served else NO_LIMIT_MS,
    )


def decode_pool(workload: Workload, tp: int, collective: str = "ring") -> Pool:
    """The pool that writes answers: (T - 1)/T steps per output token (prefill makes the first),
    holding S + T tokens. With `pools == "decode"`, one step per token.
    """
    model, precision = workload.transformer, workload.precision
    prompt, output = workload.traffic.prompt_tokens, workload.traffic.output_tokens
    return Pool(
        operators=decode_operators(workload, tp, collective),
        devices=tp,
        weights_gb=weight_bytes_per_device(model, precision, tp) / GIGA,
        kv_gb_per_seq=kv_bytes_per_token(model, precision, tp) / GIGA * (prompt + output),
        sent_gb_per_seq=0.0,
        handover_gb_per_seq=0.0,
        executions_per_token=(output - 1) / output if workload.serves_prefill else 1.0,
        limit_ms=workload.slo.tbt_ms,
    )


def build_pools(
    workload: Workload, tp_prefill: int, tp_decode: int, collective: str = "ring"
) -> tuple[Pool, Pool]:
    """The prefill and the decode pool of a workload.

    **Raises:** `UserError` for a degree that does not divide the model or an unknown collective.
    """
    workload.transformer.check_tensor_parallel(tp_prefill, "tp_prefill")
    workload.transformer.check_tensor_parallel(tp_decode, "tp_decode")
    busiest_gb = handover_gb(workload, tp_prefill, tp_decode)
    return (
        prefill_pool(workload, tp_prefill, busiest_gb, collective),
        decode_pool(workload, tp_decode, collective),
    )
