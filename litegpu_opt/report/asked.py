"""What a study asks, summarised with the origin of every value."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from ..catalog import DEFAULT_ENTRIES, HARDWARE_TABLES, records
from ..files import toml_literal
from .document import Section, Table, figure
from .questions_json import product_text


Result = Mapping[str, Any]


def asked(content: Result) -> Section:
    """Inputs with their origin, summarised."""
    inputs = content["inputs"]

    def row(label: str, text: str, *keys: str) -> tuple[str, str, str]:
        return label, text, _origins(inputs, keys)

    def value(key: str) -> Any:
        stated = inputs[key]["value"]
        return ", ".join(map(str, stated)) if isinstance(stated, list) else stated

    rows = []
    for index, workload in enumerate(content["panel"]):
        at = f"workload[{index}]"
        billions = figure(workload["parameters_total"] / 1e9)
        formats = ("weights", "kv", "activations", "wire")
        rows += [
            row(
                workload["workload"],
                f"{workload['model']}, {billions} B parameters, {value(f'{at}.pools')}",
                f"{at}.model",
                f"{at}.pools",
            ),
            row(
                "  traffic",
                f"{value(f'{at}.prompt_tokens')} prompt, {value(f'{at}.output_tokens')} output "
                "tokens",
                f"{at}.prompt_tokens",
                f"{at}.output_tokens",
            ),
            row(
                "  limits",
                f"TTFT {value(f'{at}.ttft')}, TBT {value(f'{at}.tbt')}",
                f"{at}.ttft",
                f"{at}.tbt",
            ),
            row(
                "  formats",
                ", ".join(f"{key} {value(f'{at}.{key}')}" for key in formats),
                *(f"{at}.{key}" for key in formats),
            ),
        ]
    rows += [
        row(
            "technology",
            "; ".join(f"{key} {value(f'technology.{key}')}" for key in HARDWARE_TABLES),
            *(f"technology.{key}" for key in HARDWARE_TABLES),
        ),
        *(
            row(f"  {name}", _override(inputs, name, new), "technology.overrides")
            for name, new in inputs["technology.overrides"]["value"].items()
        ),
        *_candidates(inputs),
        row(
            "money, timing",
            f"least {_objective(inputs['objective']['value'])}; {value('basis')} basis, "
            f"{value('technology.execution')} execution",
            "objective",
            "basis",
            "technology.execution",
        ),
        row(
            "search",
            f"tp up to {value('space.tensor_parallel_max')}, {value('starts')} starts, "
            f"seed {value('seed')}",
            "space.tensor_parallel_max",
            "starts",
            "seed",
        ),
        *_domains(inputs),
    ]
    return Section("Asked", (Table(("input", "value", "origin"), tuple(rows), numeric=False),))


def _objective(stated: Any) -> str:
    """What is made small, as the study states it."""
    return stated if isinstance(stated, str) else product_text(stated)


def _candidates(inputs: Result) -> list[tuple[str, str, str]]:
    """Names of the candidates of a file, with the study's own limits on each."""
    limits = ("die_area_max", "tdp_max", "unit_cost_max", "bounds")
    texts, keys = [], []
    numbers = itertools.takewhile(lambda n: f"candidate[{n}].name" in inputs, itertools.count())
    for at in (f"candidate[{number}]" for number in numbers):
        stated = {key: inputs[f"{at}.{key}"]["value"] for key in limits}
        set_here = [
            f"{key} {value if isinstance(value, str) else toml_literal(value)}"
            for key, value in stated.items()
            if value not in ("none", {})
        ]
        dies = inputs[f"{at}.dies_per_package"]["value"]
        counted = " or ".join(map(str, dies if isinstance(dies, list) else [dies]))
        noun = "die" if counted == "1" else "dies"
        name = inputs[f"{at}.name"]["value"]
        texts.append(f"{name} ({', '.join([f'{counted} {noun}', *set_here])})")
        keys.append(f"{at}.name")
    origins = _origins(inputs, keys)
    return [] if origins == "default" else [("candidates", "; ".join(texts), origins)]


def _domains(inputs: Result) -> list[tuple[str, str, str]]:
    """Links and switches that join fewer devices than the search may ask for."""
    most, changed = inputs["space.tensor_parallel_max"]["value"], inputs["technology.overrides"]
    rows = []
    for table in ("interconnect", "switch"):
        name, key = f"{table}.largest_domain", f"technology.{table}"
        joined = {
            entry: changed["value"].get(name, records(table, entry)["largest_domain"].value)
            for entry in inputs[key]["value"]
        }
        rows += [
            ("  domain", f"{entry} joins {figure(devices)} devices", _origins(inputs, [key]))
            for entry, devices in joined.items()
            if devices < most
        ]
    return rows


def _override(inputs: Result, name: str, new: float) -> str:
    """Catalogue value, of every entry that is asked for, -> new value."""
    table, _, field = name.partition(".")
    key = "basis" if table == "prices" else f"technology.{table}"
    entries = inputs[key]["value"] if key in inputs else DEFAULT_ENTRIES[table]
    entries = entries if isinstance(entries, list) else [entries]
    known = [records(table, entry)[field] for entry in entries]
    old = ", ".join(dict.fromkeys(figure(record.value) for record in known))
    return f"{old} -> {figure(new)} {known[0].unit}".strip()


def _origins(inputs: Result, keys: Iterable[str]) -> str:
    """`file`, or `file; default: wire`."""
    by_origin: dict[str, list[str]] = {}
    for key in keys:
        by_origin.setdefault(inputs[key]["origin"], []).append(key.rpartition(".")[2])
    if len(by_origin) == 1:
        return next(iter(by_origin))
    return "; ".join(f"{origin}: {', '.join(names)}" for origin, names in by_origin.items())
