"""How a design is run: parallelism, batches and clocks of the two pools."""

import equinox as eqx
from jax import Array
from jax.core import Tracer

from .errors import UserError
from .numerics import AnyArray, scalar
from .workload.parallelism import Parallelism


class Deployment(eqx.Module):
    """A prefill pool and a decode pool of one design, each made of groups of devices."""

    prefill: Parallelism = eqx.field(static=True)
    decode: Parallelism = eqx.field(static=True)
    batch_prefill: Array = eqx.field(converter=scalar)
    """Sequences per group and phase; at least one for each of dp x microbatches parts."""
    batch_decode: Array = eqx.field(converter=scalar)
    clock_prefill_ghz: Array = eqx.field(converter=scalar)
    clock_decode_ghz: Array = eqx.field(converter=scalar)


def check_batch(batch: float | AnyArray, p: Parallelism, where: str) -> None:
    """Refuse a batch that cannot be shared by the dp x microbatches parts of a group.

    An average, which need not be whole, has at least one sequence for each. A traced value is not
    looked at.

    **Raises:** `UserError` at `where`.
    """
    if isinstance(batch, Tracer):
        return
    parts, sequences = p.dp * p.microbatches, float(batch)
    if not sequences >= parts or (sequences.is_integer() and sequences % parts):
        raise UserError(
            f"{sequences:.12g} sequences cannot be shared evenly by dp x microbatches = {parts} "
            "parts",
            where=where,
            allowed=f"a multiple of {parts}",
        )
