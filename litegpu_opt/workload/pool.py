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
    transfer_gb_per_seq: Array = eqx.field(converter=scalar)
    """KV cache of a prompt that a device hands to the decode pool."""
    executions_per_token: Array = eqx.field(converter=scalar)
    """Executions of the phase per output token and sequence."""
    limit_ms: Array = eqx.field(converter=scalar)
    """Latency limit of one execution: TTFT or TBT."""


def build_pools(
    workload: Workload, tp_prefill: int, tp_decode: int, collective: str = "ring"
) -> tuple[Pool, Pool]:
    """The prefill and the decode pool of a workload.

    Per output token of a request with S prompt and T output tokens, prefill runs 1/T times and
    decode (T - 1)/T times. The cache is held for S tokens in prefill and S + T in decode. The
    busiest of the devices at either end decides the hand-over:
    S max(KV bytes per token of a prefill device, of a decode device).

    With `pools == "decode"`, prefill is served elsewhere: decode runs once per output token, and
    the first pool never runs, holds nothing and has no limit.

    **Raises:** `UserError` for a degree that does not divide the model or an unknown collective.
    """
    model, precision = workload.transformer, workload.precision
    prompt, output = workload.traffic.prompt_tokens, workload.traffic.output_tokens
    model.check_tensor_parallel(tp_prefill, "tp_prefill")
    model.check_tensor_parallel(tp_decode, "tp_decode")
    prefill_kv_gb = kv_bytes_per_token(model, precision, tp_prefill) / GIGA
    decode_kv_gb = kv_bytes_per_token(model, precision, tp_decode) / GIGA
    serves_prefill = workload.pools == "prefill+decode"

    prefill = Pool(
        operators=prefill_operators(workload, tp_prefill, collective),
        devices=tp_prefill,
        weights_gb=weight_bytes_per_device(model, precision, tp_prefill) / GIGA
        if serves_prefill
        else TINY,
        kv_gb_per_seq=prefill_kv_gb * prompt if serves_prefill else TINY,
        transfer_gb_per_seq=max(prefill_kv_gb, decode_kv_gb) * prompt if serves_prefill else 0.0,
        executions_per_token=1 / output if serves_prefill else 0.0,
        limit_ms=workload.slo.ttft_ms if serves_prefill else NO_LIMIT_MS,
    )
    decode = Pool(
        operators=decode_operators(workload, tp_decode, collective),
        devices=tp_decode,
        weights_gb=weight_bytes_per_device(model, precision, tp_decode) / GIGA,
        kv_gb_per_seq=decode_kv_gb * (prompt + output),
        transfer_gb_per_seq=0.0,
        executions_per_token=(output - 1) / output if serves_prefill else 1.0,
        limit_ms=workload.slo.tbt_ms,
    )
    return prefill, decode
