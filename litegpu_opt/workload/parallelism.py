"""How one phase is spread over devices, and which ways a model allows."""

import math
from dataclasses import dataclass

from ..errors import UserError
from .collectives import check_algorithm
from .transformer import DenseMlp, Experts, GroupedAttention, LatentAttention, Transformer


@dataclass(frozen=True)
class Parallelism:
    """A group of `tp * dp * pp` devices that serves one phase.

    - `tp`: tensor parallelism: heads, feed-forward columns and vocabulary rows are split.
    - `dp`: data parallelism inside the group: replicas that share the sequences of a batch, and
      the experts if `ep > 1`.
    - `pp`: pipeline stages of consecutive layers.
    - `ep`: expert parallelism: the `tp * dp` ranks of a stage hold E/ep experts each, split over
      `tp * dp / ep` ranks. With 1, every replica holds all experts, split like a dense MLP.
    - `kv_parallel`: ranks over which the cache of a sequence is split, of those that would hold
      the same key/value heads.
    - `microbatches`: parts of a batch that follow each other through the stages.
    - `collective`: algorithm of the collectives (`collectives.ALGORITHMS`).
    - `absorb_latent`: latent attention works on the latents themselves; `None`: in decode only.
    """

    tp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    kv_parallel: int = 1
    microbatches: int = 1
    collective: str = "ring"
    absorb_latent: bool | None = None

    def __post_init__(self):
        for name in NAMES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                what = f"{NAMES[name]} {value!r} is not a positive whole number"
                raise UserError(what, where=name)
        if not isinstance(self.absorb_latent, bool | None):
            what = f"{self.absorb_latent!r} is no choice"
            raise UserError(what, where="absorb_latent", allowed="true, false, none")
        check_algorithm(self.collective)

    @property
    def ranks(self) -> int:
        """Devices of one stage: tp dp."""
        return self.tp * self.dp

    @property
    def devices(self) -> int:
        """Devices of the group: tp dp pp."""
        return self.tp * self.dp * self.pp

    @property
    def expert_tp(self) -> int:
        """Ranks that share one expert: tp, or tp dp / ep."""
        return self.tp if self.ep == 1 else self.ranks // self.ep

    @property
    def expert_replicas(self) -> int:
        """Replicas whose tokens meet in the same experts: 1, or dp with expert parallelism."""
        return 1 if self.ep == 1 else self.dp


NAMES = {
    "tp": "tensor-parallel degree",
    "dp": "data-parallel degree",
    "pp": "number of pipeline stages",
    "ep": "expert-parallel degree",
    "kv_parallel": "KV-parallel degree",
    "microbatches": "number of microbatches",
}


def tensor_parallel_degrees(transformer: Transformer, limit: int) -> tuple[int, ...]:
    """Degrees up to `limit` that split the query heads and every feed-forward width evenly."""
    common = math.gcd(transformer.heads, *_widths(transformer, experts=True))
    return tuple(n for n in range(1, min(limit, common) + 1) if common % n == 0)


def check_parallelism(transformer: Transformer, p: Parallelism, where: str = "") -> None:
    """Refuse what the model cannot be spread over.

    **Raises:** `UserError` with the option (`where` with the name of the degree in it, such as
    `--{}`, or as it is) and the field of the model that forbids it.
    """

    def refuse(name: str, fault: str, allowed: str = "") -> UserError:
        option = name.replace("_", "-") if where.startswith("--") else name
        place = where.format(option) if "{}" in where else where
        what = f"{NAMES[name]} {getattr(p, name)} {fault} of {transformer.name}"
        return UserError(what, where=place, allowed=allowed)

    degrees = tensor_parallel_degrees(transformer, transformer.heads)
    if transformer.heads % p.tp:
        fault = f"does not divide num_attention_heads {transformer.heads}"
        raise refuse("tp", fault, _listed(degrees))
    for width in _widths(transformer, experts=p.ep == 1):
        if width % p.tp:
            raise refuse("tp", f"does not divide the feed-forward width {width}", _listed(degrees))
    if p.pp > len(transformer.layers):
        layers = len(transformer.layers)
        raise refuse("pp", f"is more than the {layers} layers", f"1 to {layers}")
    if p.absorb_latent is not None and not transformer.has_latents:
        place = "--latent" if where.startswith("--") else where.format("absorb_latent")
        raise UserError(f"{transformer.name} has no latent attention", where=place)
    _check_experts(transformer, p, refuse)
    _check_kv(transformer, p, refuse)


def _listed(numbers) -> str:
    return ", ".join(str(n) for n in numbers)


def _widths(transformer: Transformer, *, experts: bool) -> list[int]:
    """Feed-forward widths that tensor parallelism splits; those of experts if they are as well."""
    widths = set()
    for layer in set(transformer.layers):
        match layer.mlp:
            case DenseMlp(width=width):
                widths.add(width)
            case Experts(width=width, shared_width=shared) if experts:
                widths |= {width, shared} - {0}
    return sorted(widths)


def _check_experts(transformer: Transformer, p: Parallelism, refuse) -> None:
    if p.ep == 1:
        return
    experts = {layer.mlp for layer in transformer.layers if isinstance(layer.mlp, Experts)}
    if not experts:
        raise refuse("ep", "is for experts, and there are none in the layers", "1")
    common = math.gcd(p.ranks, *(mlp.count for mlp in experts))
    shared = math.gcd(*(mlp.width for mlp in experts))
    valid = _listed(
        n for n in range(2, common + 1) if common % n == 0 and shared % (p.ranks // n) == 0
    )
    allowed = f"1, {valid}" if valid else "1"
    if p.ranks % p.ep:
        raise refuse("ep", f"does not divide the tp dp = {p.ranks} ranks of a stage", allowed)
    for mlp in experts:
        if mlp.count % p.ep:
            raise refuse("ep", f"does not divide the {mlp.count} experts", allowed)
        if mlp.width % p.expert_tp:
            fault = f"leaves {p.expert_tp} ranks for an expert, which do not divide the width"
            raise refuse("ep", f"{fault} {mlp.width}", allowed)


def _check_kv(transformer: Transformer, p: Parallelism, refuse) -> None:
    if transformer.has_latents and p.kv_parallel > 1 and p.absorb_latent is False:
        raise refuse("kv_parallel", "needs latents that are not expanded in the layers", "1")
    for layer in set(transformer.layers):
        copies = cache_copies(layer.attention, p.tp)
        if copies % p.kv_parallel:
            fault = f"does not divide the {copies} ranks that hold the same cache in the layers"
            valid = _listed(n for n in range(1, copies + 1) if copies % n == 0)
            raise refuse("kv_parallel", fault, valid)


def cache_copies(attention: GroupedAttention | LatentAttention, tp: int) -> int:
    """Ranks of `tp` that hold the same part of the cache: all for a latent, tp/k for heads."""
    if isinstance(attention, LatentAttention):
        return tp
    return tp // attention.kv_heads if tp % attention.kv_heads == 0 else 1
