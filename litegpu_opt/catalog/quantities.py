"""Tables of quantities in a file: which keys there are, and what each becomes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BeforeValidator

from ..errors import UserError, unknown_name
from ..fields import accepting, checked
from ..units import allowed_quantity, shown
from .records import TRUST, Record, read_record


@dataclass(frozen=True)
class Key:
    """What a key of a file becomes: an attribute that carries the unit, and what it may be."""

    field: str
    unit: str
    meaning: str = ""
    least: float = 0.0
    """0: more than zero."""
    most: float = math.inf
    whole: bool = False

    def allows(self, value: float) -> bool:
        """Whether a value is accepted."""
        inside = 0.0 < value and self.least <= value <= self.most
        return inside and (not self.whole or value.is_integer())

    def allowed(self) -> str:
        """What is accepted, for an error."""
        kind = "a whole number, " if self.whole else ""
        most = f"{self.most:.0f} {self.unit}".strip()
        if math.isinf(self.most):
            return kind + (f"{self.least:g} or more" if self.least else "more than zero")
        return kind + (f"{self.least:g} to {most}" if self.least else f"more than zero to {most}")

    def accepts(self) -> dict[str, Any]:
        """JSON Schema of what is accepted."""
        quantity = {"type": "string" if self.unit else ["number", "string"]}
        stated = {"value": quantity, "source": {"type": "string"}, "trust": {"enum": list(TRUST)}}
        record = {
            "type": "object",
            "properties": stated,
            "required": ["value"],
            "additionalProperties": False,
        }
        in_unit = f"{allowed_quantity(self.unit)}; " if self.unit else ""
        allowed = f"{in_unit}{self.allowed()}; or {{ value, source, trust }}"
        return {"description": self.meaning, "anyOf": [quantity, record], "allowed": allowed}


def quantities(keys: Mapping[str, Key]) -> BeforeValidator:
    """Pydantic validator of a table of quantities: the field becomes attribute -> record."""

    @accepting(
        type="object",
        properties={name: key.accepts() for name, key in keys.items()},
        additionalProperties=False,
    )
    def convert(content: Any) -> dict[str, Record]:
        if not isinstance(content, dict):
            raise UserError(f"{shown(content)} is not a table", allowed=", ".join(keys))
        result = {}
        for key, stated in content.items():
            if key not in keys:
                raise unknown_name("key", key, keys, where=key)
            expected = keys[key]
            record = read_record(stated, expected.unit, key, bare=False)
            if not expected.allows(record.value):
                value = f"{record.value:.6g} {expected.unit}".strip()
                raise UserError(f"{value} is not accepted", where=key, allowed=expected.allowed())
            result[expected.field] = record
        return result

    return checked(convert)


DATASHEET = {
    "die_area": Key("die_area_mm2", "mm^2", "Area of one compute die"),
    "bf16_dense": Key("bf16_dense_tflop_s", "TFLOP/s", "Peak in bf16 without sparsity"),
    "fp8_dense": Key("fp8_dense_tflop_s", "TFLOP/s", "Peak in fp8 without sparsity"),
    "memory_bandwidth": Key("memory_tb_s", "TB/s", "Memory bandwidth"),
    "memory": Key("memory_gb", "GB", "Memory of the package"),
    "network_per_direction": Key("network_gb_s", "GB/s", "Scale-up bandwidth in one direction"),
    "tdp": Key("tdp_w", "W", "Thermal design power"),
}
"""Figures that are published of a chip."""

FORMATS = ("tf32", "bf16", "fp8", "int8", "fp4")
"""Number formats of which a chip may have a rate."""

FLOP_PER_CLOCK = {
    number_format: Key(number_format, "FLOP", f"FLOP of an SM per clock in {number_format}")
    for number_format in FORMATS
}
"""Dense, of one SM. A format that is missing has no rate; none follows from another."""
