"""Strict numerics for every test."""

from pathlib import Path

import jax
from hypothesis import HealthCheck, settings

from litegpu_opt import numerics  # noqa: F401 - switches double precision on


jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# what XLA compiles is kept for the other workers, and for the next run
COMPILED = Path(__file__).parent.parent / ".pytest_cache" / "xla"
jax.config.update("jax_compilation_cache_dir", str(COMPILED))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 2.0)

settings.register_profile(
    "litegpu",
    deadline=None,
    max_examples=20,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("litegpu")
