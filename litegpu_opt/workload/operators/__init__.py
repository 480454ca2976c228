"""What one phase does on one device: every operator counted once, in one place. No JAX."""

from .attention import cache_per_token
from .model import slowest_stage, stage_layers, stages
from .operator import Operator, Routing


__all__ = ["Operator", "Routing", "cache_per_token", "slowest_stage", "stage_layers", "stages"]
