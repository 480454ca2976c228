"""A buildable design as an accelerator file, with the command that evaluates it again."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from ..catalog import HARDWARE_TABLES
from ..files import toml_literal
from ..space import DESIGN_KEYS
from ..workload.phases import PHASES


Result = Mapping[str, Any]


def design_files(content: Result) -> Iterator[tuple[str, str]]:
    """File name and text for every buildable design of a study."""
    for index, workload in enumerate(content["panel"]):
        for optimum in workload["optima"]:
            if optimum["buildable"]:
                name = f"{workload['workload']}.{optimum['name']}.toml"
                yield name, _text(name, optimum["buildable"], index, workload, content)


def _text(name: str, built: Result, index: int, workload: Result, content: Result) -> str:
    """An accelerator file. Numbers are written out, so that nothing is rounded."""
    design, inputs = built["design"], content["inputs"]
    keys = {
        key: f'"{design[field]!r} {unit}"' if unit else repr(design[field])
        for key, (field, unit) in DESIGN_KEYS.items()
        if field in design
    }
    whole = ("sm_count", "memory_stacks")
    keys |= {key: str(round(design[key])) for key in (*whole, "dies_per_package")}
    keys |= {"aspect_ratio": repr(design["aspect_ratio"]), "tdp": f'"{built["tdp_w"]!r} W"'}
    overrides = inputs["technology.overrides"]["value"]
    lines = [
        f"# {workload['workload']}, {built['objective']:.6g} {workload['objective_text']}; "
        f"study {content['study']}, {content['study_hash'][:16]}, litegpu {content['version']}",
        f"# {_command(name, built, index, workload, inputs)}",
        f"title = {toml_literal(f'{name} of study ' + content['study'])}",
        f"largest_group = {max(built['deployment'][f'tp_{phase}'] or 1 for phase in PHASES)}",
        "",
        "[design]",
        *(f"{key} = {value}" for key, value in keys.items()),
        "",
        "[technology]",
        *(f"{table} = {toml_literal(built['technology'][table])}" for table in HARDWARE_TABLES),
        f"overrides = {toml_literal(overrides)}",
    ]
    return "\n".join(lines) + "\n"


def _command(name: str, built: Result, index: int, workload: Result, inputs: Result) -> str:
    """The command that gives the same numbers again."""
    deployment, precision = built["deployment"], workload["precision"]
    options: dict[str, Any] = {
        "accelerator": name,
        "model": inputs[f"workload[{index}].model"]["value"],
        "tp": deployment["tp_decode"],
        "tp-prefill": deployment["tp_prefill"],
        "batch": _whole(deployment["batch_decode"]),
        "batch-prefill": _whole(deployment["batch_prefill"]),
        "clock-decode": _clock(deployment["clock_decode_ghz"]),
        "clock-prefill": _clock(deployment["clock_prefill_ghz"]),
        "prompt": workload["prompt_tokens"],
        "output": workload["output_tokens"],
        **precision,
        "execution": inputs["technology.execution"]["value"],
        "basis": inputs["basis"]["value"],
    }
    words = [f"--{key} {shlex.quote(str(value))}" for key, value in options.items() if value]
    return f"litegpu evaluate {' '.join(words)}"


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _clock(value: float | None) -> str | None:
    return None if value is None else f"{value!r} GHz"
