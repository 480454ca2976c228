"""Formulas as text beside the values that the model gives: what `litegpu explain` prints.

A formula is Python arithmetic over names. `table.field` is a constant, named as an override names
it (`design.sm_count`, `process.wafer_usd`); a bare name is another quantity of the same list. The
values come from the functions of the model, never from the text: a test evaluates every text and
compares. Only what the model does not return by itself is the value of its text.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ...numerics import AnyArray


class Quantity(NamedTuple):
    """What is computed: its formula, its unit, and what it is."""

    formula: str
    unit: str
    meaning: str
    kind: str = ""
    """What quantities with formulas alike have in common: the formula is shown once."""


class Constant(NamedTuple):
    """A number that a formula starts from."""

    value: float
    unit: str
    source: str
    trust: str
    """A letter of the catalogue; empty for what is counted or chosen."""


FUNCTIONS: dict[str, object] = {
    "sqrt": math.sqrt,
    "exp": math.exp,
    "floor": math.floor,
    "max": max,
    "min": min,
    "pi": math.pi,
}
"""What a formula may use beside + - * / and **."""

_NAME = re.compile(r"(?<![\w.])[a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)?")


def names_in(formula: str) -> list[str]:
    """Constants and quantities of a formula, in the order in which they stand there."""
    return [name for name in dict.fromkeys(_NAME.findall(formula)) if name not in FUNCTIONS]


def with_numbers(
    formula: str, values: Mapping[str, float], shown: Callable[[float], str] = repr
) -> str:
    """The formula with every name replaced by its value."""

    def number(found: re.Match[str]) -> str:
        name = found.group()
        if name in FUNCTIONS:
            return name
        text = shown(float(values[name]))
        return f"({text})" if text.startswith("-") else text

    return _NAME.sub(number, formula)


def computed(formula: str, values: Mapping[str, float]) -> float:
    """The value of a formula of this project's own, never of a text that a user gave.

    Infinite where it divides by nothing, as in the model.
    """
    code = with_numbers(formula, values)
    try:
        return float(eval(code, {"__builtins__": {}}, {**FUNCTIONS, "inf": math.inf}))
    except ZeroDivisionError:
        return math.inf


def complete(
    quantities: Mapping[str, Quantity],
    constants: Mapping[str, Constant],
    modelled: Mapping[str, AnyArray],
) -> dict[str, float]:
    """Values of constants, of what the model returns, and of the helpers in between."""
    values = {name: constant.value for name, constant in constants.items()}
    values |= {name: float(value) for name, value in modelled.items()}

    def value(name: str) -> float:
        if name not in values:
            formula = quantities[name].formula
            for needed in names_in(formula):
                value(needed)
            values[name] = computed(formula, values)
        return values[name]

    for name in quantities:
        value(name)
    return values


def chain(targets: tuple[str, ...], quantities: Mapping[str, Quantity]) -> list[str]:
    """The quantities that lead to the targets, each after those that it needs."""
    order: dict[str, None] = {}

    def add(name: str) -> None:
        if name in quantities and name not in order:
            for needed in names_in(quantities[name].formula):
                add(needed)
            order[name] = None

    for target in targets:
        add(target)
    return list(order)
