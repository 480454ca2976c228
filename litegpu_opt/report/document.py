"""A document as data: sections of text and tables, printed by the screen and by Markdown alike."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


NOT_APPLICABLE = "n/a"
NOT_KNOWN = "not known"
NOT_COUNTED = "not counted"
NOT_SEARCHED = "not searched"


@dataclass(frozen=True)
class Table:
    """Text cells in rows under columns. The first column holds labels."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    numeric: bool = True
    """Whether all columns but the first are aligned to the right."""


Block = Table | str
"""A table or a paragraph."""


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    heading: str
    blocks: tuple[Block, ...]


def figure(value: float | None, digits: int = 4) -> str:
    """A number with some significant digits, and no exponent where it can be avoided."""
    if value is None or not math.isfinite(value):
        return NOT_APPLICABLE
    if value and abs(value) < 1e-4:
        return f"{value:.0e}"
    return f"{value:.{digits}g}" if abs(value) < 999.5 else f"{value:,.0f}"


def percent(share: float | None, digits: int = 3) -> str:
    """A share as a percentage."""
    return NOT_APPLICABLE if share is None else f"{figure(100.0 * share, digits)} %"


def signed_percent(error: float | None) -> str:
    """A relative error as a percentage with its sign."""
    return NOT_APPLICABLE if error is None else f"{100 * error:+.1f} %"


def pair(first: float | None, second: float | None) -> str:
    """Prefill / decode."""
    return f"{figure(first)} / {figure(second)}"


def finite(value: Any) -> Any:
    """Plain data for JSON: mappings, lists, texts and finite numbers; `None` for other numbers."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [finite(item) for item in value]
    number = float(value)
    return number if math.isfinite(number) else None


def json_text(content: Mapping[str, Any]) -> str:
    """One JSON object; neither NaN nor infinity can occur in it."""
    return json.dumps(finite(content), indent=2, allow_nan=False)
