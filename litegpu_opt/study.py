"""The study file: what is asked, of which candidates, in which technologies. No JAX here."""

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, model_validator

from .catalog import HARDWARE_TABLES, load_accelerator, names, override_records
from .errors import UserError, unknown_name
from .fields import (
    OVERRIDES,
    Converter,
    accepting,
    checked,
    limit,
    number,
    one_of,
    plain_name,
    plain_text,
    several,
    table_rows,
    whole,
    yes_or_no,
)
from .files import Table, embedded, invalid, parse_toml, read_toml, toml_literal, validated
from .questions import StudyBreakEven, StudyFront
from .space import DESIGN_BOX, DESIGN_KEYS, OBJECTIVES, RECIPROCALS, objective_name
from .units import parse_quantity, shown
from .workload.huggingface import read_transformer
from .workload.phases import SERVED
from .workload.precision import Precision, allowed_formats
from .workload.transformer import Transformer


Origin = Literal["file", "default", "flag"]


def _entry(table: str) -> Converter:
    return one_of(table, partial(names, table))


@accepting(type="object", **OVERRIDES)
def _overrides(value: Any) -> dict[str, float]:
    return {name: record.value for name, record in override_records(value).items()}


def _written(unit: str) -> PlainSerializer:
    return PlainSerializer(
        lambda value: "none" if value is None else f"{toml_literal(value)} {unit}"
    )


def _format(what: str, default: Any = ...) -> Any:
    """A field of `Precision`, which checks it."""
    names = allowed_formats(what)
    extra: dict[str, Any] = {"enum": list(names), "allowed": f"one of {', '.join(names)}"}
    return Field(default, json_schema_extra=extra)


def _numbers(item: Converter) -> dict[str, Any]:
    """JSON Schema of a table from names of objectives to numbers."""
    accepts = {key: value for key, value in item.accepts.items() if key != "allowed"}
    return {"type": "object", "propertyNames": {"enum": _NAMES}, "additionalProperties": accepts}


_NAMES = [*OBJECTIVES, *RECIPROCALS]
_EXPONENT = number(0, 100)
_LIMIT = number(1e-12, 1e12)


@accepting(
    anyOf=[{"enum": _NAMES}, _numbers(_EXPONENT)],
    allowed=f"one of {', '.join(_NAMES)}; or a table of them, "
    f"each with its exponent, {_EXPONENT.accepts['allowed']}",
)
def _objective(value: Any) -> dict[str, float]:
    """A name, or a table of names and exponents."""
    exponents = {value: 1.0} if isinstance(value, str) else value
    if not isinstance(exponents, dict) or not exponents:
        raise UserError(
            f"{shown(value)} is no objective",
            allowed=f"a name, or a table of exponents: {', '.join(OBJECTIVES)}",
        )
    return _by_objective(exponents, _EXPONENT)


@accepting(
    **_numbers(_LIMIT),
    allowed=f"a table, objective = {_LIMIT.accepts['allowed']}, in "
    + ", ".join(f"{unit} ({name})" for name, unit in OBJECTIVES.items()),
)
def _objective_limits(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise UserError(
            f"{shown(value)} is not a table", allowed=f"limits on {', '.join(OBJECTIVES)}"
        )
    return _by_objective(value, _LIMIT)


def _by_objective(table: dict[str, Any], convert: Converter) -> dict[str, float]:
    """A table with the names of objectives resolved; a reciprocal stands for its objective."""
    result: dict[str, float] = {}
    for name, value in table.items():
        known = objective_name(name, where=name)
        if known in result:
            raise UserError(f"{known} occurs twice", where=name)
        result[known] = convert(value)
    return result


def _bound(key: str) -> dict[str, Any]:
    """JSON Schema of the bounds of one design variable."""
    field, unit = DESIGN_KEYS[key]
    quantity = {"type": "string" if unit else ["number", "string"]}
    pair = {"type": "array", "items": quantity, "minItems": 2, "maxItems": 2}
    allowed = f"{_box(field, unit)}, or a list of least and most"
    return {"anyOf": [quantity, pair], "allowed": allowed}


def _box(field: str, unit: str) -> str:
    least, most = DESIGN_BOX[field]
    return f"{least:g} to {most:g} {unit}".strip()


@accepting(
    type="object",
    properties={key: _bound(key) for key in DESIGN_KEYS},
    additionalProperties=False,
)
def _bounds(value: Any) -> dict[str, tuple[float, float]]:
    """Design variable -> bounds, from quantities with their units."""
    if not isinstance(value, dict):
        raise UserError(f"{shown(value)} is not a table", allowed=", ".join(DESIGN_KEYS))
    result = {}
    for name, given in value.items():
        if name not in DESIGN_KEYS:
            raise unknown_name("design variable", name, DESIGN_KEYS, where=name)
        field, unit = DESIGN_KEYS[name]
        ends = given if isinstance(given, list) else [given, given]
        least, most = DESIGN_BOX[field]
        if len(ends) != 2:
            raise UserError(f"{shown(given)} is no pair of bounds", where=name)
        low, high = (parse_quantity(end, unit, name, bare=False) for end in ends)
        if not least <= low <= high <= most:
            raise UserError(
                f"{shown(given)} is not accepted",
                where=name,
                allowed=f"{_box(field, unit)}, the smaller first",
            )
        result[field] = (low, high)
    return result


_WRITTEN_OBJECTIVE = PlainSerializer(
    lambda exponents: next(iter(exponents)) if list(exponents.values()) == [1.0] else exponents
)
_WRITTEN_BOUNDS = PlainSerializer(
    lambda bounds: {
        key: [f"{toml_literal(end)} {unit}" if unit else end for end in bounds[field]]
        for key, (field, unit) in DESIGN_KEYS.items()
        if field in bounds
    }
)


Name = Annotated[str, checked(plain_name)]
Entries = tuple[str, ...]
Milliseconds = Annotated[float | None, checked(limit("ms")), _written("ms")]
SquareMillimetres = Annotated[float | None, checked(limit("mm^2")), _written("mm^2")]
Ratios = Annotated[tuple[float, ...], checked(several(number(1, 4)))]
Tokens = Annotated[float, checked(number(1, 1e9))]


class StudyTechnology(Table):
    """Catalogue entries; where several are named, each combination is a branch of the search."""

    process: Annotated[Entries, checked(several(_entry("process")))] = ("n4",)
    """Silicon process of the compute die."""
    memory: Annotated[Entries, checked(several(_entry("memory")))] = ("hbm3e",)
    """Memory stacks."""
    interconnect: Annotated[Entries, checked(several(_entry("interconnect")))] = ("cpo",)
    """Links between packages."""
    switch: Annotated[Entries, checked(several(_entry("switch")))] = ("nvswitch",)
    """What joins the links."""
    package: Annotated[Entries, checked(several(_entry("package")))] = ("interposer",)
    """How dies and stacks are joined."""
    cooling: Annotated[Entries, checked(several(_entry("cooling")))] = ("liquid", "air")
    """What carries the heat away."""
    execution: Annotated[str, checked(_entry("execution"))] = "calibrated"
    """Efficiency factors and fixed times."""
    overrides: Annotated[dict[str, float], checked(_overrides)] = {}
    """Catalogue values that are replaced, in every branch."""


class StudySpace(Table):
    """Bounds of the discrete choices."""

    tensor_parallel_max: Annotated[int, checked(whole(1, 1024))] = 64
    """Largest tensor-parallel degree of a group."""
    aspect_ratios: Ratios = (1.0, 1.27, 1.6, 2.0)
    """Long side of a die over its short side."""


class StudyWorkload(Table):
    """A model, its traffic and its limits. Formats and lengths have no safe default."""

    name: Name
    """Name of the workload in the results."""
    model: Annotated[str, checked(plain_text)]
    """Built-in name, or path of a `config.json`."""
    weights: str = _format("weights")
    """Number format of the weights."""
    kv: str = _format("kv")
    """Number format of the KV cache."""
    activations: str = _format("activations", "bf16")
    """Number format of the activations."""
    wire: str = _format("wire", "bf16")
    """Number format on the network."""
    prompt_tokens: Tokens
    """Prompt of a request, tokens."""
    output_tokens: Tokens
    """Answer of a request, tokens, with the one that prefill makes."""
    ttft_ms: Milliseconds = Field(None, alias="ttft")
    """Limit on the time to first token."""
    tbt_ms: Milliseconds = Field(None, alias="tbt")
    """Limit on the time between tokens."""
    pools: Annotated[str, checked(one_of("pools", lambda: SERVED))] = "prefill+decode"
    """Phases that are served."""
    limits: Annotated[dict[str, float], checked(_objective_limits)] = {}
    """Most that is allowed per output token, while another objective is searched."""

    @model_validator(mode="after")
    def _consistent(self) -> "StudyWorkload":
        if self.pools == "decode" and self.ttft_ms is not None:
            what = "a decode pool makes no first token"
            raise invalid(UserError(what, where="ttft", allowed='"none"'))
        try:
            self.precision()
        except UserError as error:
            raise invalid(error) from None
        return self

    def precision(self) -> Precision:
        """The number formats."""
        return Precision(self.weights, self.kv, self.activations, self.wire)


class StudyCandidate(Table):
    """A class of accelerators of which the best is sought."""

    name: Name
    """Name of the candidate in the results."""
    die_area_max_mm2: SquareMillimetres = Field(None, alias="die_area_max")
    """Largest die; without it only the reticle field limits the die."""
    dies_per_package: Annotated[tuple[int, ...], checked(several(whole(1, 8)))] = (1,)
    """Compute dies in one package."""
    tdp_max_w: Annotated[float | None, checked(limit("W")), _written("W")] = Field(
        None, alias="tdp_max"
    )
    """Most power of a package; without it only cooling and package limit it."""
    unit_cost_max_usd: Annotated[float | None, checked(limit("USD")), _written("USD")] = Field(
        None, alias="unit_cost_max"
    )
    """Most that a package may cost to make."""
    bounds: Annotated[dict[str, tuple[float, float]], checked(_bounds), _WRITTEN_BOUNDS] = {}
    """Least and most of a design variable; one value fixes it."""


class StudyBaseline(Table):
    """An existing accelerator to compare with."""

    accelerator: Annotated[str, checked(plain_text)]
    """Built-in name, or path of a TOML file."""


_CANDIDATES = tuple(
    StudyCandidate.model_validate(candidate)
    for candidate in (
        {"name": "lite", "die_area_max": "214.5 mm^2", "dies_per_package": [1]},
        {"name": "reticle", "dies_per_package": [1]},
        {"name": "multi-die", "dies_per_package": [2, 4]},
    )
)
_BASELINES = (StudyBaseline(accelerator="h100-sxm"),)
_NESTED = (
    "technology",
    "space",
    "workloads",
    "candidates",
    "baselines",
    "fronts",
    "break_evens",
)


class Study(Table):
    """Everything a search needs to know. Attributes are in the units of their names."""

    name: Name = "study"
    """Name of the study in the results."""
    seed: Annotated[int, checked(whole(0, 2**32 - 1))] = 0
    """Seed of the random starts."""
    starts: Annotated[int, checked(whole(1, 64))] = 2
    """Random starts of each branch."""
    basis: Annotated[str, checked(_entry("prices"))] = "cost"
    """Bill of materials or selling prices."""
    objective: Annotated[dict[str, float], checked(_objective), _WRITTEN_OBJECTIVE] = {
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
    ] = _CANDIDATES
    """Classes of accelerators, of each of which the best is sought."""
    baselines: Annotated[
        tuple[StudyBaseline, ...], checked(table_rows("baseline")), Field(alias="baseline")
    ] = _BASELINES
    """Existing accelerators to compare with."""
    fronts: Annotated[
        tuple[StudyFront, ...], checked(table_rows("front")), Field(alias="front")
    ] = ()
    break_evens: Annotated[
        tuple[StudyBreakEven, ...], checked(table_rows("break_even")), Field(alias="break_even")
    ] = ()
    specialised: Annotated[bool, checked(yes_or_no)] = False
    """Whether to search a pair of designs as well, one for prefill and one for decode."""
    tornado: Annotated[int, checked(whole(0, 100))] = 0
    """Assumptions of each optimum for which it is searched again at the ends of their ranges."""

    @model_validator(mode="after")
    def _names_differ(self) -> "Study":
        named = {"workload": "name", "candidate": "name", "baseline": "accelerator"}
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
        ):
            for index, row in enumerate(rows):
                for field, known in fields.items():
                    for name in getattr(row, field):
                        if name not in known:
                            where = f"{key}[{index}].{field}"
                            raise invalid(unknown_name("name", name, known, where=where))
        return self

    def tables(self) -> Iterator[tuple[str, Table]]:
        """Every table with its key path, in the order of a file; the path of the first is empty."""
        yield "", self
        yield "technology", self.technology
        yield "space", self.space
        for key, rows in self._arrays().items():
            for index, row in enumerate(rows):
                yield f"{key}[{index}]", row

    def origin(self) -> dict[str, Origin]:
        """Key path, such as `workload[0].tbt`, -> whether the file or a default gave the value."""
        given = {_key(type(self), name) for name in self.model_fields_set}
        return {
            f"{path}.{key}".lstrip("."): (
                "file"
                if name in table.model_fields_set and (not path or path.split("[")[0] in given)
                else "default"
            )
            for path, table in self.tables()
            for name, key in _leaf_keys(table).items()
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
        }


def _key(table: type[Table], name: str) -> str:
    return table.model_fields[name].alias or name


def _leaf_keys(table: Table) -> dict[str, str]:
    """Attribute -> file key of what is not itself a table."""
    nested = _NESTED if isinstance(table, Study) else ()
    fields = type(table).model_fields
    return {name: _key(type(table), name) for name in fields if name not in nested}


def load_study(path: str | Path | None = None) -> Study:
    """Read and check a study file; the embedded panel without one.

    Relative paths of models and accelerators are taken from the folder of the file.
    """
    if path is None:
        text = embedded("studies", "panel.toml").read_text("utf-8")
        panel = validated(Study, parse_toml(text, "panel.toml"), "panel.toml")
        values = {_key(Study, name): value for name, value in panel}
        return Study.model_construct(_fields_set=set(), **values)
    raw = read_toml(path)
    _find_files(raw, Path(path).parent)
    study = validated(Study, raw, str(path))
    study_transformers(study, f"{path}:")
    for index, baseline in enumerate(study.baselines):
        load_accelerator(baseline.accelerator, f"{path}:baseline[{index}].accelerator")
    return study


def study_transformers(study: Study, place: str = "") -> list[Transformer]:
    """The models of the workloads.

    **Raises:** `UserError` with `place` and the key, for a model that cannot be read or searched.
    """
    return [
        _transformer(row.model, f"{place}workload[{index}].model")
        for index, row in enumerate(study.workloads)
    ]


def _transformer(name_or_path: str, where: str) -> Transformer:
    try:
        transformer = read_transformer(name_or_path, "")
    except UserError as error:
        inside = f": {error.where}" if error.where else ""
        raise UserError(error.what, where=where + inside, allowed=error.allowed) from None
    if transformer.has_experts:
        # their bytes as a function of the batch are not convex in logarithms: no bound would hold
        what = f"{transformer.name} is a mixture of experts, which cannot be optimised yet"
        raise UserError(what, where=where, allowed="dense models; litegpu evaluate takes both")
    return transformer


def _find_files(raw: dict[str, Any], folder: Path) -> None:
    """Make paths absolute, so that a study means the same when it is written elsewhere."""
    for header, key in (("workload", "model"), ("baseline", "accelerator")):
        rows = raw.get(header)
        for row in rows if isinstance(rows, list) else []:
            text = row.get(key) if isinstance(row, dict) else None
            if isinstance(text, str) and _is_path(text) and _exists(folder / text):
                row[key] = str((folder / text).resolve())


def _is_path(text: str) -> bool:
    return "/" in text or os.sep in text or text.endswith((".json", ".toml"))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # such as a name that is too long
        return False


def resolved_toml(study: Study, flags: Iterable[str] = ()) -> str:
    """The study with everything written out, and where each value came from as a comment.

    `load_study` of this text gives an equal study. `flags` are the keys that an option replaced.
    """
    origin = study.origin() | dict.fromkeys(flags, "flag")
    blocks = []
    for path, table in study.tables():
        lines = [_header(path)] if path else []
        for key, value in _content(table).items():
            source = origin[f"{path}.{key}".lstrip(".")]
            lines.append(f"{key} = {toml_literal(value)}  # {source}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _header(path: str) -> str:
    name, row, _ = path.partition("[")
    return f"[[{name}]]" if row else f"[{name}]"


def _content(table: Table) -> dict[str, Any]:
    """File key -> value as it stands in a file, without nested tables."""
    return table.model_dump(by_alias=True, include=set(_leaf_keys(table)))


def study_hash(study: Study) -> str:
    """SHA-256 of what a study asks; independent of layout, units written and origin."""
    content = [(path, _content(table)) for path, table in study.tables()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
