"""Dense MLPs and mixtures of experts on one device.

Symbols per device: m matrices that read the input (2 when gated, else 1), f feed-forward columns,
h hidden, E experts of which a token goes to k.
"""

import math
from fractions import Fraction

from ..collectives import all_gather, all_reduce, all_to_all
from ..parallelism import Parallelism
from ..transformer import DenseMlp, Experts, Mlp
from .operator import NOTHING, Operator, Routing, linear, whole


def dense(mlp: DenseMlp, h: int, p: Parallelism) -> list[Operator]:
    """Gated or plain MLP.

    - up: h m f parameters. The activation function is part of the kernel: one column of f leaves
      it, gated or not. Where it is a pass of its own, that reads m f and writes f.
    - down: f h; the results of the ranks are summed.
    """
    f, m = mlp.width // p.tp, mlp.input_matrices
    return [
        linear("up", "mlp", h, m * f, vectors=mlp.bias * m * f, moved=h + f, passed=(m + 1) * f),
        linear(
            "down",
            "mlp",
            f,
            h,
            vectors=mlp.bias * h,
            exchange=all_reduce(h, p.tp, p.collective),
        ),
    ]


def mixture(mlp: Experts, h: int, p: Parallelism) -> list[Operator]:
    """Mixture of experts.

    - router: h E parameters on every rank (and h of the shared MLP's gate). With expert parallelism
      each rank has its share of the tokens and sends each of them, h numbers, to the distinct ranks
      of its experts (dispatch).
    - expert_up, expert_down: h m f and f h parameters for each expert on the device. FLOPs follow
      the k experts of a token; read are the experts that any token goes to (`ExpertCounts`). With
      expert parallelism each rank sends back one sum over its experts for a token, made as the
      results are written (combine, as many numbers).
    - shared_up, shared_down: a dense MLP beside them. Split like one; with expert parallelism on
      every rank in full, for the rank's own tokens.
    - combine: the weighted sum of the k results of a token, or of one from each rank that it was
      sent to, and of the shared MLP's; the ranks of a replica sum or gather theirs.

    Without expert parallelism every replica holds all experts.
    """
    k, m = mlp.per_token, mlp.input_matrices
    f = mlp.width // p.expert_tp
    spread = p.ep > 1
    # tokens of one replica: its ranks are given 1/tp of them each, or all see all of them
    own = own_share(p) if spread else Fraction(1)
    visits = whole(Fraction(k * p.expert_replicas, p.ep))
    results = _distinct_ranks(mlp, p) if spread else k
    summed = results + (mlp.shared_width > 0)
    routing = Routing(
        held=mlp.count // p.ep, count=mlp.count, per_token=k, replicas=p.expert_replicas
    )
    received = whole(own * results * h) if spread else h
    exchanged = all_to_all(received, p.ranks, p.collective) if spread else NOTHING
    whole_tokens = (
        all_gather(h, p.tp, p.collective) if spread else all_reduce(h, p.tp, p.collective)
    )
    return [
        Operator(
            "router",
            part="router",
            held=h * mlp.count,
            read=h * mlp.count,
            vectors=mlp.router_bias * mlp.count + mlp.shared_gate * h,
            depth=h,
            flop_per_token=whole(own * 2 * h * (mlp.count + mlp.shared_gate)),
            moved_per_token=whole(own * (h + mlp.count)),
            exchange=exchanged,
        ),
        Operator(
            "expert_up",
            part="experts",
            held=h * m * f,
            read=h * m * f,
            vectors=mlp.bias * m * f,
            routing=routing,
            depth=h,
            quantised_per_token=received,
            passes=1,
            passed_per_token=visits * (m + 1) * f,
            flop_per_token=visits * 2 * h * m * f,
            moved_per_token=visits * (h + f),
        ),
        Operator(
            "expert_down",
            part="experts",
            held=f * h,
            read=f * h,
            vectors=mlp.bias * h,
            routing=routing,
            depth=f,
            quantised_per_token=visits * f,
            flop_per_token=visits * 2 * f * h,
            moved_per_token=visits * (f + h),
            exchange=exchanged,
        ),
        *_shared(mlp, h, p, own),
        Operator(
            "combine",
            part="experts",
            moved_per_token=whole(own * (summed + 1) * h),
            exchange=whole_tokens,
        ),
    ]


def own_share(p: Parallelism) -> Fraction:
    """Share of a replica's tokens that each of its ranks works on, around experts that are spread
    over ranks."""
    return Fraction(1, p.tp)


def _distinct_ranks(mlp: Experts, p: Parallelism) -> Fraction:
    """Ranks that a token's experts are on, on average if experts are picked evenly:
    (tp dp / ep) ep (1 - C(E - E/ep, k)/C(E, k)).

    DeepEP's kernels for throughput send a token once to each of them; those for latency send it
    once for each expert, which is more.
    """
    others = math.comb(mlp.count - mlp.count // p.ep, mlp.per_token)
    missed = Fraction(others, math.comb(mlp.count, mlp.per_token))
    return p.expert_tp * p.ep * (1 - missed)


def _shared(mlp: Experts, h: int, p: Parallelism, own: Fraction) -> list[Operator]:
    if not mlp.shared_width:
        return []
    m = mlp.input_matrices
    f = mlp.shared_width if p.ep > 1 else mlp.shared_width // p.tp
    passed = whole(own * (m + 1) * f)
    return [
        Operator(
            name,
            part="mlp",
            held=size,
            read=size,
            depth=inputs,
            quantised_per_token=whole(own * inputs),
            passes=passes,
            passed_per_token=passes * passed,
            flop_per_token=whole(own * 2 * size),
            moved_per_token=whole(own * (h + f)),
        )
        for name, inputs, size, passes in (
            ("shared_up", h, h * m * f, 1),
            ("shared_down", f, f * h, 0),
        )
    ]


def mlp_operators(mlp: Mlp, h: int, p: Parallelism) -> list[Operator]:
    """Operators of the MLP of one layer, with the sum over the ranks at its end."""
    match mlp:
        case DenseMlp():
            return dense(mlp, h, p)
        case Experts():
            return mixture(mlp, h, p)
