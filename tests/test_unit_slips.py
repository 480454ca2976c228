"""Slips between units, by kind: each is converted as it says, or refused in one line.

Units of area, binary and decimal bytes, bits and bytes, one direction and both, and what is not
modelled, which is no zero.
"""

import pytest

from litegpu_opt.catalog import (
    accelerator_names,
    load_accelerator,
    override_records,
    provenance,
)
from litegpu_opt.errors import UserError
from litegpu_opt.machine.cost import die_usd
from litegpu_opt.machine.design import Design
from litegpu_opt.machine.silicon import blocks, dies_per_wafer, harvested_yield
from litegpu_opt.report.chips import chip_json, chip_sections
from litegpu_opt.report.document import NOT_KNOWN


@pytest.fixture
def design_of(tmp_path):
    """Design of an H100 with one line of its own."""

    def load(line):
        path = tmp_path / "mine.toml"
        path.write_text(f'extends = "h100-sxm"\n{line}\n')
        return load_accelerator(path).design_values

    return load


@pytest.mark.parametrize(
    ("key", "written", "field", "value"),
    [
        ("die_area", "2.035 cm^2", "die_area_mm2", 203.5),
        ("memory", "80 GiB", "memory_gb", 80 * 1.073741824),
        ("memory", "640 Gb", "memory_gb", 80),
        ("network_per_direction", "3.6 Tb/s", "network_gb_s", 450),
        ("network_per_direction", "400 Gb/s", "network_gb_s", 50),
        ("network_per_direction", "0.45 TB/s", "network_gb_s", 450),
        ("network_per_direction", "419.09515857696533 GiB/s", "network_gb_s", 450),
        ("clock", "1830 MHz", "clock_ghz", 1.83),
    ],
)
def test_what_is_written_with_another_unit_is_converted(design_of, key, written, field, value):
    assert design_of(f'design.{key} = "{written}"')[field] == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        # a length or a volume for an area, and an area in the wrong unit
        ('design.die_area = "814 mm"', "'mm' is not a unit of this kind of quantity"),
        ('design.die_area = "814 mm^3"', "'mm^3' is not a unit of this kind of quantity"),
        ('design.die_area = "814 cm^2"', "81400 mm^2 is not accepted; allowed: 10 to 10000 mm^2"),
        ('design.die_area = "8.14 mm^2"', "8.14 mm^2 is not accepted; allowed: 10 to 10000 mm^2"),
        # a quantity without its unit
        ("design.memory = 80", "80 has no unit; allowed: a quantity in GB"),
        ("design.network_per_direction = 450", "450 has no unit; allowed: a quantity in GB/s"),
        ('datasheet.tdp = "700"', "'700' has no unit; allowed: a quantity in W"),
        # a rate for an amount and the reverse; a unit in the wrong case
        ('design.memory = "80 GB/s"', "'GB/s' is not a unit of this kind of quantity"),
        ('design.network_per_direction = "450 GB"', "'GB' is not a unit of this kind of quantity"),
        ('design.network_per_direction = "450 gb/s"', "unknown unit 'gb/s'"),
        ('design.memory = "80 mB"', "allowed: 1 to 10000 GB"),
        # a thousand too much or too little
        ('design.memory = "80 MB"', "0.08 GB is not accepted; allowed: 1 to 10000 GB"),
        ('design.network_per_direction = "450 TB/s"', "allowed: 1 to 100000 GB/s"),
        ('design.clock = "1.83 MHz"', "allowed: 0.1 to 10 GHz"),
        # both directions: there is no key for them
        (
            'design.network = "900 GB/s"',
            "did you mean network_per_direction",
        ),
        ('datasheet.network = "900 GB/s"', "did you mean network_per_direction"),
        # a peak that does not say whether it is dense, and operations that are no FLOPs
        ('datasheet.bf16 = "1979 TFLOP/s"', "did you mean bf16_dense"),
        ('datasheet.bf16_dense = "989 TB/s"', "'TB/s' is not a unit of this kind of quantity"),
        ('flop_per_clock.bf16 = "4096 FLOP/s"', "'FLOP/s' is not a unit of this kind"),
        ("flop_per_clock.bf16 = 4096", "4096 has no unit; allowed: a quantity in FLOP"),
    ],
)
def test_a_slip_in_an_accelerator_is_refused_in_one_line(design_of, line, says):
    with pytest.raises(UserError) as caught:
        design_of(line)
    text = str(caught.value)
    assert says in text and "\n" not in text
    assert f"mine.toml:{line.partition(' =')[0].rpartition('.')[0]}" in text


def test_every_quantity_of_a_design_needs_its_unit(design_of):
    for key in ("die_area", "clock", "memory", "network_per_direction"):
        with pytest.raises(UserError, match="has no unit"):
            design_of(f"design.{key} = 100")


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("process.defects_per_cm2", "0.001 1/mm^2", 0.1),
        ("interconnect.usd_per_gbit_s", "4 USD/(GB/s)", 0.5),
        ("interconnect.floor_gb_s", "400 Gb/s", 50),
        ("interconnect.edge_gb_s_per_mm", "0.75 Tb/s/mm", 93.75),
        ("switch.pj_per_bit", "64 pJ/B", 8),
        ("memory.usd_per_gb", "10 USD/GiB", 10 / 1.073741824),
        ("cooling.spreading_k_mm2_per_w", "0.12 K*cm^2/W", 12),
        ("cooling.sink_k_per_w", "20 K/kW", 0.02),
        ("package.interposer_usd_per_mm2", "25 USD/cm^2", 0.25),
        ("switch.hop_us", "150 ns", 0.15),
    ],
)
def test_overrides_are_converted(name, written, value):
    assert override_records({name: written})[name].value == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "written", "says"),
    [
        ("process.defects_per_cm2", "0.1 1/mm", "'1/mm' is not a unit"),
        ("process.defects_per_cm2", "0.1 mm^2", "'mm^2' is not a unit"),
        ("interconnect.usd_per_gbit_s", "0.5 USD/Gb", "'USD/Gb' is not a unit"),
        ("memory.pj_per_bit", "4 pJ", "'pJ' is not a unit"),
        ("memory.stack_tb_s", "1 TB", "'TB' is not a unit"),
        ("memory.stack_tb_s", "1e6 TB/s", "far outside the known range"),
        ("cooling.spreading_k_mm2_per_w", "12 K/W", "'K/W' is not a unit"),
        ("cooling.max_junction_rise_k", "42 degC", "unknown unit 'degC'"),
        ("switch.usd_per_gb_s", "1 USD", "did you mean switch.usd_per_gbit_s"),
    ],
)
def test_a_slip_in_an_override_is_refused_in_one_line(name, written, says):
    with pytest.raises(UserError) as caught:
        override_records({name: written}, "study.toml:technology.overrides")
    text = str(caught.value)
    assert text.startswith("study.toml:technology.overrides") and "\n" not in text
    assert says in text


@pytest.mark.parametrize("name", sorted(provenance()))
def test_every_value_with_a_unit_refuses_another_kind(name):
    """Kilograms are no unit of the model; a value without a unit takes none at all."""
    with pytest.raises(UserError):
        override_records({name: "1 kg"})


def test_area_in_either_unit_is_the_same_die(tmp_path):
    """814 mm2 at 0.1 defects per cm2 give 0.814 defects, and not 81.4."""
    dies = []
    for number, (area, defects) in enumerate(
        [("814 mm^2", "0.1 1/cm^2"), ("8.14 cm^2", "0.001 1/mm^2")]
    ):
        path = tmp_path / f"{number}.toml"
        path.write_text(
            f'extends = "h100-sxm"\ndesign.die_area = "{area}"\n'
            f'technology.overrides.process.defects_per_cm2 = "{defects}"\n'
        )
        chip = load_accelerator(path)
        dies.append((chip.design(), chip.technology()))
    yields = [float(harvested_yield(blocks(*die), die[1])) for die in dies]
    costs = [float(die_usd(*die)) for die in dies]
    assert yields[0] == pytest.approx(yields[1], rel=1e-12) and 0.5 < yields[0] < 1.0
    assert costs[0] == pytest.approx(costs[1], rel=1e-12)


def test_a_die_at_the_rim_costs_infinitely_and_nothing_is_negative():
    """No dies beyond half the square of the wafer's radius."""
    tree = load_accelerator("h100-sxm").technology()
    for area in (814.0, 858.0, 5_000.0, 9_999.0, 20_000.0):
        assert float(dies_per_wafer(Design(area, 1, 1, 1, 1, 1).die_area_mm2, tree)) >= 0.0
    assert float(dies_per_wafer(Design(20_000, 1, 1, 1, 1, 1).die_area_mm2, tree)) == 0.0


@pytest.mark.parametrize("name", accelerator_names())
def test_what_is_not_published_is_not_known_and_no_zero(name):
    content = chip_json(load_accelerator(name))
    rows = (*content["datasheet"], *content["bill_of_materials"])
    unknown = [row for row in rows if row["published"] is None]
    assert all(row["published"] for row in rows if row["published"] is not None)
    assert all(row["error"] is None and row["source"] is None for row in unknown)
    if unknown:
        cells = [
            cell
            for section in chip_sections(content)
            for block in section.blocks
            if hasattr(block, "rows")
            for row in block.rows
            for cell in row
        ]
        assert NOT_KNOWN in cells
