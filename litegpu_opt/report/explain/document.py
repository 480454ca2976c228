"""A metric explained: the lines that lead to it, and where their constants come from."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...catalog import TRUST, Accelerator, Record
from ...errors import UserError, unknown_name
from ...machine.design import Design
from ...machine.technology import Technology
from ..document import Block, Section, Table
from ..serving import Deployed
from .formulas import Constant, Quantity, chain, complete, names_in, with_numbers
from .money import AT_TDP, PACKAGE, money, money_values
from .power import POWER, power_values
from .serving import serving_formulas
from .silicon import SILICON, silicon_values


METRICS = {
    "area": ("block_area_mm2", "field_area_mm2"),
    "shoreline": ("edge_needed_mm", "edge_available_mm"),
    "dies-per-wafer": ("dies_per_wafer",),
    "die-yield": ("die_yield", "poisson_yield", "murphy_yield", "seeds_yield"),
    "die-cost": ("die_usd", "whole_dies_usd"),
    "unit-cost": ("unit_cost_usd",),
    "unit-price": ("accelerator_capital_usd",),
    "peak": ("bf16_tflop_s", "fp8_tflop_s", "memory_tb_s"),
    "power": ("idle_w", "rated_bf16_phase_w", "rated_fp8_phase_w", "rated_memory_phase_w"),
    "tdp": ("tdp_w", "junction_rise_k", "thermal_limit_w"),
    "device-hour": ("device_hour_usd",),
}
"""Metric -> the quantities that it is about."""

SERVING_METRICS = {
    "power": ("prefill_power_w", "decode_power_w"),
    "ttft": ("ttft_ms",),
    "tbt": ("decode_time_ms",),
    "memory": ("prefill_memory_gb", "decode_memory_gb", "usable_memory_gb"),
    "energy-per-token": ("joules_per_token",),
    "tokens-per-dollar": ("tokens_per_dollar",),
}
"""The same where a model is served."""

ALL_METRICS = (*METRICS, *(name for name in SERVING_METRICS if name not in METRICS))

_PUBLISHED = {
    "block_area_mm2": "die_area_mm2",
    "bf16_tflop_s": "bf16_dense_tflop_s",
    "fp8_tflop_s": "fp8_dense_tflop_s",
    "memory_tb_s": "memory_tb_s",
    "tdp_w": "tdp_w",
}
"""Quantity -> its name on a data sheet."""

_DIGITS = 7
"""Of every number on the screen: what follows from them agrees to more than four."""


def targets_of(metric: str, *, served: bool) -> tuple[str, ...]:
    """What a metric is about. **Raises:** `UserError` for an unknown one, or without a model."""
    if metric not in ALL_METRICS:
        raise unknown_name("metric", metric, [*ALL_METRICS, "cost-shares"], where="METRIC")
    if served and metric in SERVING_METRICS:
        return SERVING_METRICS[metric]
    if metric not in METRICS:
        raise UserError(
            f"{metric} is about a model that is served",
            where="--model",
            allowed="--model, --tp, --batch, --prompt, --output as in litegpu evaluate",
        )
    return METRICS[metric]


def machine_formulas(
    accelerator: Accelerator, technology: Technology, records: Mapping[str, Record]
) -> tuple[dict[str, Quantity], dict[str, Constant], dict[str, Any]]:
    """Quantities of the machine, what they start from, and values from the functions of the model.

    **Arguments:**

    - `records`: of the technology.
    """
    design: Design = accelerator.design()
    stated = {f"design.{name}": record for name, record in accelerator.design_records.items()}
    constants = {
        name: Constant(record.value, record.unit, record.source, record.trust)
        for name, record in {**stated, **records}.items()
    }
    quantities = SILICON | PACKAGE | POWER | money(float(technology.prices.interest)) | AT_TDP
    values = (
        silicon_values(design, technology)
        | power_values(design, technology)
        | money_values(design, technology)
    )
    return quantities, constants, dict(values)


def explanation_json(
    metric: str, accelerator: Accelerator, basis: str, deployed: Deployed | None = None
) -> dict[str, Any]:
    """Lines and constants of a metric.

    **Arguments:**

    - `basis`: entry of the prices, as in the deployment.
    - `deployed`: how a model is served; needed for `SERVING_METRICS`.
    """
    targets = targets_of(metric, served=deployed is not None)
    if deployed is None:
        technology = accelerator.technology(prices=basis)
        records = accelerator.provenance(prices=basis)
    else:
        technology, records = deployed.technology, deployed.constants
        if metric == "tbt" and not deployed.workload.serves_decode:
            raise UserError("one output token has no next one", where="--output", allowed="above 1")
    quantities, constants, modelled = machine_formulas(accelerator, technology, records)
    if deployed is not None:
        more, counts, times = serving_formulas(deployed)
        quantities, constants, modelled = quantities | more, constants | counts, modelled | times
    values = complete(quantities, constants, modelled)
    order = chain(targets, quantities)
    needed = [
        name
        for name in dict.fromkeys(n for line in order for n in names_in(quantities[line].formula))
        if name in constants
    ]
    return {
        "metric": metric,
        "accelerator": accelerator.label,
        "basis": basis,
        "results": {
            name: {
                "value": values[name],
                "unit": quantities[name].unit,
                **_published(name, accelerator),
            }
            for name in targets
        },
        "lines": [
            {
                "name": name,
                "meaning": quantities[name].meaning,
                "kind": quantities[name].kind or None,
                "formula": quantities[name].formula,
                "numbers": with_numbers(quantities[name].formula, values),
                "shown": with_numbers(quantities[name].formula, values, _shown),
                "value": values[name],
                "unit": quantities[name].unit,
            }
            for name in order
        ],
        "constants": {name: constants[name]._asdict() for name in needed},
    }


def _published(name: str, accelerator: Accelerator) -> dict[str, Any]:
    """What a data sheet says of a quantity that it could state."""
    if name not in _PUBLISHED:
        return {}
    record = accelerator.datasheet.get(_PUBLISHED[name])
    return {
        "published": record.value if record else None,
        "published_source": record.source if record else None,
    }


def _shown(value: float) -> str:
    return f"{value:.{_DIGITS}g}"


def explanation_sections(content: Mapping[str, Any]) -> list[Section]:
    """What the screen shows."""
    heading = f"{content['metric']} of {content['accelerator']}, {content['basis']} basis"
    return [
        Section(heading, tuple(_result(name, row) for name, row in content["results"].items())),
        Section("Line by line", tuple(_lines(content["lines"]))),
        Section("Constants", (_constants(content["constants"]), _trust(content["constants"]))),
    ]


def _result(name: str, row: Mapping[str, Any]) -> str:
    text = f"{name} = {_shown(row['value'])} {row['unit']}".strip()
    if "published" not in row:
        return text
    if row["published"] is None:
        return f"{text} (published: not known)"
    return f"{text} (published: {_shown(row['published'])}, {row['published_source']})"


def _lines(lines: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Name and meaning, formula, the same with numbers, value; of those alike, one formula."""
    blocks: list[Block] = []
    seen: set[str] = set()
    for line in lines:
        blocks.append(f"{line['name']}: {line['meaning']}")
        if line["kind"] is None or line["kind"] not in seen:
            blocks.append(f"  = {line['formula']}")
        seen.add(line["kind"] or "")
        blocks.append(f"  = {line['shown']}")
        blocks.append(f"  = {_shown(line['value'])} {line['unit']}".rstrip())
    return blocks


def _constants(constants: Mapping[str, Mapping[str, Any]]) -> Table:
    return Table(
        ("", "value", "trust", "source"),
        tuple(
            (name, f"{_shown(row['value'])} {row['unit']}".strip(), row["trust"], row["source"])
            for name, row in constants.items()
        ),
        numeric=False,
    )


def _trust(constants: Mapping[str, Mapping[str, Any]]) -> str:
    letters = sorted({row["trust"] for row in constants.values() if row["trust"]})
    return "Trust: " + "; ".join(f"{letter} {TRUST[letter]}" for letter in letters) + "."
