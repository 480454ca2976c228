"""One numerical setting for the whole package: double precision.

A certificate of 1e-9 cannot be stated in single precision. Packages with JAX
values import this module first.
"""

from collections.abc import Callable
from functools import cache, wraps
from threading import Event, Lock
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


Result = TypeVar("Result")

AnyArray = Array | np.ndarray
"""On a device or on the host."""

jax.config.update("jax_enable_x64", True)

TINY = 1e-30
"""Stands in for a resource an operator does not use, so that its logarithm is finite."""


def scalar(value: float | AnyArray) -> Array:
    """Convert a pytree leaf to a float64 JAX scalar (the converter of every numeric field)."""
    return jnp.asarray(value, dtype=jnp.float64)


QUICK_COMPILE = {"xla_cpu_use_fusion_emitters": False}
"""Halves the compile time of the solver on CPUs and costs no speed there; measured by
`python benchmarks/compile_time.py`."""


@cache
def _supported_options() -> dict[str, bool]:
    """The compiler options above, or none where this XLA does not know them."""
    try:
        jax.jit(lambda x: x + 1.0, compiler_options=QUICK_COMPILE)(0.0)
    except Exception:  # whatever this XLA raises, the options are only a convenience
        return {}
    return dict(QUICK_COMPILE)


def compiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """`jax.jit` with options that compile a long scalar program quickly.

    Threads that call it together wait for the first call, instead of each compiling the program.
    """
    first_call, ready = Lock(), Event()

    @cache
    def program() -> Callable[..., Result]:
        on_cpu = jax.default_backend() == "cpu"
        return jax.jit(function, compiler_options=_supported_options() if on_cpu else None)

    @wraps(function)
    def call(*args: Any) -> Result:
        if not ready.is_set():
            with first_call:
                if not ready.is_set():
                    result = program()(*args)
                    ready.set()
                    return result
        return program()(*args)

    return call
