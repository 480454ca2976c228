"""Chips that the model cannot describe: what is published of them, and why there is no more."""

from dataclasses import dataclass
from typing import Annotated

from ..files import Table, embedded, parse_toml, validated
from .quantities import DATASHEET, quantities
from .records import Record


FOLDER = "not_modelled"


@dataclass(frozen=True)
class Unmodelled:
    """A chip of which only published figures are known to the catalogue."""

    name: str
    title: str
    reason: str
    """Why the model does not describe it."""
    datasheet: dict[str, Record]


class _File(Table):
    title: str
    reason: str
    datasheet: Annotated[dict[str, Record], quantities(DATASHEET)] = {}


def unmodelled_names() -> tuple[str, ...]:
    """Names of the built-in chips that the model does not describe."""
    present = (item.name for item in embedded(FOLDER).iterdir())
    return tuple(sorted(item[: -len(".toml")] for item in present if item.endswith(".toml")))


def load_unmodelled(name: str) -> Unmodelled:
    """One of `unmodelled_names()`."""
    place = f"{name}.toml"
    raw = parse_toml(embedded(FOLDER, place).read_text("utf-8"), place)
    content = validated(_File, raw, place)
    return Unmodelled(name, content.title, content.reason, content.datasheet)
