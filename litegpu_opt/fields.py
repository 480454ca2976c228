"""Kinds of value in files that users write: each says in its error what it allows."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BeforeValidator

from .errors import UserError, unknown_name
from .files import invalid
from .units import parse_quantity, shown


Converter = Callable[[Any], Any]
"""Makes a checked value from what a user wrote, or raises `UserError`."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def checked(convert: Converter) -> BeforeValidator:
    """The pydantic validator of a field, from its converter."""

    def validate(value: Any) -> Any:
        try:
            return convert(value)
        except UserError as error:
            raise invalid(error) from None

    return BeforeValidator(validate)


def limit(unit: str) -> Converter:
    """A quantity in `unit`, written out and above zero, or `None` where the user writes "none"."""

    def convert(value: Any) -> float | None:
        if value == "none":
            return None
        result = parse_quantity(value, unit, bare=False)
        if result <= 0:
            raise UserError(f"{shown(value)} is not positive", allowed='more than zero, or "none"')
        return result

    return convert


def whole(low: int, high: int | None = None) -> Converter:
    """A whole number from `low` to `high`."""

    def convert(value: Any) -> int:
        inside = type(value) is int and low <= value and (high is None or value <= high)
        if not inside:
            above = "or more" if high is None else f"to {high}"
            raise UserError(
                f"{shown(value)} is not accepted", allowed=f"a whole number, {low} {above}"
            )
        return value

    return convert


def number(low: float, high: float) -> Converter:
    """A dimensionless number from `low` to `high`."""

    def convert(value: Any) -> float:
        result = parse_quantity(value, "")
        if not low <= result <= high:
            raise UserError(
                f"{shown(value)} is not accepted", allowed=f"a number from {low:g} to {high:g}"
            )
        return result

    return convert


def one_of(kind: str, known: Callable[[], Iterable[str]]) -> Converter:
    """One of some names; an unknown one is reported with the nearest."""

    def convert(value: Any) -> str:
        if not isinstance(value, str):
            raise UserError(f"{shown(value)} is not a name", allowed=", ".join(sorted(known())))
        if value not in known():
            raise unknown_name(kind, value, known())
        return value

    return convert


def several(item: Converter) -> Converter:
    """One value or a list of different ones."""

    def convert(value: Any) -> tuple[Any, ...]:
        items = value if isinstance(value, list) else [value]
        result = tuple(item(each) for each in items)
        if not result or len(set(result)) < len(result):
            shortfall = "a value occurs twice" if result else "the list is empty"
            raise UserError(shortfall, allowed="one or more different values")
        return result

    return convert


def table_rows(header: str) -> Converter:
    """The tables of a TOML array of tables."""

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise UserError(
                f"{shown(value)} is not accepted", allowed=f"tables headed [[{header}]]"
            )
        return value

    return convert


def plain_name(value: Any) -> str:
    """A name that can stand in a file name."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        allowed = "letters, digits, dot, dash and underscore, at most 64"
        raise UserError(f"{shown(value)} is not a name", allowed=allowed)
    return value


def plain_text(value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise UserError(f"{shown(value)} is not accepted", allowed="a name or a path")
    return value


def yes_or_no(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise UserError(f"{shown(value)} is not accepted", allowed="true or false")
    return value
