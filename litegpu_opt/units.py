"""Quantities that users write, such as `"3.6 Tb/s"`, become plain floats in a named unit."""

import math
import re
from collections.abc import Callable
from functools import cache
from tokenize import TokenError
from typing import Any

from .errors import UserError


# An own vocabulary: pint's default one reads Gb as gilbert, b as barn and GB/s as a frequency.
DEFINITIONS = """
pico- = 1e-12 = p-
nano- = 1e-9 = n-
micro- = 1e-6 = u- = µ- = μ-
milli- = 1e-3 = m-
centi- = 1e-2 = c-
kilo- = 1e3 = k-
mega- = 1e6 = M-
giga- = 1e9 = G-
tera- = 1e12 = T-
peta- = 1e15 = P-
kibi- = 2**10 = Ki-
mebi- = 2**20 = Mi-
gibi- = 2**30 = Gi-
tebi- = 2**40 = Ti-
meter = [length] = m
second = [time] = s
gram = [mass] = g
bit = [information] = b
byte = 8 * bit = B
bps = bit / second
kelvin = [temperature] = K
FLOP = [operation]
USD = [currency]
token = [token]
minute = 60 * second = min
hour = 3600 * second = h
day = 24 * hour
year = 365 * day
hertz = 1 / second = Hz
joule = 1000 * gram * meter ** 2 / second ** 2 = J
watt = joule / second = W
watt_hour = watt * hour = Wh
percent = 0.01 = %
"""

EXAMPLES = {
    "mm^2": "203.5 mm^2",
    "GHz": "1.83 GHz",
    "GB": "80 GB",
    "GB/s": "450 GB/s",
    "TB/s": "3.35 TB/s",
    "TFLOP/s": "989.4 TFLOP/s",
    "s": "50 ms",
    "W": "700 W",
    "USD": "17000 USD",
    "USD/GB": "12 USD/GB",
    "ms": "50 ms",
    "1/cm^2": "0.08 1/cm^2",
}

_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_TERM = r"[A-Za-zµμ%]+(?:(?:\^|\*\*)-?(?:[1-4]|0\.5)|[²³])?"
_UNIT = rf"(?:1?\s*/\s*)?\(?\s*{_TERM}(?:\s*[*/·]\s*\(?\s*{_TERM}\s*\)?)*\)?"
# Bounded exponents and lengths: nothing a user types reaches pint's arithmetic unchecked.
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*((?:{_UNIT})?)\s*")
_LONGEST = 80


def allowed_quantity(unit: str) -> str:
    """What a key in `unit` accepts, for an error message."""
    if not unit:
        return 'a finite number, such as 0.05 or "5 %"'
    return f'a quantity in {unit}, such as "{EXAMPLES.get(unit, f"1 {unit}")}"'


def shown(value: Any) -> str:
    """A short, printable form of any value a user may have written."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def parse_quantity(value: Any, unit: str, where: str = "", *, bare: bool = True) -> float:
    """Convert a number or a text such as `"3.35 TB/s"` to a float in `unit`.

    **Arguments:**

    - `value`: what the user wrote.
    - `unit`: the unit of the result; `""` is dimensionless.
    - `where`: file and key, or the option, for the error.
    - `bare`: whether a number without a unit is taken to be in `unit`. Only right where the
      name of the key or option says so.

    **Returns:**

    A finite float. Anything else raises `UserError`.
    """
    allowed = allowed_quantity(unit)

    def wrong(what: str) -> UserError:
        return UserError(what, where=where, allowed=allowed)

    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise wrong(f"{shown(value)} is not a quantity")
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value) if len(value) <= _LONGEST else None
        if match is None:
            raise wrong(f"cannot read {shown(value)} as a number and a unit")
        written = match[2]
        number = float(match[1])
    else:
        written = ""
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    if unit and not written and not bare:
        raise wrong(f"{shown(value)} has no unit")
    if written not in ("", unit):
        number = _convert(number, written, unit, wrong)
    if not math.isfinite(number):
        raise wrong(f"{shown(value)} is not finite")
    return number


def _convert(number: float, written: str, unit: str, wrong: Callable[[str], UserError]) -> float:
    registry = _registry()
    from pint.errors import DimensionalityError, PintError

    try:
        units = registry.parse_units(f"1{written}" if written.startswith("/") else written)
        converted = registry.Quantity(number, units).to(unit).magnitude
    except DimensionalityError:
        raise wrong(f"{written!r} is not a unit of this kind of quantity") from None
    except (PintError, TokenError, AssertionError, ValueError, TypeError):
        raise wrong(f"unknown unit {written!r}") from None
    return float(f"{converted:.15g}")  # 3.6 Tb/s is 450 GB/s, not 450.00000000000006


@cache
def _registry():
    import pint  # takes half a second: only a quantity that needs converting pays for it

    return pint.UnitRegistry(DEFINITIONS.strip().splitlines())  # pyright: ignore[reportArgumentType]
