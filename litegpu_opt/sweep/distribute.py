"""Parts of a sweep on other machines: tasks of Ray, and shards that are put together again."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..files import parse_toml, validated, write_atomic
from ..study import Study, load_study, resolved_toml
from .engine import Engine
from .parts import compute_part, count_parts, empty_state, first_look, state_path
from .run import Spread, asked, finished, make_engine
from .store import MANIFEST, Store, differences, read_manifest


CACHE = "JAX_COMPILATION_CACHE_DIR"
CACHE_MINIMUM = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
RETRIES = -1
"""Of a task whose worker is lost: always."""


def ray_spread(study: Study, *, x64: bool, address: str | None) -> Spread:
    """Works out parts as tasks of Ray, one part a task; a lost worker's part is done again.

    Needs GPUs of the cluster where this machine's JAX has one, else a core each.

    **Raises:** `UserError` where Ray is not installed, or the cluster does not answer.
    """
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        what = "Ray is not installed"
        allowed = "pip install 'litegpu-opt[ray]'"
        raise UserError(what, where="--executor", allowed=allowed) from None
    try:  # before JAX has threads that a fork would not copy
        ray.init(address=address, log_to_driver=False, include_dashboard=False)
    except Exception as error:  # whatever Ray raises where there is no cluster
        raise UserError(f"Ray does not start: {error}", where="--address") from None
    import jax

    text = resolved_toml(study)
    device = {"num_gpus": 1} if jax.default_backend() == "gpu" else {"num_cpus": 1}
    cached = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    variables = {CACHE: str(cached), CACHE_MINIMUM: "0"} if cached else {}

    def spread(parts: list[int]) -> Iterator[tuple[int, Mapping[str, bytes]]]:
        environment = {"env_vars": variables}
        task = ray.remote(max_retries=RETRIES, runtime_env=environment, **device)(_part)
        try:
            width = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
            queue = iter(parts)
            running = {}
            for part in queue:
                running[task.remote(text, x64, part)] = part
                if len(running) < width:
                    continue
                yield from _collect(ray, running)
            while running:
                yield from _collect(ray, running)
        finally:
            ray.shutdown()

    return spread


def _collect(ray: Any, running: dict[Any, int]) -> Iterator[tuple[int, Mapping[str, bytes]]]:
    """Parts that have come in, taken from those that run."""
    done, _ = ray.wait(list(running), num_returns=1)
    for reference in done:
        yield running.pop(reference), ray.get(reference)


def _part(text: str, x64: bool, part: int) -> dict[str, bytes]:
    """A part of the sweep of a study given as a text, on a worker."""
    engine, edges, fronts = _prepared(text, x64)
    return compute_part(engine, part, edges, fronts)


@cache
def _prepared(text: str, x64: bool) -> tuple[Engine, np.ndarray, list]:
    """The programs of a study: a worker compiles them once."""
    study = validated(Study, parse_toml(text, "study.toml"), "study.toml")
    engine = make_engine(study, x64=x64)
    engine.prepare()
    return engine, *first_look(engine)


def merge(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """The result of a sweep whose parts are spread over folders, written to one of them or to a
    new one.

    **Raises:** `UserError` for folders of different sweeps, and where parts are missing.
    """
    manifests = [read_manifest(folder) for folder in folders]
    for folder, manifest in zip(folders, manifests, strict=True):
        changes = differences(manifests[0]["asked"], manifest["asked"])
        if changes:
            what = f"another sweep than {folders[0]}: {', '.join(changes[:3])}"
            raise UserError(what, where=str(folder), allowed="shards of one sweep")
    study = load_study(folders[0] / "study.toml")
    x64 = manifests[0]["asked"]["precision"] == "x64"
    engine = make_engine(study, x64=x64)
    store = Store(out, asked(study, x64=x64), count_parts(engine))
    with store.locked((1, 1)):
        for name in (MANIFEST, "study.toml"):
            write_atomic(out / name, (folders[0] / name).read_bytes())
        manifest = store.open({})
        for folder in folders:
            _take_parts(store, folder)
        missing = sorted(set(range(store.parts)) - store.done())
        if missing:
            what = f"{len(missing)} of {store.parts} parts are missing, the first is {missing[0]}"
            raise UserError(what, where=str(out), allowed="all shards, or run the sweep again")
        state = empty_state(engine)
        for part in range(store.parts):
            state.add(store.read(part), engine.problem.sweep.best)
        edges = np.array(manifest["edges"])
        result = finished(engine, store, state, edges)
    if result is None:
        raise UserError("parts do not hold all points", where=str(out))
    return result


def _take_parts(store: Store, folder: Path) -> None:
    """Copy the files of a folder's parts, the states last."""
    if folder.resolve() == store.folder.resolve():
        return
    for part in sorted(Store(folder, store.asked, store.parts).done() - store.done()):
        state = Path(state_path(part))
        names = [Path(kind) / f"{state.stem}.parquet" for kind in ("each", "rows")]
        for name in (*names, state):
            if not (folder / name).exists():
                continue
            target = store.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_name(f".{target.name}.copy")
            shutil.copyfile(folder / name, draft)
            draft.replace(target)
