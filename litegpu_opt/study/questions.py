"""What a study asks beside its optima: fronts and break-evens. No JAX here."""

from typing import Annotated, Any

from pydantic import model_validator

from ..catalog import default_records
from ..errors import UserError, unknown_name
from ..fields import checked, number, plain_text, several, whole
from ..files import Table, invalid
from ..space import OBJECTIVES, RECIPROCALS, objective_name
from ..units import parse_quantity, shown
from .fields import Name


AUTO = "auto"
"""Value of an end of a range that the study leaves open."""

FRONT_LIMITS = {
    "ttft": "ms",
    "tbt": "ms",
    "die_area_max": "mm^2",
    "tdp_max": "W",
    "unit_cost_max": "USD",
}
"""Limits along which a front can go, beside objectives: name -> unit."""


def _names(value: Any) -> tuple[str, ...]:
    return tuple(plain_text(name) for name in (value if isinstance(value, list) else [value]))


def _over(value: Any) -> str:
    text = plain_text(value)
    if text in FRONT_LIMITS:
        return text
    if text not in OBJECTIVES and text not in RECIPROCALS:
        raise unknown_name("limit", text, (*FRONT_LIMITS, *OBJECTIVES, *RECIPROCALS))
    return objective_name(text)


def _leaf(value: Any) -> str:
    text = plain_text(value)
    if text not in default_records():
        raise unknown_name("technology value", text, default_records())
    return text


def _two(value: Any) -> tuple[str, str]:
    if not isinstance(value, list | tuple) or len(value) != 2 or value[0] == value[1]:
        raise UserError(f"{shown(value)} is not accepted", allowed="two different names")
    return plain_text(value[0]), plain_text(value[1])


Names = Annotated[tuple[str, ...], checked(_names)]
End = str | float
"""A quantity with its unit, or `AUTO`."""


def _range(least: End, most: End, unit: str, auto: tuple[float, float] | None) -> Any:
    """Both ends in a unit, `auto` where they are left open."""
    if AUTO in (least, most):
        if least == most and auto is not None:
            return auto
        where = "least" if least == AUTO else "most"
        raise UserError("missing", where=where, allowed="both ends of the range")
    low = parse_quantity(least, unit, "least", bare=not unit)
    high = parse_quantity(most, unit, "most", bare=not unit)
    if not 0.0 < low < high:
        what = f"{shown(least)} to {shown(most)} is no range"
        raise UserError(what, where="least", allowed="more than zero, and below most")
    return low, high


class StudyFront(Table):
    """How the best objective depends on one limit."""

    over: Annotated[str, checked(_over)]
    """Another objective that is held, or a limit of the study."""
    least: End = AUTO
    """First limit. Left open for an objective: from the least that it can be..."""
    most: End = AUTO
    """Last limit. ...to its value at the optimum."""
    points: Annotated[int, checked(whole(2, 256))] = 9
    workloads: Names = ()
    """All of them if empty."""
    candidates: Names = ()
    """All of them if empty."""

    @property
    def ends(self) -> tuple[float, float] | None:
        """Ends of the range in the limit's own unit; `None` where an objective leaves them open."""
        is_objective = self.over in OBJECTIVES
        if is_objective and self.least == self.most == AUTO:
            return None
        return _range(self.least, self.most, FRONT_LIMITS.get(self.over, ""), None)

    @model_validator(mode="after")
    def _has_a_range(self) -> "StudyFront":
        _check(lambda: self.ends)
        return self

    def concerns(self, workload: str, candidate: str) -> bool:
        """Whether a candidate on a workload is asked about."""
        return (not self.workloads or workload in self.workloads) and (
            not self.candidates or candidate in self.candidates
        )


class StudyBreakEven(Table):
    """The value of an assumption at which two candidates or baselines tie. Hardware of a baseline
    stays as it is.
    """

    parameter: Annotated[str, checked(_leaf)]
    """`table.field` of a technology."""
    least: End = AUTO
    """Left open: the low end of the catalogue's range."""
    most: End = AUTO
    """Left open: the high end of the catalogue's range."""
    between: Annotated[tuple[str, str], checked(_two)]
    """Names of two candidates or baselines."""
    workloads: Names = ()
    """All of them if empty."""

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the range in the unit of the value."""
        record = default_records()[self.parameter]
        auto = (record.low, record.high) if 0.0 < record.low < record.high else None
        return _range(self.least, self.most, record.unit, auto)

    @model_validator(mode="after")
    def _has_a_range(self) -> "StudyBreakEven":
        _check(lambda: self.ends)
        return self

    def concerns(self, workload: str) -> bool:
        """Whether a workload is asked about."""
        return not self.workloads or workload in self.workloads


class StudyMix(Table):
    """One design for several workloads, beside the best one for each."""

    name: Name = "mix"
    """Name of the mix in the results."""
    workloads: Names
    """Names of two workloads or more."""
    shares: Annotated[tuple[float, ...], checked(several(number(1e-6, 1e6)))]
    """What each makes of all output tokens; they are divided by their sum."""

    @model_validator(mode="after")
    def _consistent(self) -> "StudyMix":
        if len(self.workloads) < 2 or len(set(self.workloads)) < len(self.workloads):
            what = f"{shown(list(self.workloads))} is not accepted"
            raise invalid(UserError(what, where="workloads", allowed="two different names or more"))
        if len(self.shares) != len(self.workloads):
            what = f"{shown(list(self.shares))} is not accepted"
            allowed = f"{len(self.workloads)} numbers, one for each workload"
            raise invalid(UserError(what, where="shares", allowed=allowed))
        return self

    @property
    def parts_of_one(self) -> tuple[float, ...]:
        """The shares divided by their sum."""
        return tuple(share / sum(self.shares) for share in self.shares)


def _check(read: Any) -> None:
    try:
        read()
    except UserError as error:
        raise invalid(error) from None
