"""The boundary where files that users write come in and results go out."""

import contextlib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from .errors import UserError, unknown_name
from .units import shown


MOST_BYTES = 2_000_000
"""Largest input file: these are written by hand."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_.\[\]-]+")


def read_text(path: str | Path, kind: str = "text") -> str:
    """Content of a UTF-8 file; `UserError` for whatever is wrong with it."""
    where, allowed = str(path), f"a {kind} file in UTF-8"
    try:
        if not Path(path).exists():
            raise UserError("no such file", where=where, allowed=allowed)
        if not Path(path).is_file():  # a pipe would block, a folder has no text
            raise UserError("not a file", where=where, allowed=allowed)
        if Path(path).stat().st_size > MOST_BYTES:
            raise UserError("too large", where=where, allowed=f"at most {MOST_BYTES} bytes")
        return Path(path).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 at byte {error.start}", where=where, allowed=allowed) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot be read: {reason}", where=where, allowed=allowed) from None


def embedded(*parts: str) -> Traversable:
    """A file or folder of the catalogue that ships with the package."""
    return files("litegpu_opt.catalog").joinpath(*parts)


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Parse TOML; `UserError` with line and column if it is not."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not TOML: {error}", where=where) from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file."""
    return parse_toml(read_text(path, "TOML"), str(path))


def toml_literal(value: Any) -> str:
    """A value as TOML writes it, on one line."""
    match value:
        case bool():
            return str(value).lower()
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case dict():
            pairs = [f"{toml_literal(key)} = {toml_literal(item)}" for key, item in value.items()]
            return "{ " + ", ".join(pairs) + " }" if pairs else "{}"
        case _:
            return "[" + ", ".join(toml_literal(item) for item in value) + "]"


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part of it."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(draft, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise UserError(f"cannot be written: {error.strerror}", where=str(path)) from None


class Table(BaseModel):
    """A table of a user's file: frozen; unknown keys are errors with the nearest name."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, content: Any) -> Any:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        if not isinstance(content, Mapping):
            raise invalid(UserError(f"{shown(content)} is not a table", allowed=", ".join(known)))
        for key in content:
            if key not in known:
                raise invalid(unknown_name("key", key, known, where=key))
        return content


def invalid(error: UserError) -> PydanticCustomError:
    """Make pydantic report a `UserError` at its place in the file (`where` is a key below it)."""
    return PydanticCustomError(
        "user_error",
        "{what}",
        {"what": error.what, "allowed": error.allowed, "key": [error.where] if error.where else []},
    )


AnyTable = TypeVar("AnyTable", bound=Table)


def validated(model: type[AnyTable], content: Mapping[str, Any], where: str) -> AnyTable:
    """Validate what was read from file `where`; `UserError` for the first thing that is wrong."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise _user_error(error.errors(include_url=False)[0], where) from None


def _user_error(details: ErrorDetails, where: str) -> UserError:
    context = details.get("ctx", {})
    place = f"{where}:{key_path((*details['loc'], *context.get('key', ())))}".rstrip(":")
    if details["type"] == "user_error":
        return UserError(context["what"], where=place, allowed=context["allowed"])
    if details["type"] == "missing":
        return UserError("missing", where=place)
    expected = details["msg"].removeprefix("Input should be ")
    return UserError(f"{shown(details['input'])} is not accepted", where=place, allowed=expected)


def key_path(keys: Iterable[str | int]) -> str:
    """Keys as they are quoted in errors: `workload[0].tbt`."""
    path = ""
    for key in keys:
        if isinstance(key, int):
            path += f"[{key}]"
        else:
            path += ("." if path else "") + (key if _BARE_KEY.fullmatch(key) else repr(key))
    return path
