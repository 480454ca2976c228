"""How a design is run: parallelism, batches and clocks of the two pools."""

import equinox as eqx
from jax import Array

from .numerics import scalar
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
