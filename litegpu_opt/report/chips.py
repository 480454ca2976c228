"""An accelerator that exists: the machine model beside its data sheet and its teardown."""

from typing import Any

from ..catalog import FORMATS, Accelerator, Record, Unmodelled
from ..limits import TOLERANCE
from ..machine.cost import bill_of_materials
from ..machine.power import thermal_design_power_w
from ..machine.rates import peak_rates
from ..machine.silicon import blocks
from .document import NOT_KNOWN, Section, Table, figure, signed_percent


def chip_json(chip: Accelerator) -> dict[str, Any]:
    """Design, and every published figure against the model."""
    design, technology = chip.design(), chip.technology()
    parts = blocks(design, technology)
    bill = bill_of_materials(design, technology)
    costs = {
        "logic_usd": bill.dies_usd,
        "memory_usd": bill.memory_usd,
        "packaging_usd": bill.interposer_usd
        + bill.substrate_usd
        + bill.attach_usd
        + bill.scrap_usd,
        "test_and_assembly_usd": bill.test_and_assembly_usd,
        "total_usd": bill.total_usd,
    }
    return {
        "name": chip.name,
        "title": chip.label,
        "status": chip.status or None,
        "largest_group": chip.largest_group,
        "technology": chip.technology_names,
        "design": {name: _stated(record) for name, record in chip.design_records.items()},
        "overrides": {name: _stated(record) for name, record in chip.overrides.items()},
        "peaks": _peaks(chip),
        "datasheet": _compared(modelled_figures(chip), chip.datasheet),
        "blocks_mm2": {name: float(value) for name, value in vars(parts).items()},
        "bill_of_materials": _compared(costs, chip.bill_of_materials),
    }


def _peaks(chip: Accelerator) -> dict[str, dict[str, Any] | None]:
    """Number format -> rate of an SM with its source, and peak; `None` for one it does not have."""
    return {
        number_format: _stated(rate := chip.flop_per_clock(number_format))
        | {
            "flop_per_clock": rate.value,
            "value": chip.peak_tflop_s(number_format),
            "unit": "TFLOP/s",
        }
        if number_format in chip.rates
        else None
        for number_format in FORMATS
    }


def unmodelled_json(chip: Unmodelled) -> dict[str, Any]:
    """What is published of a chip that the model does not describe."""
    return {
        "name": chip.name,
        "title": chip.title,
        "not_modelled": chip.reason,
        "datasheet": {name: _stated(record) for name, record in chip.datasheet.items()},
    }


def unmodelled_sections(content: dict[str, Any]) -> list[Section]:
    """What the screen shows."""
    published = _values(content["datasheet"]) if content["datasheet"] else "Nothing of a chip."
    return [
        Section(
            f"{content['name']}: {content['title']}", (f"Not modelled: {content['not_modelled']}.",)
        ),
        Section("Published", (published,)),
    ]


def modelled_figures(chip: Accelerator) -> dict[str, Any]:
    """Figures of the model under the names of those of a data sheet."""
    design, technology = chip.design(), chip.technology()
    rates = peak_rates(design, design.clock_ghz, technology)
    return {
        "die_area_mm2": blocks(design, technology).total_mm2,
        "bf16_dense_tflop_s": rates.bf16_tflop_s,
        "fp8_dense_tflop_s": rates.fp8_tflop_s,
        "memory_tb_s": rates.memory_tb_s,
        "tdp_w": thermal_design_power_w(design, technology),
    }


def _stated(record: Record) -> dict[str, Any]:
    return {
        "value": record.value,
        "unit": record.unit,
        "source": record.source,
        "trust": record.trust,
    }


def _compared(modelled: dict[str, Any], published: dict[str, Record]) -> list[dict[str, Any]]:
    """Model against published value; `None` where nothing is published."""
    rows = []
    for name, value in modelled.items():
        record = published.get(name)
        rows.append(
            {
                "name": name,
                "model": float(value),
                "published": record.value if record else None,
                "error": float(value) / record.value - 1.0 if record else None,
                "source": record.source if record else None,
                "trust": record.trust if record else None,
            }
        )
    return rows


def chip_sections(content: dict[str, Any]) -> list[Section]:
    """What the screen shows."""
    entries = "; ".join(f"{table} {entry}" for table, entry in content["technology"].items())
    own_mm2 = content["design"]["die_area_mm2"]["value"]
    needed_mm2 = sum(content["blocks_mm2"].values())
    fits = needed_mm2 <= own_mm2 * (1.0 + TOLERANCE)
    no_sheet = (
        f"No data sheet. The blocks of a die need {figure(needed_mm2)} mm2 of {figure(own_mm2)}: "
        f"{'they fit' if fits else 'it cannot be built as described'}."
    )
    published = any(row["published"] is not None for row in content["datasheet"])
    return [
        Section(
            f"{content['name']}: {content['title']}",
            (f"{entries}; one scale-up domain joins {content['largest_group']} devices.",),
        ),
        Section("Design", (_values(content["design"]),)),
        *(
            [Section("Own values", (_values(content["overrides"]),))]
            if content["overrides"]
            else []
        ),
        Section("Dense peaks by number format", (_peak_table(content["peaks"]),)),
        Section(
            "Model against the data sheet",
            (*([] if published else [no_sheet]), _comparison(content["datasheet"])),
        ),
        Section("Area of a die by block, mm2", (_blocks(content["blocks_mm2"]),)),
        Section(
            "Bill of materials against the analysts' estimate",
            (
                "Logic is the dies; packaging is interposer, substrate, attachment and scrap.",
                _comparison(content["bill_of_materials"]),
            ),
        ),
    ]


def _values(rows: dict[str, dict[str, Any]]) -> Table:
    return Table(
        ("", "value", "trust", "source"),
        tuple(
            (name, f"{figure(row['value'])} {row['unit']}".strip(), row["trust"], row["source"])
            for name, row in rows.items()
        ),
        numeric=False,
    )


def _peak_table(peaks: dict[str, dict[str, Any] | None]) -> Table:
    return Table(
        ("", "FLOP/clock/SM", "TFLOP/s", "trust", "source"),
        tuple(
            (number_format, NOT_KNOWN, "", "", "")
            if peak is None
            else (
                number_format,
                figure(peak["flop_per_clock"]),
                figure(peak["value"]),
                peak["trust"],
                peak["source"],
            )
            for number_format, peak in peaks.items()
        ),
        numeric=False,
    )


def _comparison(rows: list[dict[str, Any]]) -> Table:
    return Table(
        ("", "model", "published", "error", "trust", "source"),
        tuple(
            (
                row["name"],
                figure(row["model"]),
                NOT_KNOWN if row["published"] is None else figure(row["published"]),
                signed_percent(row["error"]),
                row["trust"] or "",
                row["source"] or "",
            )
            for row in rows
        ),
        numeric=False,
    )


def _blocks(areas: dict[str, float]) -> Table:
    total = sum(areas.values())
    rows = (*areas.items(), ("total", total))
    return Table(
        ("block", "mm2", "share"),
        tuple((name, figure(area), f"{100 * area / total:.1f} %") for name, area in rows),
    )
