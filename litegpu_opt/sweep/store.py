"""The folder of a sweep: what is asked, parts that are done, and the result.

A part is there or not: files are renamed into place, the state of a part last. So a sweep that is
killed at any moment goes on where it stopped when it is started again.
"""

import contextlib
import fcntl
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import write_atomic
from .parts import state_path
from .reduce import State, unpacked


MANIFEST, RESULT = "manifest.json", "result.json"


class Store:
    """The folder of one sweep."""

    def __init__(self, folder: Path, asked: Mapping[str, Any], parts: int):
        self.folder, self.asked, self.parts = folder, asked, parts

    @contextlib.contextmanager
    def locked(self, shard: tuple[int, int]) -> Iterator[None]:
        """Hold the folder; shards of one sweep can share it.

        **Raises:** `UserError` where another process holds it.
        """
        try:
            (self.folder / "parts").mkdir(parents=True, exist_ok=True)
            name = "lock" if shard == (1, 1) else f"lock-{shard[0]}-of-{shard[1]}"
            handle = (self.folder / name).open("w")
        except OSError as error:
            what = f"{self.folder} cannot be written: {error.strerror}"
            raise UserError(what, where="--out") from None
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                what = f"{self.folder} is in use by another process"
                raise UserError(what, where="--out", allowed="one at a time") from None
            yield

    def open(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """The manifest: what is there, or else what is asked now with `extra` beside it.

        **Raises:** `UserError` with the difference where the folder holds another sweep.
        """
        path = self.folder / MANIFEST
        if not path.exists():
            content = {"asked": self.asked, "parts": self.parts, **extra}
            write_atomic(path, json.dumps(content, indent=1) + "\n")
        content = read_manifest(self.folder)
        changes = differences(content["asked"], self.asked)
        if changes:
            more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
            raise UserError(
                f"{self.folder} holds another sweep: {', '.join(changes[:3])}{more}",
                where="--out",
                allowed="an empty or new folder, or that of the same study",
            )
        return content

    def done(self) -> set[int]:
        """Parts that are there."""
        present = {path.name for path in (self.folder / "parts").glob("part-*.npz")}
        return {part for part in range(self.parts) if state_path(part).partition("/")[2] in present}

    def read(self, part: int) -> State:
        """The state of a part. **Raises:** `UserError` if its file is damaged."""
        return read_part(self.folder, part)

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write the files of a part, in their order."""
        for name, content in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, content)


def read_part(folder: Path, part: int) -> State:
    """The state of a part in a folder. **Raises:** `UserError` if its file is damaged."""
    path = folder / state_path(part)
    try:
        return unpacked(path.read_bytes())
    except (OSError, ValueError, KeyError, EOFError) as error:
        what = f"no part of a sweep: {error}"
        raise UserError(what, where=str(path), allowed="delete it and run again") from None


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a folder holds. **Raises:** `UserError` if it is no sweep."""
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text("utf-8"))
        if isinstance(content["asked"], dict) and isinstance(content["parts"], int):
            return content
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise UserError("no manifest of a sweep", where=str(path), allowed="a folder of litegpu sweep")


def differences(old: Any, new: Any, place: str = "") -> list[str]:
    """Where two contents differ, as `key: old -> new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys((*old, *new))
        return [
            change
            for key in keys
            for change in differences(old.get(key), new.get(key), f"{place}.{key}".lstrip("."))
        ]
    if old == new:
        return []
    return [f"{place}: {json.dumps(old)} -> {json.dumps(new)}"]
