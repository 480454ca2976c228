"""A value with its range, unit, source and trust: what every number in the catalogue is."""

from dataclasses import dataclass
from typing import Any

from ..errors import UserError, unknown_name
from ..units import allowed_quantity, parse_quantity, shown


TRUST = {
    "A": "vendor specification or peer-reviewed measurement",
    "B": "reputable secondary source or open model",
    "C": "analyst, press or own fit",
    "D": "recalled or assumed",
    "user": "given by the user",
}
"""Meaning of every trust letter."""

_LEAF_KEYS = ("typical", "low", "high", "unit", "source", "trust")
_STATED = ("value", "source", "trust")


@dataclass(frozen=True)
class Record:
    """One catalogue value and where it comes from."""

    value: float
    low: float
    high: float
    unit: str
    source: str
    trust: str

    def __post_init__(self):
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value} outside {self.low} to {self.high}")
        if not self.source or self.trust not in TRUST:
            raise ValueError(f"source {self.source!r}, trust {self.trust!r}")

    @classmethod
    def of_leaf(cls, leaf: dict[str, Any], where: str) -> "Record":
        """A value as the embedded files state it. **Raises:** `ValueError` for a faulty one."""
        try:
            if leaf.keys() != set(_LEAF_KEYS):
                raise ValueError(f"keys {sorted(leaf)}")
            return cls(*(leaf[key] for key in _LEAF_KEYS))
        except ValueError as error:
            raise ValueError(f"{where}: {error!r}") from error

    @classmethod
    def exact(cls, value: float, unit: str, source: str = "user", trust: str = "user") -> "Record":
        """A value without a range."""
        return cls(value, value, value, unit, source, trust)


def read_record(content: Any, unit: str, where: str = "", *, bare: bool = True) -> Record:
    """A record from what a user wrote: a quantity, or `{ value = ..., source = ..., trust = ... }`.

    **Arguments:** as `parse_quantity`.
    """
    stated = content if isinstance(content, dict) else {"value": content}
    for key in stated:
        if key not in _STATED:
            raise unknown_name("key", key, _STATED, where=where)
    if "value" not in stated:
        raise UserError("no value", where=where, allowed=allowed_quantity(unit))
    source, trust = stated.get("source", "user"), stated.get("trust", "user")
    if not isinstance(source, str) or not source:
        raise UserError(f"source {shown(source)}", where=where, allowed="a text")
    if not isinstance(trust, str) or trust not in TRUST:
        raise UserError(f"trust {shown(trust)}", where=where, allowed=", ".join(TRUST))
    return Record.exact(
        parse_quantity(stated["value"], unit, where, bare=bare), unit, source, trust
    )
