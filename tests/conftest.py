"""Strict numerics for every test."""

import jax
from hypothesis import HealthCheck, settings

from litegpu_opt import numerics  # noqa: F401 - switches double precision on


jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

settings.register_profile(
    "litegpu",
    deadline=None,
    max_examples=40,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("litegpu")
