"""A study as a file: read, checked, written out, and recognised again."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..catalog import load_accelerator
from ..errors import UserError
from ..files import Table, embedded, parse_toml, read_toml, toml_literal, validated
from ..workload.huggingface import read_transformer
from ..workload.transformer import Transformer
from .study import Study, file_key, leaf_keys


def load_study(path: str | Path | None = None) -> Study:
    """Read and check a study file; the embedded panel without one.

    Relative paths of models and accelerators are taken from the folder of the file.
    """
    if path is None:
        text = embedded("studies", "panel.toml").read_text("utf-8")
        panel = validated(Study, parse_toml(text, "panel.toml"), "panel.toml")
        values = {file_key(Study, name): value for name, value in panel}
        return Study.model_construct(_fields_set=set(), **values)
    raw = read_toml(path)
    _find_files(raw, Path(path).parent)
    study = validated(Study, raw, str(path))
    study_transformers(study, f"{path}:")
    for index, baseline in enumerate(study.baselines):
        load_accelerator(baseline.accelerator, f"{path}:baseline[{index}].accelerator")
    return study


def study_transformers(study: Study, place: str = "") -> list[Transformer]:
    """The models of the workloads.

    **Raises:** `UserError` with `place` and the key, for a model that cannot be read or searched.
    """
    return [
        _transformer(row.model, f"{place}workload[{index}].model")
        for index, row in enumerate(study.workloads)
    ]


def _transformer(name_or_path: str, where: str) -> Transformer:
    try:
        transformer = read_transformer(name_or_path, "")
    except UserError as error:
        inside = f": {error.where}" if error.where else ""
        raise UserError(error.what, where=where + inside, allowed=error.allowed) from None
    return transformer


def _find_files(raw: dict[str, Any], folder: Path) -> None:
    """Make paths absolute, so that a study means the same when it is written elsewhere."""
    for header, key in (("workload", "model"), ("baseline", "accelerator")):
        rows = raw.get(header)
        for row in rows if isinstance(rows, list) else []:
            text = row.get(key) if isinstance(row, dict) else None
            if isinstance(text, str) and _is_path(text) and _exists(folder / text):
                row[key] = str((folder / text).resolve())


def _is_path(text: str) -> bool:
    return "/" in text or os.sep in text or text.endswith((".json", ".toml"))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # such as a name that is too long
        return False


def resolved_toml(study: Study, flags: Iterable[str] = ()) -> str:
    """The study with everything written out, and where each value came from as a comment.

    `load_study` of this text gives an equal study. `flags` are the keys that an option replaced.
    """
    origin = study.origin() | dict.fromkeys(flags, "flag")
    blocks = []
    for path, table in study.tables():
        lines = [_header(path)] if path else []
        for key, value in _content(table).items():
            source = origin[f"{path}.{key}".lstrip(".")]
            lines.append(f"{key} = {toml_literal(value)}  # {source}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _header(path: str) -> str:
    name, row, _ = path.partition("[")
    return f"[[{name}]]" if row else f"[{name}]"


def _content(table: Table) -> dict[str, Any]:
    """File key -> value as it stands in a file, without nested tables."""
    return table.model_dump(by_alias=True, include=set(leaf_keys(table)))


def study_hash(study: Study) -> str:
    """SHA-256 of what a study asks; independent of layout, units written and origin."""
    content = [(path, _content(table)) for path, table in study.tables()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


SWEPT = ("seed", "basis", "objective")
"""Keys of a study without a table of their own that a sweep depends on."""


def sweep_content(study: Study) -> dict[str, Any]:
    """What the sweep of a study depends on: key path -> content."""
    whole = {path: _content(table) for path, table in study.tables()}
    if study.sweep is not None and study.sweep.workload:
        names = [row.name for row in study.workloads]
        number = names.index(study.sweep.workload)
    else:
        number = 0
    tables = ("technology", f"workload[{number}]", "sweep")
    content = {key: whole[""][key] for key in SWEPT} | {path: whole[path] for path in tables}
    return json.loads(json.dumps(content))
