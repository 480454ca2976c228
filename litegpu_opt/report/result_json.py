"""`PanelResult` as the dictionary that `litegpu optimize --json` promises."""

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from .. import __version__
from ..catalog import Accelerator, Record, load_accelerator, provenance, records
from ..optimizer.groups import study_technologies
from ..optimizer.result import (
    Baseline,
    Buildable,
    Certified,
    Infeasible,
    Optimum,
    PanelResult,
    Run,
    WorkloadResult,
)
from ..space import DESIGN_VARIABLES
from ..study import Study, resolved_toml, study_hash
from ..workload.memory import parameter_counts
from ..workload.phases import PHASES
from ..workload.traffic import Workload
from .findings import findings
from .metrics_json import metrics_json
from .mixes import mix_json
from .provenance import machine_errors, provenance_json
from .questions_json import objective_text, questions_json


TOP_ASSUMPTIONS = 15
"""Assumptions that are listed with their source, by elasticity."""

Entries = Mapping[str, Mapping[str, str]]
"""Name of a combination of technologies -> table -> entry."""


def panel_json(result: PanelResult, origins: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Everything a study found, as plain data.

    **Arguments:**

    - `origins`: key path -> where a value came from, on top of `Study.origin`.
    """
    study = result.study
    entries = {name: chosen for name, (chosen, _) in study_technologies(study).items()}
    values = _values(study)
    workloads = {item.name: item.workload for item in result.panel}
    return {
        "version": __version__,
        "study": study.name,
        "seed": study.seed,
        "study_hash": study_hash(study),
        "seconds": dict(result.seconds),
        "inputs": inputs(study, origins or {}),
        "trust": dict(Counter(record.trust for _, record in values)),
        "provenance": provenance_json(values, _machine_errors(result)),
        "panel": [_workload(item, study, entries) for item in result.panel],
        "mixes": [
            mix_json(
                item,
                lambda name, run: _run(run, workloads[name], gross_margin=_gross_margin(study)),
            )
            for item in result.mixes
        ],
    }


def inputs(study: Study, origins: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Key path -> value as a file would state it, and its origin."""
    written: dict[str, Any] = {}
    known = study.origin() | dict(origins)
    for key, value in tomllib.loads(resolved_toml(study)).items():
        if isinstance(value, dict) and key not in known:
            written |= {f"{key}.{name}": item for name, item in value.items()}
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for index, row in enumerate(value):
                written |= {f"{key}[{index}].{name}": item for name, item in row.items()}
        else:
            written[key] = value
    return {path: {"value": value, "origin": known[path]} for path, value in written.items()}


def _values(study: Study) -> list[tuple[str, Record]]:
    """Name and record of every value in the technologies of a study, each once."""
    values = (
        value
        for entries in study.technology_choices()
        for value in provenance(study.technology.overrides, **entries).items()
    )
    return list(dict.fromkeys(values))


def _machine_errors(result: PanelResult) -> dict[str, dict[str, float]]:
    """Baseline -> errors of the machine model, which depend on no workload."""
    return {
        baseline.name: machine_errors(_chip(baseline, result.study), baseline.run.metrics)
        for item in result.panel
        for baseline in item.baselines
    }


def _workload(item: WorkloadResult, study: Study, entries: Entries) -> dict[str, Any]:
    model, traffic = item.workload.transformer, item.workload.traffic
    optima = [_optimum(optimum, item.workload, study, entries) for optimum in item.optima]
    baselines = [_baseline(baseline, item.workload, study) for baseline in item.baselines]
    best = min((optimum["objective"] for optimum in optima), default=None)
    for entry in (*optima, *baselines):
        entry["ratio_to_best"] = entry["objective"] / best if best else None
    content = {
        "workload": item.name,
        "model": model.name,
        "parameters_total": parameter_counts(model).total,
        "assumed": list(model.assumed),
        "precision": asdict(item.workload.precision),
        "prompt_tokens": float(traffic.prompt_tokens),
        "output_tokens": float(traffic.output_tokens),
        "pools": item.workload.pools,
        "optima": optima,
        "baselines": baselines,
        "infeasible": [_infeasible(entry) for entry in item.infeasible],
        "objective_text": objective_text(study.objective),
    } | questions_json(
        item, lambda run: _run(run, item.workload, gross_margin=_gross_margin(study))
    )
    return content | {"findings": findings(content)}


def _gross_margin(study: Study) -> float:
    margin = records("prices", study.basis)["gross_margin"].value
    return study.technology.overrides.get("prices.gross_margin", margin)


def _run(
    run: Run, workload: Workload, *, gross_margin: float, built: bool = False
) -> dict[str, Any]:
    """Design, deployment and metrics of a point."""
    choice, values = run.choice, run.values
    ((tp_prefill, tp_decode),) = choice.pairs
    design = {name: values[name] for name in DESIGN_VARIABLES} | {
        "aspect_ratio": choice.aspect_ratio,
        "dies_per_package": choice.dies_per_package,
    }
    deployment: dict[str, float | None] = {
        "tp_prefill": tp_prefill,
        "tp_decode": tp_decode,
        "batch_prefill": values["batch_prefill"],
        "batch_decode": values["batch_decode"],
        "clock_prefill_ghz": values["clock_prefill_ghz"],
        "clock_decode_ghz": values["clock_decode_ghz"],
    }
    for phase, served in zip(PHASES, workload.served, strict=True):
        if not served:  # a phase that is not asked for has no deployment
            deployment |= {key: None for key in deployment if phase in key}
    return (
        {"design": design, "deployment": deployment}
        | metrics_json(run.metrics, workload, design, gross_margin=gross_margin, built=built)
        | {"usd_per_million_tokens_half_load": run.usd_per_million_tokens_half_load}
    )


def _certified(value: Certified) -> dict[str, float]:
    return {
        "objective": value.value,
        "lower_bound": value.lower_bound,
        "gap": value.gap,
    }


def _optimum(
    optimum: Optimum, workload: Workload, study: Study, entries: Entries
) -> dict[str, Any]:
    candidate = next(row for row in study.candidates if row.name == optimum.name)
    chosen = entries[optimum.run.choice.technology]
    return {
        "name": optimum.name,
        **_run(optimum.run, workload, gross_margin=_gross_margin(study)),
        "technology": dict(chosen),
        "die_area_max_mm2": candidate.die_area_max_mm2,
        **_certified(optimum.soft),
        "hard": _certified(optimum.hard),
        "kkt_residual": optimum.kkt_residual,
        "multipliers": dict(optimum.multipliers),
        "sensitivities": dict(optimum.sensitivities),
        "slopes_at_zero": dict(optimum.slopes_at_zero),
        "top_assumptions": _assumptions(
            optimum.sensitivities,
            provenance(study.technology.overrides, **chosen) | _asked_of(workload),
        ),
        "starts": asdict(optimum.starts),
        "at_box": dict(optimum.at_box),
        "buildable": _buildable(optimum.buildable, workload, study, entries),
    }


def _asked_of(workload: Workload) -> dict[str, Record]:
    """The numbers of a workload, as the study states them."""
    numbers = {**vars(workload.traffic), **vars(workload.slo)}
    return {
        f"workload.{name}": Record.exact(float(value), name.rpartition("_")[2], "the study")
        for name, value in numbers.items()
    }


def _assumptions(
    elasticities: Mapping[str, float], records: Mapping[str, Record]
) -> list[dict[str, Any]]:
    """The assumptions that matter most, with where they come from."""
    largest = sorted(elasticities, key=lambda name: -abs(elasticities[name]))
    return [
        {"name": name, "elasticity": elasticities[name], **asdict(records[name])}
        for name in largest[:TOP_ASSUMPTIONS]
    ]


def _buildable(
    buildable: Buildable | None, workload: Workload, study: Study, entries: Entries
) -> dict[str, Any] | None:
    if buildable is None:
        return None
    return _run(buildable.run, workload, gross_margin=_gross_margin(study)) | {
        "technology": dict(entries[buildable.run.choice.technology]),
        "objective": buildable.objective,
        "gap": buildable.gap,
        "lattice_lower_bound": buildable.lattice_lower_bound,
        "lattice_gap": buildable.lattice_gap,
        "branch_gap": buildable.branch_gap,
    }


def _chip(baseline: Baseline, study: Study) -> Accelerator:
    accelerators = (load_accelerator(entry.accelerator) for entry in study.baselines)
    return next(chip for chip in accelerators if chip.name == baseline.name)


def _baseline(baseline: Baseline, workload: Workload, study: Study) -> dict[str, Any]:
    chip = _chip(baseline, study)
    money = {"prices": study.basis, "execution": study.technology.execution}
    prices = chip.technology(study.technology.overrides, **money).prices
    return {
        "name": baseline.name,
        "unverified": chip.status == "unverified",
        **_run(
            baseline.run,
            workload,
            gross_margin=float(prices.gross_margin),
            built=bool(chip.datasheet),
        ),
        "technology": chip.technology_names | money,
        **_certified(baseline.soft),
    }


def _infeasible(entry: Infeasible) -> dict[str, Any]:
    return {
        "name": entry.name,
        "shortfalls": [asdict(shortfall) for shortfall in entry.shortfalls],
        "starts": asdict(entry.starts),
    }
