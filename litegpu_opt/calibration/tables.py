"""Tables of measurements: CSV files whose columns say what was measured."""

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from ..errors import UserError
from ..files import embedded


MOST_BYTES = 64_000_000


@dataclass(frozen=True)
class Measurement:
    """One row of a table, with its place for messages."""

    where: str
    values: Mapping[str, str]

    def text(self, column: str) -> str:
        """A text; empty where the table has no such column."""
        return (self.values.get(column) or "").strip()

    def number(self, column: str) -> float:
        """A number above 0. **Raises:** `UserError` for anything else."""
        try:
            value = float(self.text(column))
        except ValueError:
            value = math.nan
        if not (value > 0.0 and math.isfinite(value)):
            raise UserError(
                f"{self.text(column)!r} is no measured number",
                where=f"{self.where}.{column}",
                allowed="a number above 0",
            )
        return value


def read_table(
    path: str | Path, kinds: Mapping[str, Iterable[str]]
) -> tuple[str, list[Measurement]]:
    """Kind of a CSV file and its rows.

    **Arguments:**

    - `kinds`: kind of table -> columns that it must have; the first that fits.

    **Raises:** `UserError` for a file that is none of them.
    """
    where = str(path)
    try:
        if not Path(path).is_file():
            raise UserError("no such file", where=where, allowed="a .csv file")
        if Path(path).stat().st_size > MOST_BYTES:
            raise UserError("too large", where=where, allowed=f"at most {MOST_BYTES} bytes")
        text = Path(path).read_text("utf-8")
    except UnicodeDecodeError:
        raise UserError("not UTF-8", where=where, allowed="a .csv file in UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=where) from None
    return _parse(text, where, kinds)


def shipped_table(name: str, kinds: Mapping[str, Iterable[str]]) -> tuple[str, list[Measurement]]:
    """The same of an extract in the catalogue."""
    return _parse(embedded("measurements", name).read_text("utf-8"), name, kinds)


def _parse(
    text: str, where: str, kinds: Mapping[str, Iterable[str]]
) -> tuple[str, list[Measurement]]:
    reader = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    columns = set(reader.fieldnames or ())
    kind = next((kind for kind, needed in kinds.items() if columns >= set(needed)), None)
    if kind is None:
        raise UserError(
            "its columns are those of no known table",
            where=where,
            allowed="; or ".join(f"{kind}: {', '.join(needed)}" for kind, needed in kinds.items()),
        )
    rows = [Measurement(f"{where}[{row}]", values) for row, values in enumerate(reader)]
    if not rows:
        raise UserError("has no rows", where=where)
    return kind, rows


def in_fit(*shape: object) -> bool:
    """Whether a fit may use the rows of a shape: half of the shapes, by a hash of their numbers.

    Rows of one shape on several devices, formats and stacks are on the same side.
    """
    text = ",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in shape)
    return sha256(text.encode()).digest()[0] % 2 == 0
