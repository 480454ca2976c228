"""`litegpu catalog models|accelerators|technologies`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from .options import CacheFormat, Json, WeightFormat


def models(
    name: Annotated[
        str | None, Parameter(help="Built-in model or path of a config.json; all without one.")
    ] = None,
    *,
    weights: Annotated[
        WeightFormat, Parameter(help="Number format of the weights.")
    ] = "checkpoint",
    kv: Annotated[CacheFormat, Parameter(help="Number format of the KV cache.")] = "checkpoint",
    as_json: Json = False,
) -> int:
    """List the built-in models, or show the shape of one with its parameters and bytes."""
    from ..report.models import model_json, model_list_section, model_section
    from ..workload.huggingface import builtin_models, read_transformer

    if name is None:
        shapes = [model_json(read_transformer(each), weights, kv) for each in builtin_models()]
        _print({"models": shapes}, [model_list_section(shapes)], as_json)
    else:
        source = {"source": _model_source(name)}
        content = model_json(read_transformer(name), weights, kv) | source
        _print(content, [model_section(content)], as_json)
    return 0


def accelerators(
    name: Annotated[
        str | None, Parameter(help="Built-in accelerator or path of a .toml file; all without one.")
    ] = None,
    *,
    as_json: Json = False,
) -> int:
    """List the accelerators, or show one: data sheet and bill of materials against the model."""
    from ..catalog import accelerator_names, load_accelerator, load_unmodelled, unmodelled_names

    if name is None:
        chips = [load_accelerator(each) for each in accelerator_names()]
        others = [load_unmodelled(each) for each in unmodelled_names()]
        content = {
            "accelerators": [{"name": chip.name, "title": chip.label} for chip in chips]
            + [{"name": chip.name, "title": f"{chip.title} (not modelled)"} for chip in others]
        }
        _print(content, [_titles("Accelerators", content["accelerators"])], as_json)
        return 0
    if name in unmodelled_names():
        from ..report.chips import unmodelled_json, unmodelled_sections

        content = unmodelled_json(load_unmodelled(name))
        _print(content, unmodelled_sections(content), as_json)
        return 0
    chip = load_accelerator(name, "accelerator")
    from .cache import enable_compilation_cache

    enable_compilation_cache()
    from ..report.chips import chip_json, chip_sections

    content = chip_json(chip)
    _print(content, chip_sections(content), as_json)
    return 0


def technologies(
    name: Annotated[
        str | None,
        Parameter(help="Table, or table.entry such as memory.hbm3e; all tables without one."),
    ] = None,
    *,
    as_json: Json = False,
) -> int:
    """List the technology tables and their entries, or show values with source and trust."""
    from ..catalog import TABLE_NAMES, TRUST, facts, names, records, title
    from ..errors import unknown_name
    from ..report.document import Section

    if name is None:
        listed = [
            {"name": f"{table}.{entry}", "title": title(table, entry)}
            for table in TABLE_NAMES
            for entry in names(table)
        ]
        _print({"technologies": listed}, [_titles("Technologies", listed)], as_json)
        return 0
    table, dot, entry = name.partition(".")
    if table not in TABLE_NAMES:
        raise unknown_name("technology table", table, TABLE_NAMES, where="technologies")
    entries = (entry,) if dot else names(table)
    content = {
        f"{table}.{each}": {
            field: asdict(record)
            for of_entry in (records, facts)
            for field, record in of_entry(table, each, "technologies").items()
        }
        for each in entries
    }
    sections = [
        *(
            Section(f"{path}: {title(table, path.partition('.')[2])}", (_records(rows),))
            for path, rows in content.items()
        ),
        Section("Trust", tuple(f"{letter}: {meaning}" for letter, meaning in TRUST.items())),
    ]
    _print({"technologies": content}, sections, as_json)
    return 0


def _print(content: Mapping[str, Any], sections: list[Any], as_json: bool) -> None:
    from .console import show, show_json

    if as_json:
        show_json(content)
    else:
        show(sections)


def _model_source(name: str) -> str:
    """What the list of sources says of a built-in model; the path of another."""
    from ..files import embedded
    from ..workload.huggingface import builtin_name

    builtin = builtin_name(name)
    if builtin is None:
        return name
    for line in embedded("models", "SOURCES.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == builtin:
            return f"{cells[1]} ({cells[2]})"
    return "not stated"


def _titles(heading: str, rows: list[dict[str, str]]) -> Any:
    from ..report.document import Section, Table

    cells = tuple((row["name"], row["title"]) for row in rows)
    return Section(heading, (Table(("name", "what it is"), cells, numeric=False),))


def _records(rows: Mapping[str, Mapping[str, Any]]) -> Any:
    from ..report.document import Table, figure

    return Table(
        ("value of", "typical", "low", "high", "unit", "trust", "source"),
        tuple(
            (
                field,
                *(figure(row[key]) for key in ("value", "low", "high")),
                row["unit"],
                row["trust"],
                row["source"],
            )
            for field, row in rows.items()
        ),
        numeric=False,
    )
