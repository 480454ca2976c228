"""What one phase does on one device: every operator counted once, in one place. No JAX."""

from .attention import cache_per_token
from .model import stage_kinds, stage_layers, stages
from .operator import Operator, Routing


__all__ = ["Operator", "Routing", "cache_per_token", "stage_kinds", "stage_layers", "stages"]
