"""Accelerators: a design, the technologies it is built in, and the data sheet to compare with."""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ..errors import UserError, unknown_name
from ..fields import OVERRIDES, accepting, checked, one_of, whole
from ..files import Table, embedded, parse_toml, read_toml, validated
from ..units import allowed_quantity, shown
from .records import TRUST, Record, read_record
from .tables import Overrides, names, override_records, provenance, technology


if TYPE_CHECKING:
    from ..machine.design import Design
    from ..machine.technology import Technology


@dataclass(frozen=True)
class _Key:
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


_DESIGN = {
    "die_area": _Key("die_area_mm2", "mm^2", "Area of one compute die", most=100_000),
    "sm_count": _Key("sm_count", "", "SMs enabled in the package", 1, whole=True),
    "clock": _Key("clock_ghz", "GHz", "Highest sustained clock", most=10),
    "memory_stacks": _Key("memory_stacks", "", "Memory stacks or chips", 1, whole=True),
    "memory": _Key("memory_gb", "GB", "Memory of the package"),
    "network_per_direction": _Key("network_gb_s", "GB/s", "Scale-up bandwidth in one direction"),
    "aspect_ratio": _Key("aspect_ratio", "", "Long side of a die over its short side", 1, 10),
    "dies_per_package": _Key("dies_per_package", "", "Compute dies", 1, 16, whole=True),
}

_DATASHEET = {
    "die_area": _Key("die_area_mm2", "mm^2", "Area of one compute die"),
    "bf16_dense": _Key("bf16_dense_tflop_s", "TFLOP/s", "Peak in bf16 without sparsity"),
    "fp8_dense": _Key("fp8_dense_tflop_s", "TFLOP/s", "Peak in fp8 without sparsity"),
    "memory_bandwidth": _Key("memory_tb_s", "TB/s", "Memory bandwidth"),
    "memory": _Key("memory_gb", "GB", "Memory of the package"),
    "network_per_direction": _Key("network_gb_s", "GB/s", "Scale-up bandwidth in one direction"),
    "tdp": _Key("tdp_w", "W", "Thermal design power"),
}

_BILL_OF_MATERIALS = {
    key: _Key(f"{key}_usd", "USD", "Published estimate")
    for key in ("logic", "memory", "packaging", "test_and_assembly", "total")
}


def _records(keys: dict[str, _Key]) -> BeforeValidator:
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


def _entry(table: str):
    return checked(one_of(table, partial(names, table)))


class TechnologyFile(Table):
    """Catalogue entries, and values that replace theirs."""

    process: Annotated[str | None, _entry("process")] = None
    memory: Annotated[str | None, _entry("memory")] = None
    interconnect: Annotated[str | None, _entry("interconnect")] = None
    package: Annotated[str | None, _entry("package")] = None
    cooling: Annotated[str | None, _entry("cooling")] = None
    overrides: Annotated[dict[str, Any], Field(json_schema_extra=OVERRIDES)] = {}
    """Catalogue values that are replaced."""

    def entries(self) -> dict[str, str]:
        return self.model_dump(exclude={"overrides"}, exclude_none=True)


_HARDWARE_TABLES = ("process", "memory", "interconnect", "package", "cooling")


@accepting(
    type="object",
    properties={key: {"type": "string", "allowed": "a text"} for key in _DATASHEET},
    additionalProperties=False,
)
def _reasons(content: Any) -> dict[str, str]:
    """A table of reasons, key of the data sheet -> why; becomes attribute -> why."""
    if not isinstance(content, dict):
        raise UserError(f"{shown(content)} is not a table", allowed=", ".join(_DATASHEET))
    for key, reason in content.items():
        if key not in _DATASHEET:
            raise unknown_name("key", key, _DATASHEET, where=key)
        if not isinstance(reason, str) or not reason:
            raise UserError(f"{shown(reason)} is not a reason", where=key, allowed="a text")
    return {_DATASHEET[key].field: reason for key, reason in content.items()}


class AcceleratorFile(Table):
    """An accelerator. What a file leaves out is taken from the one that it extends."""

    extends: str | None = None
    """Built-in accelerator or .toml file that this one is made from."""
    title: str = ""
    """What it is, in one line."""
    die: str = ""
    """Name of the die; chips with the same one are fitted as one."""
    status: Literal["unverified"] | None = None
    """Set if no source was checked."""
    largest_group: Annotated[int | None, checked(whole(1))] = None
    """Devices that one scale-up domain joins."""
    design: Annotated[dict[str, Record], _records(_DESIGN)] = {}
    """The chip."""
    technology: TechnologyFile = TechnologyFile()
    """What it is built in."""
    datasheet: Annotated[dict[str, Record], _records(_DATASHEET)] = {}
    """Published figures, which the model is compared with."""
    not_compared: Annotated[dict[str, str], checked(_reasons)] = {}
    """Published figures that are no test of the model, and why."""
    circular: Annotated[dict[str, str], checked(_reasons)] = {}
    """Published figures that are among the model's own inputs, and how."""
    bill_of_materials: Annotated[dict[str, Record], _records(_BILL_OF_MATERIALS)] = {}
    """Published estimate of what it costs to make."""


@dataclass(frozen=True)
class Accelerator:
    """An accelerator as a file describes it; no JAX until `design` or `technology` is called."""

    name: str
    title: str
    die: str
    """What chips made of the same die share."""
    status: str
    """`unverified` if the figures of the file were not checked against a source, or nothing."""
    design_records: dict[str, Record]
    """Field of `Design` -> record."""
    technology_names: dict[str, str]
    """Technology table -> entry, for the tables that belong to the hardware."""
    overrides: dict[str, Record]
    largest_group: int
    """Devices that one scale-up domain can join."""
    datasheet: dict[str, Record]
    """Published figures: `die_area_mm2`, `bf16_dense_tflop_s`, `memory_tb_s`, `tdp_w`, ..."""
    not_compared: dict[str, str]
    """Published figure -> why it is no test of the model."""
    circular: dict[str, str]
    """Published figure -> how it is among the model's own inputs."""
    bill_of_materials: dict[str, Record]
    """Published estimate: `logic_usd`, `memory_usd`, ..., `total_usd`."""

    @property
    def label(self) -> str:
        """The title, with the status where there is one."""
        return f"{self.title} ({self.status})" if self.status else self.title

    @property
    def design_values(self) -> dict[str, float]:
        """Field of `Design` -> value."""
        return {field: record.value for field, record in self.design_records.items()}

    def design(self) -> "Design":
        """The design as the pytree that the model takes."""
        from ..machine.design import Design

        return Design(**self.design_values)

    def technology(self, overrides: Overrides | None = None, **entries: str) -> "Technology":
        """The technology as the pytree that the model takes.

        **Arguments:**

        - `overrides`: values on top of the accelerator's own.
        - `entries`: table -> entry that replaces the accelerator's, such as `execution="ideal"`.
        """
        return technology({**self.overrides, **(overrides or {})}, **self._entries(entries))

    def provenance(self, overrides: Overrides | None = None, **entries: str) -> dict[str, Record]:
        """`"table.field"` -> record of what `technology` takes with the same arguments."""
        return provenance({**self.overrides, **(overrides or {})}, **self._entries(entries))

    def _entries(self, entries: dict[str, str]) -> dict[str, str]:
        return self.technology_names | entries


def accelerator_names() -> tuple[str, ...]:
    """Names of the built-in accelerators."""
    present = (item.name for item in embedded("accelerators").iterdir())
    return tuple(sorted(item[: -len(".toml")] for item in present if item.endswith(".toml")))


def load_accelerator(name_or_path: str | Path, where: str = "") -> Accelerator:
    """Load a built-in accelerator by name, or a user's TOML file.

    **Arguments:**

    - `name_or_path`: a name of `accelerator_names()`, or a path ending in `.toml`.
    - `where`: who asks, for the error.
    """
    return _load(name_or_path, Path(), where, ())


def _load(name_or_path: str | Path, folder: Path, where: str, seen: tuple[str, ...]) -> Accelerator:
    text = str(name_or_path)
    if text in accelerator_names():
        place, name, identity = f"{text}.toml", text, text
        raw = parse_toml(embedded("accelerators", place).read_text("utf-8"), place)
    elif text.endswith(".toml") or isinstance(name_or_path, Path):
        path = folder / text
        raw = read_toml(path)
        place, name, identity = str(path), path.stem, str(path.resolve())
        folder = path.parent
    else:
        error = unknown_name("accelerator", text, accelerator_names(), where=where)
        raise UserError(error.what, where=where, allowed=f"{error.allowed}, or a .toml file")
    if identity in seen:
        raise UserError(f"extends {shown(text)} goes round in a circle", where=where)
    content = validated(AcceleratorFile, raw, place)
    parent = None
    if content.extends is not None:
        parent = _load(content.extends, folder, f"{place}:extends", (*seen, identity))
    return _merged(content, parent, name, place)


def _merged(
    content: AcceleratorFile, parent: Accelerator | None, name: str, place: str
) -> Accelerator:
    design = (parent.design_records if parent else {}) | content.design
    entries = (parent.technology_names if parent else {}) | content.technology.entries()
    group = content.largest_group or (parent.largest_group if parent else None)
    for key, needed in _DESIGN.items():
        if needed.field not in design:
            raise _missing(f"{place}:design.{key}", allowed_quantity(needed.unit))
    for table in _HARDWARE_TABLES:
        if table not in entries:
            raise _missing(f"{place}:technology.{table}", ", ".join(names(table)))
    if group is None:
        raise _missing(f"{place}:largest_group", "a whole number of devices")
    own = override_records(content.technology.overrides, f"{place}:technology.overrides")
    return Accelerator(
        name=name,
        title=content.title or name,
        die=content.die or name,
        status=content.status or (parent.status if parent else ""),
        design_records=design,
        technology_names=entries,
        overrides=(parent.overrides if parent else {}) | own,
        largest_group=group,
        # Published figures describe one chip: a design derived from it does not inherit them.
        datasheet=content.datasheet,
        not_compared=content.not_compared,
        circular=content.circular,
        bill_of_materials=content.bill_of_materials,
    )


def _missing(where: str, allowed: str) -> UserError:
    return UserError("missing", where=where, allowed=f'{allowed}; or extends = "h100-sxm"')
