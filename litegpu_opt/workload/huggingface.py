"""Read a `Transformer` from a built-in name or from a Hugging Face `config.json`."""

import json
import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import UserError, unknown_name
from ..files import read_text
from .config_file import ConfigFile, every_spelling, short
from .families import FAMILIES, Family
from .quantization import read_quantization
from .transformer import Transformer


TEXT_MODELS = ("text_config", "llm_config", "language_config")
"""Where a multimodal model has the shape of its language model."""

_ALL_FIELDS = every_spelling(key for family in FAMILIES.values() for key in family.fields)


def builtin_models() -> tuple[str, ...]:
    """Names of the built-in models."""
    names = (entry.name for entry in _catalog().iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def model_aliases() -> dict[str, str]:
    """Other names of the built-in models, in lower case, and the model that each one means."""
    return tomllib.loads((_catalog() / "aliases.toml").read_text(encoding="utf-8"))


def builtin_name(name: str) -> str | None:
    """The built-in model that a name or an alias in any case means, or `None`."""
    known = model_aliases().get(name.lower(), name.lower())
    return known if known in builtin_models() else None


def read_transformer(name_or_path: str | os.PathLike[str], where: str = "model") -> Transformer:
    """The transformer that a name or a file describes.

    **Arguments:**

    - `name_or_path`: a built-in name or Hugging Face id in any case, a `config.json`, or a
      folder that holds one. A name wins over a folder of the same name: write `./name`.
    - `where`: who asks, for the error of an unknown name.

    Number formats come from `quantization_config`, or from the `hf_quant_config.json` in the same
    folder (`x.hf_quant_config.json` beside `x.json`).

    **Raises:** `UserError` with file and key.
    """
    name = str(name_or_path)
    builtin = builtin_name(name)
    if builtin is not None:
        text = (_catalog() / f"{builtin}.json").read_text(encoding="utf-8")
        return _read(_parsed(text, path=f"{builtin}.json", name=builtin), beside=None)
    expanded = os.path.expanduser(name)
    if not (os.path.exists(expanded) or name.endswith(".json") or name.startswith((".", "/", "~"))):
        error = unknown_name("model", name, builtin_models())
        allowed = f"{error.allowed}, or the path of a config.json"
        raise UserError(error.what, where=where, allowed=allowed)
    path = Path(expanded)
    if os.path.isdir(expanded):
        path = path / "config.json"
    text = read_text(path, "JSON")
    if path.name == "config.json":
        stem, beside = path.resolve().parent.name, path.with_name("hf_quant_config.json")
    else:
        stem, beside = path.stem, path.with_name(f"{path.stem}.hf_quant_config.json")
    config = _parsed(text, path=str(path), name=stem)
    if not os.path.isfile(beside):  # which takes names that are too long
        return _read(config, beside=None)
    formats = _parsed(read_text(beside, "JSON"), path=str(beside), name=stem)
    return _read(config, beside=replace(formats, assumed=config.assumed))


def _catalog():
    return files("litegpu_opt.catalog") / "models"


def _parsed(text: str, *, path: str, name: str) -> ConfigFile:
    try:
        fields = json.loads(text, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not valid JSON: {error}", where=path) from error
    if not isinstance(fields, dict):
        raise UserError("not a JSON object", where=path, allowed="an object with named fields")
    return ConfigFile(fields, path=path, name=name)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a file, in which no name may stand twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{short(twice)} stands there twice")
    return fields


def _read(config: ConfigFile, beside: ConfigFile | None) -> Transformer:
    family = _family(config)
    text_model = config
    if config.model_type in family.wrappers:
        text_model = _text_model(config, family)
    text_model.check_leftovers(family.understood, _ALL_FIELDS)
    shape = family.read(text_model)
    inside = text_model.fields.get("quantization_config") is not None
    stated = text_model if inside else config
    quantized, kv_format = read_quantization(shape, stated, beside)
    if stated.fields.get("quantization_config") and not quantized:
        config.assume("quantization_config converts no matrix")
    return replace(shape, quantized=quantized, kv_format=kv_format, assumed=tuple(config.assumed))


def _family(config: ConfigFile) -> Family:
    model_type = config.model_type
    if isinstance(model_type, str) and model_type in FAMILIES:
        _check_architectures(config, (model_type, *FAMILIES[model_type].also_named))
        return FAMILIES[model_type]
    what = "missing" if model_type is None else f"{str(model_type)[:40]!r} is not understood"
    unread = config.not_understood(_ALL_FIELDS)
    more = f"; fields not understood: {', '.join(unread)}" if unread else ""
    raise config.error("model_type", what + more, allowed=", ".join(FAMILIES))


def _check_architectures(config: ConfigFile, model_types: Sequence[str]) -> None:
    """Refuse a file whose `architectures` name another type, or another head than that for text."""
    named = config.fields.get("architectures")
    if named is None:
        return
    stems = "|".join(name.removesuffix("_text").replace("_", "") for name in model_types)
    expected = re.compile(f"({stems})(forcausallm|forconditionalgeneration|lmheadmodel|model)?")
    if not isinstance(named, list) or not all(
        isinstance(name, str) and expected.fullmatch(name.lower()) for name in named
    ):
        what = f"{short(named)} does not go with model_type {config.model_type!r}"
        raise config.error("architectures", what, allowed="a causal language model of that type")


def _text_model(config: ConfigFile, family: Family) -> ConfigFile:
    """The language model of a multimodal one, which shares the flag of the tied embedding."""
    places = [key for key in TEXT_MODELS if config.fields.get(key) is not None]
    if len(places) != 1:
        what = f"beside {places[1]}" if places else f"missing (or {', '.join(TEXT_MODELS[1:])})"
        raise config.error(TEXT_MODELS[0], what, allowed="one object with the language model")
    place, tied = places[0], "tie_word_embeddings"
    text = config.nested(place)
    if text.model_type not in (None, *family.model_types):
        raise text.error(
            "model_type",
            f"{short(text.model_type)} is not understood in {config.model_type!r}",
            allowed=", ".join(family.model_types),
        )
    fields = dict(text.fields) | {"model_type": text.model_type or family.model_types[0]}
    if config.fields.get(tied) is not None and fields.get(tied) is None:
        fields[tied] = config.flag(tied, default=True)
    config.check_leftovers(family.harmless | {place, "vision_config", tied}, _ALL_FIELDS)
    config.assume("text model only; vision tower not counted")
    return replace(text, fields=fields)
