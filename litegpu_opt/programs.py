"""Compiled programs, and how they are kept on disk from one process to the next.

JAX keeps what XLA compiles. Before that it has to trace and lower Python functions, which takes
as long as to solve with them; so the lowered programs (StableHLO) are kept as well.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from functools import cache, partial, wraps
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax import export

from .errors import UserError
from .files import write_atomic


Result = TypeVar("Result")

QUICK_COMPILE = {"xla_cpu_use_fusion_emitters": False}
"""Halves the compile time of the solver on CPUs and costs no speed there; measured by
`python benchmarks/compile_time.py`."""

TRACED_LIBRARIES = ("jax", "jaxlib", "equinox", "optax")
"""Libraries whose code ends up in a program."""
CHECKSUM_BYTES = hashlib.sha256().digest_size

_folder: Path | None = None


def keep_programs_in(folder: Path | None) -> None:
    """Keep programs that are prepared from now on in a folder, and take from it what is there.

    A program is found by the sources of this package, the versions of the libraries, the kind of
    device and the structure and shapes of its arguments; where one differs, it is traced again.
    """
    global _folder
    _folder = folder


def compiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """`jax.jit` with options that compile a long scalar program quickly, kept on disk if wanted.

    The arguments are pytrees of arrays. Threads that call it together wait for the first one to
    prepare the program, instead of each doing so.
    """
    preparing = Lock()
    programs: dict[Any, Callable[..., Result]] = {}

    @wraps(function)
    def call(*args: Any) -> Result:
        leaves, structure = jax.tree.flatten(args)
        key = structure, tuple((np.shape(leaf), str(leaf.dtype)) for leaf in leaves)
        if key not in programs:
            with preparing:
                if key not in programs:
                    programs[key] = _prepare(function, leaves, structure)
        return programs[key](*leaves)

    return call


def _prepare(function: Callable, leaves: list, structure: Any) -> Callable:
    """The function of flat arguments, compiled."""

    def flat(*leaves: Any) -> Any:
        return function(*jax.tree.unflatten(structure, leaves))

    options = _quick_compile() if jax.default_backend() == "cpu" else None
    if _folder is None:
        program = jax.jit(flat, compiler_options=options)
    else:
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        path = _folder / f"{_identity(function, structure, shapes)}.stablehlo"
        exported = _read(path)
        if exported is None:
            exported = export.export(jax.jit(flat))(*shapes)
            _write(path, exported)
        program = jax.jit(exported.call, compiler_options=options)
    return program.lower(*leaves).compile()


@cache
def _quick_compile() -> dict[str, bool]:
    """The compiler options above, or none where this XLA does not know them."""
    try:
        jax.jit(lambda x: x + 1.0, compiler_options=QUICK_COMPILE)(0.0)
    except Exception:  # whatever this XLA raises, the options are only a convenience
        return {}
    return dict(QUICK_COMPILE)


def _read(path: Path) -> export.Exported | None:
    """The program kept in a file; `None` where there is none, or not whole."""
    _name_modules()
    try:
        content = path.read_bytes()
    except OSError:
        return None
    checksum, program = content[:CHECKSUM_BYTES], content[CHECKSUM_BYTES:]
    return export.deserialize(bytearray(program)) if checksum == _checksum(program) else None


def _write(path: Path, exported: export.Exported) -> None:
    program = bytes(exported.serialize())
    with contextlib.suppress(UserError):  # a full disk only costs the next process its time
        write_atomic(path, _checksum(program) + program)


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _identity(function: Callable, structure: Any, shapes: list) -> str:
    """What a program depends on, as a name."""
    parts = (
        _sources(),
        [version(library) for library in TRACED_LIBRARIES],
        jax.default_backend(),
        function.__module__,
        structure,
        shapes,
    )
    return f"{function.__name__.strip('_')}-{_checksum(repr(parts).encode()).hex()[:32]}"


@cache
def _sources() -> str:
    """Checksum of all modules of this package."""
    package = Path(__file__).parent
    modules = sorted(package.rglob("*.py"))
    return _checksum(b"".join(module.read_bytes() for module in modules)).hex()


@cache
def _name_modules() -> None:
    """Tell JAX how the pytrees of this package are named in a kept program."""
    for module in set(_subclasses(eqx.Module)):
        if module.__module__.partition(".")[0] == __package__:
            export.register_pytree_node_serialization(
                module,
                serialized_name=f"{module.__module__}.{module.__qualname__}",
                serialize_auxdata=lambda aux_data, /: b"",
                deserialize_auxdata=lambda serialized_aux_data, /: None,
                from_children=partial(_module_of, module),
            )


def _subclasses(base: type) -> Iterator[type]:
    for child in base.__subclasses__():
        yield child
        yield from _subclasses(child)


def _module_of(module: type, aux_data: None, children: Any) -> Any:
    """An instance with the given fields, whose converters are not asked."""
    instance = object.__new__(module)
    for field, child in zip(dataclasses.fields(module), children, strict=True):
        object.__setattr__(instance, field.name, child)
    return instance
