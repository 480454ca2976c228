"""The study: what is asked, of which candidates, in which technologies."""

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ..catalog import HARDWARE_TABLES
from ..errors import UserError, unknown_name
from ..fields import (
    checked,
    table_rows,
    whole,
    yes_or_no,
)
from ..files import Table, invalid
from ..units import shown
from .fields import WRITTEN_OBJECTIVE, Name, entry_of, objective_exponents
from .questions import StudyBreakEven, StudyFront, StudyMix
from .sweep import StudySweep
from .tables import (
    BASELINES,
    CANDIDATES,
    StudyBaseline,
    StudyCandidate,
    StudySpace,
    StudyTechnology,
    StudyWorkload,
)


Origin = Literal["file", "default", "flag"]


_NESTED = (
    "technology",
    "space",
    "workloads",
    "candidates",
    "baselines",
    "fronts",
    "break_evens",
    "mixes",
    "sweep",
)


class Study(Table):
    """Everything a search needs to know. Attributes are in the units of their names."""

    name: Name = "study"
    """Name of the study in the results."""
    seed: Annotated[int, checked(whole(0, 2**32 - 1))] = 0
    """Seed of the random starts."""
    starts: Annotated[int, checked(whole(1, 64))] = 2
    """Random starts of each branch."""
    basis: Annotated[str, checked(entry_of("prices"))] = "cost"
    """Bill of materials or selling prices."""
    objective: Annotated[dict[str, float], checked(objective_exponents), WRITTEN_OBJECTIVE] = {
        "usd_per_million_tokens": 1.0
    }
    """What is made small, or a product of powers."""
    technology: StudyTechnology = StudyTechnology()
    """What the accelerators are built in."""
    space: StudySpace = StudySpace()
    """Bounds of the discrete choices."""
    workloads: Annotated[
        tuple[StudyWorkload, ...], checked(table_rows("workload")), Field(alias="workload")
    ]
    """What is to be served."""
    candidates: Annotated[
        tuple[StudyCandidate, ...], checked(table_rows("candidate")), Field(alias="candidate")
    ] = CANDIDATES
    """Classes of accelerators, of each of which the best is sought."""
    baselines: Annotated[
        tuple[StudyBaseline, ...], checked(table_rows("baseline")), Field(alias="baseline")
    ] = BASELINES
    """Existing accelerators to compare with."""
    fronts: Annotated[
        tuple[StudyFront, ...], checked(table_rows("front")), Field(alias="front")
    ] = ()
    break_evens: Annotated[
        tuple[StudyBreakEven, ...], checked(table_rows("break_even")), Field(alias="break_even")
    ] = ()
    mixes: Annotated[tuple[StudyMix, ...], checked(table_rows("mix")), Field(alias="mix")] = ()
    specialised: Annotated[bool, checked(yes_or_no)] = False
    """Whether to search a pair of designs as well, one for prefill and one for decode."""
    tornado: Annotated[int, checked(whole(0, 100))] = 0
    """Assumptions of each optimum for which it is searched again at the ends of their ranges."""

    sweep: StudySweep | None = None
    """What `litegpu sweep` visits."""

    @model_validator(mode="after")
    def _names_differ(self) -> "Study":
        named = {
            "workload": "name",
            "candidate": "name",
            "baseline": "accelerator",
            "mix": "name",
        }
        for key, attribute in named.items():
            rows = self._arrays()[key]
            seen = set()
            for index, row in enumerate(rows):
                name = getattr(row, attribute)
                if name in seen:
                    where = f"{key}[{index}].{attribute}"
                    raise invalid(UserError(f"{shown(name)} occurs twice", where=where))
                seen.add(name)
        return self

    @model_validator(mode="after")
    def _asks_about_what_there_is(self) -> "Study":
        workloads = [row.name for row in self.workloads]
        candidates = [row.name for row in self.candidates]
        sides = candidates + [row.accelerator for row in self.baselines]
        for key, rows, fields in (
            ("front", self.fronts, {"workloads": workloads, "candidates": candidates}),
            ("break_even", self.break_evens, {"workloads": workloads, "between": sides}),
            ("mix", self.mixes, {"workloads": workloads}),
        ):
            for index, row in enumerate(rows):
                for field, known in fields.items():
                    for name in getattr(row, field):
                        if name not in known:
                            where = f"{key}[{index}].{field}"
                            raise invalid(unknown_name("name", name, known, where=where))
        if self.sweep is not None and self.sweep.workload not in ("", *workloads):
            name = self.sweep.workload
            raise invalid(unknown_name("workload", name, workloads, where="sweep.workload"))
        return self

    @model_validator(mode="after")
    def _mixes_add_up(self) -> "Study":
        """The cost of a mix is the sum of those of its workloads."""
        limited = [row.name for row in self.workloads if row.limits]
        for index, mix in enumerate(self.mixes):
            if list(self.objective.values()) != [1.0]:
                error = UserError(
                    "a mix adds up over its workloads",
                    where=f"mix[{index}]",
                    allowed="one objective, not a product of powers",
                )
                raise invalid(error)
            for name in mix.workloads:
                if name in limited:
                    what = f"workload {name} has limits per output token of its own"
                    where = f"mix[{index}].workloads"
                    raise invalid(UserError(what, where=where, allowed="workloads without limits"))
        return self

    def tables(self) -> Iterator[tuple[str, Table]]:
        """Every table with its key path, in the order of a file; the path of the first is empty."""
        yield "", self
        yield "technology", self.technology
        yield "space", self.space
        for key, rows in self._arrays().items():
            for index, row in enumerate(rows):
                yield f"{key}[{index}]", row
        if self.sweep is not None:
            yield "sweep", self.sweep

    def origin(self) -> dict[str, Origin]:
        """Key path, such as `workload[0].tbt`, -> whether the file or a default gave the value."""
        given = {file_key(type(self), name) for name in self.model_fields_set}
        return {
            f"{path}.{key}".lstrip("."): (
                "file"
                if name in table.model_fields_set and (not path or path.split("[")[0] in given)
                else "default"
            )
            for path, table in self.tables()
            for name, key in leaf_keys(table).items()
        }

    def technology_choices(self) -> Iterator[dict[str, str]]:
        """Table -> entry of every branch, to pass to `catalog.technology` with the overrides."""
        for entries in itertools.product(
            *(getattr(self.technology, name) for name in HARDWARE_TABLES)
        ):
            chosen = dict(zip(HARDWARE_TABLES, entries, strict=True))
            yield chosen | {"execution": self.technology.execution, "prices": self.basis}

    def _arrays(self) -> dict[str, tuple[Any, ...]]:
        return {
            "workload": self.workloads,
            "candidate": self.candidates,
            "baseline": self.baselines,
            "front": self.fronts,
            "break_even": self.break_evens,
            "mix": self.mixes,
        }


def file_key(table: type[Table], name: str) -> str:
    return table.model_fields[name].alias or name


def leaf_keys(table: Table) -> dict[str, str]:
    """Attribute -> file key of what is not itself a table."""
    nested = _NESTED if isinstance(table, Study) else ()
    fields = type(table).model_fields
    return {name: file_key(type(table), name) for name in fields if name not in nested}
