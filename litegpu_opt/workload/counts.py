"""Counts of a phase as arrays over its operators: hand counts meet formats and request lengths."""

import abc
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..numerics import TINY, AnyArray
from .operators import Operator, stage_kinds
from .parallelism import Parallelism
from .precision import Precision
from .traffic import Workload
from .transformer import Transformer


MEGA, GIGA, TERA = 1e6, 1e9, 1e12
LEAST_LOG_MISS = -700.0
"""Stands in for the logarithm of 0: every token goes to every expert."""


class ExpertCounts(eqx.Module):
    """Experts that an execution reads only where tokens are routed to them, arrays `(ops,)`."""

    gb: AnyArray
    """Bytes of one expert."""

    @abc.abstractmethod
    def touched(self, batch: Array) -> Array:
        """Distinct experts that a batch reads on the device."""


class RoutedExperts(ExpertCounts):
    """Experts that are picked evenly; where they are not, fewer are touched."""

    held: AnyArray
    """Experts on the device."""
    log_miss_per_seq: AnyArray
    """n log(1 - k/E): logarithm of the chance that none of the n tokens of a sequence goes to an
    expert."""

    def touched(self, batch: Array) -> Array:
        """Expected number, E (1 - (1 - k/E)^n)."""
        return -jnp.asarray(self.held) * jnp.expm1(batch * self.log_miss_per_seq)


class OperatorCounts(eqx.Module):
    """Counts of every operator of a phase, as arrays over the operator axis `(ops,)`.

    Everything is per device and per execution of the operator; `repeats` says how
    often it runs in one execution of its stage. A quantity named `_per_seq` is multiplied
    by the batch of the whole group. Pipeline stages that are alike stand there once.
    """

    stage: Array
    """Which operators belong to a kind of stage: 1 or 0, `(kinds, ops)`."""
    stages: Array
    """Stages of every kind, `(kinds,)`."""
    device_share: Array
    """Share of the devices of the group that run an operator."""

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
    steps: Array
    """Latency steps of the collective."""
    message_mb_per_seq: Array
    """Size of the tensor that the collective reduces, gathers or spreads."""
    wire_gb_per_seq: Array
    """Bytes through the busier direction of the device's link, algorithm factor included."""
    experts: ExpertCounts | None
    """`None` for a model without experts."""


def with_idle_experts(operators: OperatorCounts) -> OperatorCounts:
    """The counts of a dense model in the form of those of a mixture of experts."""
    if operators.experts is not None:
        return operators
    nothing = jnp.zeros_like(operators.weight_gb)
    return replace(operators, experts=RoutedExperts(nothing, nothing, nothing))


def operator_names(model: Transformer, p: Parallelism, *, decode: bool) -> tuple[str, ...]:
    """Names along the operator axis."""
    kinds = stage_kinds(model, p, decode=decode)
    return tuple(operator.name for _, stage in kinds for _, operator in stage)


def prefill_counts(workload: Workload, p: Parallelism) -> OperatorCounts:
    """Counts of running a prompt of S tokens through the model.

    Causal attention: token i sees i keys, w of them at most with a window w, so
    S(S + 1)/2, or w(w + 1)/2 + (S - w) w pairs. The LM head runs for the last token only.
    """
    prompt = workload.traffic.prompt_tokens

    def pairs(window: np.ndarray) -> Array:
        seen = jnp.minimum(prompt, window)
        return seen * (seen + 1.0) / 2.0 + (prompt - seen) * seen

    return _counts(
        workload, p, decode=False, tokens=prompt, pairs=pairs, context=lambda window: prompt
    )


def decode_counts(workload: Workload, p: Parallelism) -> OperatorCounts:
    """Counts of making one token, on average over the answer.

    The token sees the whole cache, or the window (`mean_context`); no causal half.
    """
    prompt, output = workload.traffic.prompt_tokens, workload.traffic.output_tokens

    def seen(window: np.ndarray) -> Array:
        return mean_context(prompt, output, window)

    return _counts(workload, p, decode=True, tokens=1.0, pairs=seen, context=seen)


def mean_context(prompt: Array, output: Array, window: np.ndarray) -> Array:
    """Tokens that a decode step sees, on average over the T - 1 steps of an answer.

    Step t sees min(w, S + t). The first a = min(max(w - S, 0), T - 1) steps still fill the window:
    their sum is a S + a (a + 1)/2, that of the others (T - 1 - a) w. Without a window a = T - 1,
    and the mean is S + T/2. Exact for whole numbers; never more than w.
    """
    steps = jnp.maximum(output - 1.0, TINY)
    full = jnp.minimum(window, prompt + output)
    filling = jnp.clip((full - prompt) / steps, 0.0, 1.0)
    growing = prompt + (filling * steps + 1.0) / 2.0
    return jnp.minimum(filling * growing + (1.0 - filling) * full, window)


class _Columns(NamedTuple):
    """One column per field of `Operator`, in bytes where a format is known, `(ops,)` each."""

    stage: np.ndarray
    stages: np.ndarray
    repeats: np.ndarray
    launches: np.ndarray
    weight_bytes: np.ndarray
    read_always: np.ndarray
    flop_per_token: np.ndarray
    flop_per_context: np.ndarray
    flop_per_pair: np.ndarray
    eight_bit: np.ndarray
    bytes_per_token: np.ndarray
    bytes_per_context: np.ndarray
    window: np.ndarray
    last_token: np.ndarray
    calls: np.ndarray
    steps: np.ndarray
    message_bytes: np.ndarray
    wire_bytes: np.ndarray
    experts_held: np.ndarray
    log_miss_per_token: np.ndarray


@cache
def _columns(model: Transformer, precision: Precision, p: Parallelism, *, decode: bool) -> _Columns:
    """The operators of all kinds of stages as columns, in the formats of a precision."""
    kinds = stage_kinds(model, p, decode=decode)
    rows = [row for _, stage in kinds for row in stage]
    kind_of_row = np.repeat(np.arange(len(kinds)), [len(stage) for _, stage in kinds])
    moved = precision.of_activations.bytes
    cached = precision.of_cache(model).bytes
    wire = precision.of_wire.bytes

    def column(value: Callable[[Operator], object]) -> np.ndarray:
        return np.array([float(value(operator)) for _, operator in rows])  # pyright: ignore[reportArgumentType]

    def log_miss(o: Operator) -> float:
        """Per token of a replica."""
        if o.routing is None:
            return LEAST_LOG_MISS
        missed = 1.0 - o.routing.per_token / o.routing.count
        return o.routing.replicas * (np.log(missed) if missed > 0.0 else LEAST_LOG_MISS)

    return _Columns(
        stage=(kind_of_row == np.arange(len(kinds))[:, None]).astype(float),
        stages=np.array([float(count) for count, _ in kinds]),
        repeats=np.array([float(repeats) for repeats, _ in rows]),
        launches=column(lambda o: o.launches),
        weight_bytes=column(
            lambda o: o.read * precision.of_part(o.part, model).bytes + o.vectors * moved
        ),
        read_always=column(lambda o: o.routing is None),
        flop_per_token=column(lambda o: o.flop_per_token),
        flop_per_context=column(lambda o: o.flop_per_context),
        flop_per_pair=column(lambda o: o.flop_per_pair),
        eight_bit=column(lambda o: precision.of_part(o.part, model).eight_bit_math),
        bytes_per_token=column(lambda o: o.moved_per_token * moved + o.cached_per_token * cached),
        bytes_per_context=column(
            lambda o: o.moved_per_context * moved + o.cached_per_context * cached
        ),
        window=column(lambda o: np.inf if o.window is None else o.window),
        last_token=column(lambda o: o.last_token),
        calls=column(lambda o: o.exchange.calls),
        steps=column(lambda o: o.exchange.steps),
        message_bytes=column(lambda o: o.exchange.message * wire),
        wire_bytes=column(lambda o: o.exchange.wire * wire),
        experts_held=column(lambda o: o.routing.held if o.routing else 0),
        log_miss_per_token=column(log_miss),
    )


def _counts(
    workload: Workload,
    p: Parallelism,
    *,
    decode: bool,
    tokens: Array | float,
    pairs: Callable[[np.ndarray], Array],
    context: Callable[[np.ndarray], Array],
) -> OperatorCounts:
    """**Arguments:** tokens per sequence that pass through; under each window, pairs of query and
    key, and tokens whose keys and values are read.
    """
    model = workload.transformer
    c = _columns(model, workload.precision, p, decode=decode)
    share = 1.0 / p.dp  # of the sequences of the group, those of one replica
    passing = share * jnp.where(c.last_token > 0.0, 1.0, tokens)
    read = share * context(c.window)
    linear = (passing * c.flop_per_token + read * c.flop_per_context) / TERA
    experts = RoutedExperts(
        gb=jnp.asarray((1.0 - c.read_always) * c.weight_bytes / GIGA),
        held=jnp.asarray(c.experts_held),
        log_miss_per_seq=jnp.asarray(share * tokens * c.log_miss_per_token),
    )
    return OperatorCounts(
        stage=jnp.asarray(c.stage),
        stages=jnp.asarray(c.stages),
        device_share=jnp.asarray(c.stages @ c.stage / p.pp),
        repeats=jnp.asarray(c.repeats),
        launches=jnp.asarray(c.launches),
        tflop_bf16_per_seq=linear * (1.0 - c.eight_bit),
        tflop_fp8_per_seq=linear * c.eight_bit,
        tflop_attention_per_seq=share * pairs(c.window) * c.flop_per_pair / TERA,
        weight_gb=jnp.asarray(c.read_always * c.weight_bytes / GIGA),
        traffic_gb_per_seq=(passing * c.bytes_per_token + read * c.bytes_per_context) / GIGA,
        collectives=jnp.asarray(c.calls),
        steps=jnp.asarray(c.steps),
        message_mb_per_seq=passing * c.message_bytes / MEGA,
        wire_gb_per_seq=passing * c.wire_bytes / GIGA,
        experts=experts if model.has_experts else None,
    )
