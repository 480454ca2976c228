"""Attention on one device of a tensor-parallel group.

Symbols per device: q query heads, k key/value heads, e head dimension, c ranks that share the
cache of a sequence, h hidden.
"""

from fractions import Fraction
from functools import cache

from ..collectives import all_gather, reduce_scatter
from ..parallelism import Parallelism
from ..transformer import Attention, GroupedAttention, LatentAttention
from .operator import Number, Operator, linear, whole


def cache_per_token(attention: Attention, p: Parallelism) -> Number:
    """Numbers that a device caches of one token in one layer, on average.

    2 k e / c, with the k key/value heads of the device: beyond tp of them they are replicated. A
    latent is not split by tp: (r + e_rope)/c, on every rank.
    """
    match attention:
        case GroupedAttention():
            numbers = 2 * kv_heads(attention, p) * attention.head_dim
        case LatentAttention():
            numbers = attention.kv_rank + attention.rope_dim
    return whole(Fraction(numbers, p.kv_parallel))


@cache
def kv_heads(attention: GroupedAttention, p: Parallelism) -> int:
    """Key/value heads on the fullest device: those that its q/tp query heads need.

    max(1, ceil(k/tp)) where k divides tp or tp divides k; else a device's query heads may straddle
    two groups.
    """
    on_device = attention.heads // p.tp
    group = attention.heads // attention.kv_heads
    firsts = range(0, attention.heads, on_device)
    return max((first + on_device - 1) // group - first // group + 1 for first in firsts)


def grouped(a: GroupedAttention, h: int, p: Parallelism, *, decode: bool) -> list[Operator]:
    """Multi-head, grouped and multi-query attention.

    - qkv: h (q + 2k) e parameters, h (q + k) e where one projection makes keys and values; moves
      h + q e per token and writes the cache, 2k e / c. Its pass rotates queries and keys: reads and
      writes (q + k) e.
    - attention (fused): 4 q e FLOPs per pair (scores and values, a multiply and an add each);
      moves queries and results, 2 q e per token, and reads the cache once, 2k e / c per context.
    - output: q e h.

    With c > 1 a decode rank gathers the queries of the c ranks that hold the same heads, meets them
    with its part of the context, and the partial results are summed: c q e numbers gathered,
    c q (e + 1) reduced (with the sums of the softmax). Prefill has all keys at hand.
    """
    q, k, e = a.heads // p.tp, kv_heads(a, p), a.head_dim
    columns = (q + (1 if a.keys_are_values else 2) * k) * e
    cached = cache_per_token(a, p)
    c = p.kv_parallel if decode else 1
    return [
        Operator(
            "qkv",
            held=h * columns,
            read=h * columns,
            vectors=a.input_bias * columns + a.head_norms * 2 * e,
            depth=h,
            quantised_per_token=h,
            passes=1,
            passed_per_token=2 * (q + k) * e,
            flop_per_token=2 * h * columns,
            moved_per_token=h + q * e,
            cached_per_token=cached,
            exchange=all_gather(c * q * e, c, p.collective),
        ),
        Operator(
            "attention" if a.window is None else "window_attention",
            vectors=a.sinks * q,
            flop_per_pair=4 * q * e,
            moved_per_token=2 * c * q * e,
            cached_per_context=cached if decode else 2 * k * e,
            window=a.window,
            exchange=reduce_scatter(c * q * (e + 1), c, p.collective),
        ),
        linear("output", "attention", q * e, h, vectors=a.output_bias * h),
    ]


def latent(a: LatentAttention, h: int, p: Parallelism, *, decode: bool) -> list[Operator]:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), with rank r of the latent.

    - qkv_down: h to the latents of the query (r_q) and of the cache (r + e_rope); on every rank in
      full, with the norms of both latents.
    - q_up: q (e_nope + e_rope) query columns, from r_q or from h. Its pass rotates queries and the
      one key: reads and writes (q + 1) e_rope.
    - kv_up: r q (e_nope + e_value) parameters. As written, keys and values of all heads are made of
      the cached latents, 2 r q (e_nope + e_value) FLOPs per context. Absorbed, queries go into the
      latent space and results come out of it, the same FLOPs per token.
    - attention, per pair: 2q (e_nope + e_rope + e_value) FLOPs, absorbed 2q (2r + e_rope).
    - output: q e_value h.

    By default decode is absorbed and prefill is not. Split over c ranks as in `grouped`.
    """
    q, r = a.heads // p.tp, a.kv_rank
    key_dim, cache_dim = a.nope_dim + a.rope_dim, r + a.rope_dim
    query_rank = a.query_rank or 0
    down = linear(
        "qkv_down",
        "attention",
        h,
        query_rank + cache_dim,
        vectors=query_rank + r,
        moved=h + query_rank,
        cached=cache_per_token(a, p),
    )
    rotated = 2 * (q + 1) * a.rope_dim
    q_up = linear("q_up", "attention", a.query_rank or h, q * key_dim, passed=rotated)
    output = linear("output", "attention", q * a.value_dim, h)
    up = r * q * (a.nope_dim + a.value_dim)
    if not latent_absorbed(p, decode=decode):
        return [
            down,
            q_up,
            Operator(
                "kv_up",
                held=up,
                read=up,
                depth=r,
                flop_per_context=2 * up,
                cached_per_context=cache_dim,
                moved_per_context=q * (a.nope_dim + a.value_dim),
            ),
            Operator(
                "attention",
                flop_per_pair=2 * q * (key_dim + a.value_dim),
                moved_per_token=q * (key_dim + a.value_dim),
                moved_per_context=q * (key_dim + a.value_dim),
            ),
            output,
        ]
    c = p.kv_parallel if decode else 1
    return [
        down,
        q_up,
        Operator(
            "kv_up",
            launches=2,
            held=up,
            read=up,
            depth=r,
            flop_per_token=2 * up,
            moved_per_token=q * (a.nope_dim + 2 * r + a.value_dim),
            exchange=all_gather(c * q * cache_dim, c, p.collective),
        ),
        Operator(
            "attention",
            flop_per_pair=2 * q * (cache_dim + r),
            moved_per_token=c * q * (cache_dim + r),
            cached_per_context=cache_per_token(a, p) if decode else cache_dim,
            exchange=reduce_scatter(c * q * (r + 1), c, p.collective),
        ),
        output,
    ]


def latent_absorbed(p: Parallelism, *, decode: bool) -> bool:
    """Whether latent attention works on the latents themselves."""
    return decode if p.absorb_latent is None else p.absorb_latent


def attention_operators(
    attention: Attention, h: int, p: Parallelism, *, decode: bool
) -> list[Operator]:
    """Operators of the attention of one layer, without the sum over the ranks at its end."""
    match attention:
        case GroupedAttention():
            return grouped(attention, h, p, decode=decode)
        case LatentAttention():
            return latent(attention, h, p, decode=decode)
