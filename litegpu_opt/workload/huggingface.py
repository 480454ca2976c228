"""Read a `Transformer` from a built-in name or from a Hugging Face `config.json`."""

import json
import os
import tomllib
from importlib.resources import files
from pathlib import Path

from ..errors import UserError, unknown_name
from ..files import read_text
from .config_file import ConfigFile
from .families import FAMILIES
from .transformer import Transformer


def builtin_models() -> tuple[str, ...]:
    """Names of the built-in models."""
    names = (entry.name for entry in _catalog().iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def model_aliases() -> dict[str, str]:
    """Other names of the built-in models, in lower case, and the model that each one means."""
    return tomllib.loads((_catalog() / "aliases.toml").read_text(encoding="utf-8"))


def read_transformer(name_or_path: str | os.PathLike[str]) -> Transformer:
    """The transformer that a name or a file describes.

    **Arguments:**

    - `name_or_path`: a built-in name or Hugging Face id in any case, a `config.json`, or a
      folder that holds one. A name wins over a folder of the same name: write `./name`.

    **Raises:** `UserError` with file and key.
    """
    name = str(name_or_path)
    builtin = model_aliases().get(name.lower(), name.lower())
    if builtin in builtin_models():
        text = (_catalog() / f"{builtin}.json").read_text(encoding="utf-8")
        return _parse(text, path=f"{builtin}.json", name=builtin)
    expanded = os.path.expanduser(name)
    if not (os.path.exists(expanded) or name.endswith(".json") or name.startswith((".", "/", "~"))):
        raise unknown_name("model", name, builtin_models(), where="model")
    path = Path(expanded)
    if os.path.isdir(expanded):
        path = path / "config.json"
    text = read_text(path, "JSON")
    stem = path.resolve().parent.name if path.name == "config.json" else path.stem
    return _parse(text, path=str(path), name=stem)


def _catalog():
    return files("litegpu_opt.catalog") / "models"


def _parse(text: str, *, path: str, name: str) -> Transformer:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not valid JSON: {error}", where=path) from error
    if not isinstance(fields, dict):
        raise UserError("not a JSON object", where=path, allowed="the content of a config.json")
    config = ConfigFile(fields, path=path, name=name)
    model_type = fields.get("model_type")
    elsewhere = frozenset().union(*(family.fields for family in FAMILIES.values()))
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        what = "missing" if model_type is None else f"{str(model_type)[:40]!r} is not understood"
        unread = config.not_understood(elsewhere)
        more = f"; fields not understood: {', '.join(unread)}" if unread else ""
        raise config.error("model_type", what + more, allowed=", ".join(FAMILIES))
    family = FAMILIES[model_type]
    config.check_leftovers(family.fields, elsewhere)
    return family.read(config)
