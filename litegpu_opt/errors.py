"""Errors that a user can mend: one line, never a traceback."""

import difflib
from collections.abc import Iterable


LONGEST_NAME = 60
"""Longer names are cut where an error repeats them."""


class UserError(Exception):
    """Bad input. `str(error)` is the one line that the command line prints before it exits with 2.

    **Arguments:**

    - `what`: what is wrong, with the value.
    - `where`: file and key, or the command-line option.
    - `allowed`: what would have been accepted.
    """

    def __init__(self, what: str, *, where: str = "", allowed: str = ""):
        self.what, self.where, self.allowed = what, where, allowed
        parts = [f"{where}: {what}" if where else what]
        if allowed:
            parts.append(f"allowed: {allowed}")
        super().__init__("; ".join(" ".join(_printable(part).split()) for part in parts))


def _printable(text: str) -> str:
    """Text without characters that would steer a terminal."""
    return "".join(c if c.isprintable() or c.isspace() else f"\\x{ord(c):02x}" for c in text)


def unknown_name(kind: str, name: str, known: Iterable[str], *, where: str = "") -> UserError:
    """A `UserError` for a name that is not in a list, with the nearest one that is."""
    known = sorted(known)
    nearest = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.4)
    hint = f", did you mean {nearest[0]}?" if nearest else ""
    text = repr(name) if len(name) <= LONGEST_NAME else repr(name[:LONGEST_NAME] + "...")
    return UserError(f"unknown {kind} {text}{hint}", where=where, allowed=", ".join(known))
