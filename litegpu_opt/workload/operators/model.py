"""A whole model as operators: stages, layers, and what stands before and after them."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache

from ..collectives import all_gather, all_reduce, point_to_point, reduce_scatter
from ..parallelism import Parallelism
from ..transformer import Experts, Layer, Transformer
from .attention import attention_operators
from .mlp import mlp_operators, own_share
from .operator import Operator, merged, whole


def layer_operators(
    layer: Layer, model: Transformer, p: Parallelism, *, decode: bool
) -> list[Operator]:
    """Operators of one layer.

    The results of attention are summed over the ranks: an all-reduce of h per token; before experts
    that are spread over ranks a reduce-scatter, as each rank goes on with its share of the tokens.
    If a dense MLP and attention run side by side, one sum, after the MLP, serves both.
    """
    *before, output = attention_operators(layer.attention, model.hidden, p, decode=decode)
    spread = isinstance(layer.mlp, Experts) and p.ep > 1
    if spread or not layer.parallel:
        summed = reduce_scatter if spread else all_reduce
        output = replace(output, exchange=summed(model.hidden, p.tp, p.collective))
    after = own_share(p) if spread else Fraction(1)
    mlp = mlp_operators(layer.mlp, model.hidden, p)
    return [*before, output, *mlp, _elementwise(layer, model, after)]


def _elementwise(layer: Layer, model: Transformer, after: Fraction) -> Operator:
    """One kernel for each norm, with all its parameters on every device.

    A layer adds to the residual after attention and after the MLP, or once if these run side by
    side. Each sum is fused with the norm that follows it: x and the residual are read and written,
    4 h per token. Every other norm reads and writes x, 2 h. The first, before attention, is for all
    tokens; the others for the share `after` attention that the rank goes on with.
    """
    sums = 1 if layer.parallel else 2
    passes = 4 + after * (4 * (sums - 1) + 2 * (layer.norms - sums))
    return Operator(
        "elementwise",
        launches=layer.norms,
        vectors=layer.norms * model.norm_parameters,
        moved_per_token=whole(passes * model.hidden),
    )


def _embedding(model: Transformer, p: Parallelism) -> Operator:
    """Look-up: no FLOPs; holds V/tp rows and all positions, reads and writes h per token, and sums
    the shards of the vocabulary.
    """
    h = model.hidden
    return Operator(
        "embedding",
        part="embedding",
        held=(_vocabulary(model, p) + model.position_rows) * h,
        vectors=model.embedding_norm * model.norm_parameters,
        moved_per_token=2 * h,
        exchange=all_reduce(h, p.tp, p.collective),
    )


def _lm_head(model: Transformer, p: Parallelism) -> Operator:
    """Last norm and LM head for one token: 2 h V/tp FLOPs whether tied or not, h + V/tp moved.

    A tied head is held by the embedding, if that is in the same stage. The logits of the whole
    vocabulary are gathered.
    """
    h, rows = model.hidden, _vocabulary(model, p)
    held_elsewhere = model.tied_embeddings and p.pp == 1
    return Operator(
        "lm_head",
        part="head",
        held=0 if held_elsewhere else h * rows,
        read=h * rows,
        depth=h,
        vectors=model.norm_parameters,
        flop_per_token=2 * h * rows,
        moved_per_token=h + rows,
        last_token=True,
        exchange=all_gather(model.vocab, p.tp, p.collective),
    )


def _hand_on(model: Transformer) -> Operator:
    """What a pipeline stage sends to the next: h per token from every rank to its peer."""
    return Operator("hand_on", launches=0, exchange=point_to_point(model.hidden))


def _vocabulary(model: Transformer, p: Parallelism) -> int:
    """Vocabulary rows on one device: ceil(V/tp), the last device's shard padded."""
    return -(-model.vocab // p.tp)


def stage_layers(model: Transformer, stages: int) -> list[tuple[Layer, ...]]:
    """Consecutive layers of every stage, as even as can be, the longer ones first: the last stage
    also has the head.
    """
    least, longer = divmod(len(model.layers), stages)
    ends = [0]
    for stage in range(stages):
        ends.append(ends[-1] + least + (stage < longer))
    return [model.layers[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]


@cache
def stages(
    model: Transformer, p: Parallelism, *, decode: bool
) -> tuple[tuple[tuple[int, Operator], ...], ...]:
    """For every pipeline stage, its operators and how often each runs in one execution."""
    by_stage = stage_layers(model, p.pp)
    return tuple(
        merged(_stage(model, p, layers, first=n == 0, last=n == p.pp - 1, decode=decode))
        for n, layers in enumerate(by_stage)
    )


def _stage(
    model: Transformer,
    p: Parallelism,
    layers: tuple[Layer, ...],
    *,
    first: bool,
    last: bool,
    decode: bool,
) -> Iterator[Operator]:
    if first:
        yield _embedding(model, p)
    built = {layer: layer_operators(layer, model, p, decode=decode) for layer in set(layers)}
    for layer in layers:
        yield from built[layer]
    yield _lm_head(model, p) if last else _hand_on(model)


@cache
def stage_kinds(
    model: Transformer, p: Parallelism, *, decode: bool
) -> tuple[tuple[int, tuple[tuple[int, Operator], ...]], ...]:
    """Stages that are alike, once, and how many of them there are."""
    kinds: dict[tuple[tuple[int, Operator], ...], int] = {}
    for stage in stages(model, p, decode=decode):
        kinds[stage] = kinds.get(stage, 0) + 1
    return tuple((count, stage) for stage, count in kinds.items())
