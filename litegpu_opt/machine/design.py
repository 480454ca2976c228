"""What the architect chooses: the accelerator itself."""

import equinox as eqx
from jax import Array

from ..numerics import scalar


def _optional(value: float | Array | None) -> Array | None:
    return None if value is None else scalar(value)


class Design(eqx.Module):
    """One accelerator package: its dies, memory and network port. All leaves are JAX scalars.

    Quantities are per package except the die area, which is per die.
    """

    die_area_mm2: Array = eqx.field(converter=scalar)
    sm_count: Array = eqx.field(converter=scalar)
    """Enabled streaming multiprocessors; the harvested spares come on top."""
    clock_ghz: Array = eqx.field(converter=scalar)
    """Highest sustained clock; a phase may run slower (`Deployment`)."""
    memory_stacks: Array = eqx.field(converter=scalar)
    memory_gb: Array = eqx.field(converter=scalar)
    network_gb_s: Array = eqx.field(converter=scalar)
    """Scale-up bandwidth per direction."""
    aspect_ratio: Array = eqx.field(converter=scalar, default=1.0)
    """Long side of a die over its short side (discrete)."""
    dies_per_package: Array = eqx.field(converter=scalar, default=1.0)
    """Compute dies joined in one package (discrete)."""
    tdp_w: Array | None = eqx.field(converter=_optional, default=None)
    """Thermal design power that the package is specified for, if above its largest rated power."""

    @property
    def silicon_mm2(self) -> Array:
        """Compute silicon of the package."""
        return self.die_area_mm2 * self.dies_per_package
