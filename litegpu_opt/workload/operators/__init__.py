"""What one phase does on one device: every operator counted once, in one place. No JAX."""

from .attention import cache_per_token
from .model import stage_kinds, stage_layers, stages
from .operator import Number, Operator, Routing


__all__ = [
    "Number",
    "Operator",
    "Routing",
    "cache_per_token",
    "stage_kinds",
    "stage_layers",
    "stages",
]
