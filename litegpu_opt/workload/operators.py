"""Operators of one phase on one device of a tensor-parallel group."""

from collections.abc import Iterable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from ..numerics import scalar
from .collectives import all_gather_wire, all_reduce_wire
from .traffic import Workload
from .transformer import Transformer


MEGA, GIGA, TERA = 1e6, 1e9, 1e12


class Operators(eqx.Module):
    """Counts of every operator of a phase, as arrays over the operator axis `(ops,)`.

    Everything is per device and per execution of the operator; `repeats` says how
    often it runs in the phase (once per layer, or once). A quantity named
    `_per_seq` is multiplied by the batch.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    repeats: Array
    launches: Array
    """Kernels started."""
    tflop_bf16_per_seq: Array
    tflop_fp8_per_seq: Array
    tflop_attention_per_seq: Array
    """Score and value products, at the activations' rate."""
    weight_gb: Array
    """Bytes read once whatever the batch."""
    traffic_gb_per_seq: Array
    """Activations and KV cache read and written."""
    collectives: Array
    """Collective calls (0 or 1)."""
    ranks: Array
    """Devices in the collective."""
    message_mb_per_seq: Array
    """Size of the tensor that the collective reduces or gathers."""
    wire_gb_per_seq: Array
    """Bytes that leave the device, algorithm factor included."""


def prefill_operators(workload: Workload, tp: int, collective: str = "ring") -> Operators:
    """Operators that run a prompt of S tokens through the model on `tp` devices.

    Causal attention: token i sees i keys, S(S + 1)/2 pairs in all. The LM head runs for the last
    token only.
    """
    prompt = workload.traffic.prompt_tokens
    return _operators(
        workload, tp, collective, tokens=prompt, pairs=prompt * (prompt + 1) / 2, context=prompt
    )


def decode_operators(workload: Workload, tp: int, collective: str = "ring") -> Operators:
    """Operators that make one token on `tp` devices at the mean context L = S + T/2.

    The token sees the whole cache: L pairs, no causal half.
    """
    context = workload.traffic.prompt_tokens + workload.traffic.output_tokens / 2
    return _operators(workload, tp, collective, tokens=scalar(1), pairs=context, context=context)


class _Phase(NamedTuple):
    """What the operators see: the tokens of one sequence, and one device's share of the model.

    Sizes are floats, since a product of whole numbers beside a JAX scalar could overflow int64.
    """

    tokens: Array
    """tok: tokens per sequence that go through the model."""
    pairs: Array
    """Pairs of query and key under the mask, per head."""
    context: Array
    """Tokens whose keys and values are read."""
    model: Transformer
    tp: int
    collective: str
    h: float
    """Hidden size."""
    q: float
    """Query heads of this device."""
    k: float
    """Key/value heads of this device."""
    e: float
    """Head dimension."""
    f: float
    """Feed-forward columns of this device."""
    V: float
    """Vocabulary rows of this device."""
    m: int
    """Matrices that read the MLP's input: 2 when gated, else 1."""
    w: int
    """Bytes of a weight of a block matrix."""
    a: int
    """Bytes of an activation, or of a parameter outside the block matrices."""
    kv: int
    """Bytes of a cached number."""
    wire: int
    """Bytes of a number on the network."""


class _Exchange(NamedTuple):
    """The collective that ends an operator; by default there is none."""

    calls: int = 0
    ranks: int = 1
    message_bytes: Array | float = 0.0
    wire_bytes: Array | float = 0.0


class _Operator(NamedTuple):
    """One operator in FLOP and bytes, per device; see `Operators`."""

    name: str
    repeats: int
    launches: int = 1
    linear_flop: Array | float = 0.0
    """In the format of the weights."""
    head_flop: Array | float = 0.0
    """In the format of the activations."""
    attention_flop: Array | float = 0.0
    weight_bytes: float = 0.0
    traffic_bytes: Array | float = 0.0
    exchange: _Exchange = _Exchange()


def _all_reduce(p: _Phase) -> _Exchange:
    """All-reduce of the hidden states, tok h numbers."""
    message = p.tokens * p.h * p.wire
    return _exchange(p, message, all_reduce_wire(message, p.tp, p.collective))


def _exchange(p: _Phase, message: Array | float, wire: Array | float) -> _Exchange:
    return _Exchange(1, p.tp, message, wire) if p.tp > 1 else _Exchange()


def _embedding(p: _Phase) -> _Operator:
    """Look-up: no FLOPs; reads and writes tok h a, and sums the vocabulary shards."""
    return _Operator(
        "embedding",
        repeats=1,
        traffic_bytes=2 * p.tokens * p.h * p.a,
        exchange=_all_reduce(p),
    )


def _qkv(p: _Phase) -> _Operator:
    """Query, key and value projections: 2 tok h (q + 2k) e FLOPs.

    Reads tok h a, writes the queries tok q e a and the cache tok 2k e kv.
    """
    columns = (p.q + 2 * p.k) * p.e
    return _Operator(
        "qkv",
        repeats=p.model.layers,
        linear_flop=2 * p.tokens * p.h * columns,
        weight_bytes=p.h * columns * p.w + p.model.attention_bias * columns * p.a,
        traffic_bytes=p.tokens * (p.h * p.a + p.q * p.e * p.a + 2 * p.k * p.e * p.kv),
    )


def _attention(p: _Phase) -> _Operator:
    """Fused attention: 4 pairs q e FLOPs (scores and values, a multiply and an add each).

    Reads the queries and writes the result, tok 2q e a; reads the cache once, L 2k e kv.
    """
    return _Operator(
        "attention",
        repeats=p.model.layers,
        attention_flop=4 * p.pairs * p.q * p.e,
        traffic_bytes=p.tokens * 2 * p.q * p.e * p.a + p.context * 2 * p.k * p.e * p.kv,
    )


def _output(p: _Phase) -> _Operator:
    """Output projection: 2 tok q e h FLOPs, traffic tok (q e + h) a; all-reduce of tok h."""
    return _Operator(
        "output",
        repeats=p.model.layers,
        linear_flop=2 * p.tokens * p.q * p.e * p.h,
        weight_bytes=p.q * p.e * p.h * p.w + p.model.output_bias * p.h * p.a,
        traffic_bytes=p.tokens * (p.q * p.e + p.h) * p.a,
        exchange=_all_reduce(p),
    )


def _up(p: _Phase) -> _Operator:
    """Gate and up projections (m matrices): 2 tok h m f FLOPs, traffic tok (h + f) a.

    The activation function is part of the kernel: one column of f leaves it, gated or not.
    """
    columns = p.m * p.f
    return _Operator(
        "up",
        repeats=p.model.layers,
        linear_flop=2 * p.tokens * p.h * columns,
        weight_bytes=p.h * columns * p.w + p.model.mlp_bias * columns * p.a,
        traffic_bytes=p.tokens * (p.h + p.f) * p.a,
    )


def _down(p: _Phase) -> _Operator:
    """Down projection: 2 tok f h FLOPs, traffic tok (f + h) a; all-reduce of tok h."""
    return _Operator(
        "down",
        repeats=p.model.layers,
        linear_flop=2 * p.tokens * p.f * p.h,
        weight_bytes=p.f * p.h * p.w + p.model.mlp_bias * p.h * p.a,
        traffic_bytes=p.tokens * (p.f + p.h) * p.a,
        exchange=_all_reduce(p),
    )


def _elementwise(p: _Phase) -> _Operator:
    """Two fused add-and-norm kernels, each on every device in full.

    Each reads x and the residual and writes both: 2 * 4 tok h a.
    """
    return _Operator(
        "elementwise",
        repeats=p.model.layers,
        launches=2,
        weight_bytes=2.0 * p.model.norm_parameters * p.a,
        traffic_bytes=8 * p.tokens * p.h * p.a,
    )


def _lm_head(p: _Phase) -> _Operator:
    """Last norm and LM head for one token: 2 h V FLOPs whether tied or not, traffic (h + V) a.

    The logits of the whole vocabulary are gathered.
    """
    logits = float(p.model.vocab * p.wire)
    return _Operator(
        "lm_head",
        repeats=1,
        head_flop=2 * p.h * p.V,
        weight_bytes=(p.h * p.V + p.model.norm_parameters) * p.a,
        traffic_bytes=(p.h + p.V) * p.a,
        exchange=_exchange(p, logits, all_gather_wire(logits, p.tp)),
    )


_TABLE = (_embedding, _qkv, _attention, _output, _up, _down, _elementwise, _lm_head)


def _operators(
    workload: Workload, tp: int, collective: str, *, tokens: Array, pairs: Array, context: Array
) -> Operators:
    """The table of a phase. Every phase and every `tp` has the same operators in the same order."""
    model, precision = workload.transformer, workload.precision
    phase = _Phase(
        tokens=tokens,
        pairs=pairs,
        context=context,
        model=model,
        tp=tp,
        collective=collective,
        h=float(model.hidden),
        q=float(model.heads_per_device(tp)),
        k=float(model.kv_heads_per_device(tp)),
        e=float(model.head_dim),
        f=float(model.ffn_per_device(tp)),
        V=float(model.vocab_per_device(tp)),
        m=model.input_matrices,
        w=precision.weight_bytes,
        a=precision.activation_bytes,
        kv=precision.kv_bytes,
        wire=precision.wire_bytes,
    )
    rows = [operator(phase) for operator in _TABLE]
    eight_bit = precision.weight_bytes == 1
    return Operators(
        names=tuple(row.name for row in rows),
        repeats=_column(row.repeats for row in rows),
        launches=_column(row.launches for row in rows),
        tflop_bf16_per_seq=_column(
            row.head_flop + (0.0 if eight_bit else row.linear_flop) for row in rows
        )
        / TERA,
        tflop_fp8_per_seq=_column(row.linear_flop if eight_bit else 0.0 for row in rows) / TERA,
        tflop_attention_per_seq=_column(row.attention_flop for row in rows) / TERA,
        weight_gb=_column(row.weight_bytes for row in rows) / GIGA,
        traffic_gb_per_seq=_column(row.traffic_bytes for row in rows) / GIGA,
        collectives=_column(row.exchange.calls for row in rows),
        ranks=_column(row.exchange.ranks for row in rows),
        message_mb_per_seq=_column(row.exchange.message_bytes for row in rows) / MEGA,
        wire_gb_per_seq=_column(row.exchange.wire_bytes for row in rows) / GIGA,
    )


def _column(values: Iterable[Array | float]) -> Array:
    return jnp.stack([scalar(value) for value in values])
