"""Accelerators: a design, the technologies it is built in, and the data sheet to compare with."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from ..errors import UserError, unknown_name
from ..fields import OVERRIDES, accepting, checked, one_of, whole
from ..files import Table, embedded, parse_toml, read_toml, validated
from ..units import allowed_quantity, shown
from .quantities import DATASHEET, FLOP_PER_CLOCK, FORMATS, Key, quantities
from .records import Record
from .tables import (
    HARDWARE_TABLES,
    Overrides,
    names,
    override_records,
    provenance,
    records,
    technology,
)
from .unmodelled import load_unmodelled, unmodelled_names


if TYPE_CHECKING:
    from ..machine.design import Design
    from ..machine.technology import Technology


# wide, and yet a slip between units of area, of a thousand or of more falls outside
_DESIGN = {
    "die_area": Key("die_area_mm2", "mm^2", "Area of one compute die", 10, 10_000),
    "sm_count": Key("sm_count", "", "SMs enabled in the package", 1, whole=True),
    "clock": Key("clock_ghz", "GHz", "Highest sustained clock", 0.1, 10),
    "memory_stacks": Key("memory_stacks", "", "Memory stacks or chips", 1, whole=True),
    "memory": Key("memory_gb", "GB", "Memory of the package", 1, 10_000),
    "network_per_direction": Key(
        "network_gb_s", "GB/s", "Scale-up bandwidth in one direction", 1, 100_000
    ),
    "aspect_ratio": Key("aspect_ratio", "", "Long side of a die over its short side", 1, 10),
    "dies_per_package": Key("dies_per_package", "", "Compute dies", 1, 16, whole=True),
    "tdp": Key("tdp_w", "W", "TDP that it is specified for, if above its rated powers", 1, 100_000),
}
_OPTIONAL = ("tdp",)

_BILL_OF_MATERIALS = {
    key: Key(f"{key}_usd", "USD", "Published estimate")
    for key in ("logic", "memory", "packaging", "test_and_assembly", "total")
}


def _entry(table: str):
    return checked(one_of(table, partial(names, table)))


class TechnologyFile(Table):
    """Catalogue entries, and values that replace theirs."""

    process: Annotated[str | None, _entry("process")] = None
    memory: Annotated[str | None, _entry("memory")] = None
    interconnect: Annotated[str | None, _entry("interconnect")] = None
    switch: Annotated[str | None, _entry("switch")] = None
    package: Annotated[str | None, _entry("package")] = None
    cooling: Annotated[str | None, _entry("cooling")] = None
    overrides: Annotated[dict[str, Any], Field(json_schema_extra=OVERRIDES)] = {}
    """Catalogue values that are replaced."""

    def entries(self) -> dict[str, str]:
        return self.model_dump(exclude={"overrides"}, exclude_none=True)


@accepting(
    type="object",
    properties={key: {"type": "string", "allowed": "a text"} for key in DATASHEET},
    additionalProperties=False,
)
def _reasons(content: Any) -> dict[str, str]:
    """A table of reasons, key of the data sheet -> why; becomes attribute -> why."""
    if not isinstance(content, dict):
        raise UserError(f"{shown(content)} is not a table", allowed=", ".join(DATASHEET))
    for key, reason in content.items():
        if key not in DATASHEET:
            raise unknown_name("key", key, DATASHEET, where=key)
        if not isinstance(reason, str) or not reason:
            raise UserError(f"{shown(reason)} is not a reason", where=key, allowed="a text")
    return {DATASHEET[key].field: reason for key, reason in content.items()}


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
    design: Annotated[dict[str, Record], quantities(_DESIGN)] = {}
    """The chip."""
    flop_per_clock: Annotated[dict[str, Record], quantities(FLOP_PER_CLOCK)] = {}
    """Dense rates of an SM; a format that is left out is one that the chip does not have."""
    technology: TechnologyFile = TechnologyFile()
    """What it is built in."""
    datasheet: Annotated[dict[str, Record], quantities(DATASHEET)] = {}
    """Published figures, which the model is compared with."""
    not_compared: Annotated[dict[str, str], checked(_reasons)] = {}
    """Published figures that are no test of the model, and why."""
    circular: Annotated[dict[str, str], checked(_reasons)] = {}
    """Published figures that are among the model's own inputs, and how."""
    bill_of_materials: Annotated[dict[str, Record], quantities(_BILL_OF_MATERIALS)] = {}
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
    rates: dict[str, Record]
    """Number format that the chip has -> dense FLOP per clock of an SM."""
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

    def flop_per_clock(self, number_format: str) -> Record:
        """Dense FLOP per clock of an SM in one of `FORMATS`.

        **Raises:** `UserError` for a format that the chip does not have: none follows from another.
        """
        if number_format not in FORMATS:
            raise unknown_name("number format", number_format, FORMATS)
        if number_format not in self.rates:
            what = f"no {number_format} rate of {self.name} is known"
            raise UserError(what, allowed=", ".join(name for name in FORMATS if name in self.rates))
        return self.overrides.get(_rate_leaf(number_format), self.rates[number_format])

    def peak_tflop_s(self, number_format: str) -> float:
        """Dense peak `SMs x FLOP/clk/SM x clock`, TFLOP/s. **Raises:** as `flop_per_clock`."""
        values = self.design_values
        flop = self.flop_per_clock(number_format).value
        return 1e-3 * values["sm_count"] * values["clock_ghz"] * flop

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
    elif text in unmodelled_names():
        raise UserError(f"{text} is not modelled: {load_unmodelled(text).reason}", where=where)
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
        if needed.field not in design and key not in _OPTIONAL:
            raise _missing(f"{place}:design.{key}", allowed_quantity(needed.unit))
    for table in HARDWARE_TABLES:
        if table not in entries:
            raise _missing(f"{place}:technology.{table}", ", ".join(names(table)))
    if group is None:
        raise _missing(f"{place}:largest_group", "a whole number of devices")
    own = override_records(content.technology.overrides, f"{place}:technology.overrides")
    overrides = (parent.overrides if parent else {}) | _rate_overrides(content, own, place) | own
    _check_group(group, provenance(overrides, **entries), f"{place}:largest_group")
    return Accelerator(
        name=name,
        title=content.title or name,
        die=content.die or name,
        status=content.status or (parent.status if parent else ""),
        design_records=design,
        technology_names=entries,
        overrides=overrides,
        rates=_rates(content, parent, entries["process"]),
        largest_group=group,
        # Published figures describe one chip: a design derived from it does not inherit them.
        datasheet=content.datasheet,
        not_compared=content.not_compared,
        circular=content.circular,
        bill_of_materials=content.bill_of_materials,
    )


def _rate_leaf(number_format: str) -> str:
    return f"process.flop_per_clock_{number_format}"


def _rate_overrides(
    content: AcceleratorFile, own: dict[str, Record], place: str
) -> dict[str, Record]:
    """The rates of a file that the model computes with, as overrides of its process."""
    modelled = {_rate_leaf(name): name for name in ("bf16", "fp8")}
    stated = {leaf: name for leaf, name in modelled.items() if name in content.flop_per_clock}
    for leaf, name in stated.items():
        if leaf in own:
            raise UserError(
                f"the {name} rate is stated twice",
                where=f"{place}:flop_per_clock.{name}",
                allowed=f"only there, not in technology.overrides as {leaf}",
            )
    return {leaf: content.flop_per_clock[name] for leaf, name in stated.items()}


def _rates(content: AcceleratorFile, parent: Accelerator | None, process: str) -> dict[str, Record]:
    """Rates of a file and of the one it extends; the bf16 rate of the process if there is none."""
    inherited = parent.rates if parent else {}
    default = {"bf16": records("process", process)["flop_per_clock_bf16"]}
    return default | inherited | content.flop_per_clock


def _check_group(group: int, known: dict[str, Record], where: str) -> None:
    """Refuse a group that neither the links nor the switch of an accelerator can join."""
    for table in ("interconnect", "switch"):
        joined = known[f"{table}.largest_domain"].value
        if group > joined:
            what = f"{group} devices are more than {table}.largest_domain joins"
            raise UserError(what, where=where, allowed=f"1 to {joined:g}")


def _missing(where: str, allowed: str) -> UserError:
    return UserError("missing", where=where, allowed=f'{allowed}; or extends = "h100-sxm"')
