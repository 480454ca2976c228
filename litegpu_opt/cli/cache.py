"""The cache of compiled programs: the first search traces and compiles, later ones do not."""

import os
import tempfile
import warnings
from pathlib import Path


VARIABLE = "LITEGPU_CACHE"
"""Environment variable: `off`, or a folder in place of the user's cache folder."""


def trace_quickly() -> None:
    """Settings of a short-lived process that traces large programs: 4 of 30 s with a warm cache.

    Tracing makes millions of objects and hardly any garbage, so collecting it is left to the end of
    the process; and nobody reads the source locations inside a compiled program.
    """
    import gc

    import jax

    gc.disable()
    jax.config.update("jax_traceback_in_locations_limit", 0)


def enable_compilation_cache() -> Path | None:
    """Keep compiled programs on disk, from before JAX is used. `None`: off, or impossible."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA's own log goes to stderr
    setting = os.environ.get(VARIABLE, "")
    if setting.lower() == "off":
        return None
    folder = Path(setting) if setting else _default_folder()
    try:
        str(folder).encode("utf-8")  # JAX cannot take a name that is not text
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError):
        return None
    import jax

    from ..programs import keep_programs_in

    keep_programs_in(folder)
    warnings.filterwarnings("ignore", message=".*persistent compilation cache.*")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


def _default_folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("litegpu-opt", appauthor=False)
