"""Accelerator files: the shipped H100, and files that users write."""

from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from litegpu_opt.catalog import (
    accelerator_names,
    load_accelerator,
    load_unmodelled,
    unmodelled_names,
)
from litegpu_opt.errors import UserError
from litegpu_opt.machine.silicon import blocks


@pytest.fixture
def write(tmp_path):
    def file(text, name="mine.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return file


@pytest.mark.parametrize("name", accelerator_names())
def test_every_accelerator_loads(name):
    accelerator = load_accelerator(name)
    assert {field: r.unit for field, r in accelerator.design_records.items()} == {
        "die_area_mm2": "mm^2",
        "sm_count": "",
        "clock_ghz": "GHz",
        "memory_stacks": "",
        "memory_gb": "GB",
        "network_gb_s": "GB/s",
        "aspect_ratio": "",
        "dies_per_package": "",
    }
    design = accelerator.design()
    for field, value in accelerator.design_values.items():
        assert float(getattr(design, field)) == value
    for record in (*accelerator.design_records.values(), *accelerator.datasheet.values()):
        assert record.source and record.trust in "ABCD"


def test_h100_is_dense_decimal_and_per_direction():
    h100 = load_accelerator("h100-sxm")
    design, sheet = h100.design_values, h100.datasheet
    process = h100.technology().process
    peak = design["sm_count"] * float(process.flop_per_clock_bf16) * design["clock_ghz"] / 1e3
    assert peak == pytest.approx(sheet["bf16_dense_tflop_s"].value, rel=1e-3)
    assert 2 * peak == pytest.approx(sheet["fp8_dense_tflop_s"].value, rel=1e-3)
    assert sheet["bf16_dense_tflop_s"].value / sheet["memory_tb_s"].value == pytest.approx(
        295.3, abs=0.05
    )
    assert design["memory_gb"] == sheet["memory_gb"].value == 80
    assert design["network_gb_s"] == sheet["network_gb_s"].value == 450
    stacks = design["memory_stacks"] * float(h100.technology().memory.stack_tb_s)
    assert stacks == pytest.approx(sheet["memory_tb_s"].value)
    bill = {name: record.value for name, record in h100.bill_of_materials.items()}
    assert bill.pop("total_usd") == sum(bill.values()) == 3320
    assert h100.largest_group == 8


def test_h100_technology():
    h100 = load_accelerator("h100-sxm")
    technology = h100.technology(execution="ideal", prices="price")
    assert float(technology.memory.sites_per_stack) == 1.2
    assert float(technology.process.memory_phy_repairable) == 1
    assert float(technology.interconnect.port_gb_s) == 25
    assert float(technology.cooling.limit_package_w) == 1000
    assert float(technology.prices.gross_margin) == 0.75
    assert float(technology.execution.launch_us) == 0
    own = h100.technology({"memory.sites_per_stack": 1})
    assert float(own.memory.sites_per_stack) == 1
    assert h100.provenance()["memory.sites_per_stack"].source == "6 sites, 5 used"


def test_unknown_die_areas_are_the_blocks_of_the_model():
    assumed = {
        name: chip
        for name in accelerator_names()
        if "own blocks" in (chip := load_accelerator(name)).design_records["die_area_mm2"].source
    }
    assert {"tpu-v5p", "tpu-v6e", "tpu-v7", "gaudi-3", "paper-lite"} <= assumed.keys()
    for name, chip in assumed.items():
        area = chip.design_records["die_area_mm2"]
        needed = float(blocks(chip.design(), chip.technology()).total_mm2)
        assert needed <= area.value <= needed + 0.2, name
        assert area.trust == "D" and "die_area_mm2" not in chip.datasheet


def test_what_is_not_known_is_left_out_of_the_data_sheet():
    sheets = {name: load_accelerator(name).datasheet for name in accelerator_names()}
    for name in ("tpu-v5p", "tpu-v6e"):
        assert not {"die_area_mm2", "tdp_w"} & sheets[name].keys()
    assert "die_area_mm2" not in sheets["mi300x"]
    assert "tdp_w" not in sheets["gb10"]
    assert all(record.value > 0 for sheet in sheets.values() for record in sheet.values())


@pytest.mark.parametrize(
    ("name", "reason"), [("cerebras-wse-3", "SRAM on a die of a whole wafer"), ("rpu", "is public")]
)
def test_a_chip_that_is_not_modelled_is_refused_with_its_reason(name, reason):
    assert name in unmodelled_names() and name not in accelerator_names()
    with pytest.raises(UserError) as caught:
        load_accelerator(name, "study.toml:baseline[0].accelerator")
    text = str(caught.value)
    assert text.startswith(f"study.toml:baseline[0].accelerator: {name} is not modelled: ")
    assert reason in text and "\n" not in text


def test_published_figures_of_a_wafer():
    wafer = load_unmodelled("cerebras-wse-3")
    sheet = {name: record.value for name, record in wafer.datasheet.items()}
    assert sheet == {"die_area_mm2": 46_225, "memory_gb": 44, "memory_tb_s": 21_000}
    assert all(record.trust in "ABCD" for record in wafer.datasheet.values())
    assert load_unmodelled("rpu").datasheet == {}


PAPER = [name for name in accelerator_names() if name.startswith("paper-")]


def test_the_paper_has_six_unverified_types():
    assert len(PAPER) == 6
    for name in PAPER:
        chip = load_accelerator(name)
        assert chip.status == "unverified" and chip.label.endswith("(unverified)")
        assert chip.datasheet == {}, "not a product"
        small = name != "paper-h100"
        assert chip.design_values["sm_count"] == (33 if small else 132)
        assert chip.largest_group == (32 if small else 8)
    others = set(accelerator_names()) - set(PAPER)
    assert not any(load_accelerator(name).status for name in others)


def test_status_is_inherited(write):
    assert load_accelerator(write('extends = "paper-lite"')).label == "mine (unverified)"


def test_extends(write):
    path = write(
        'extends = "h100-sxm"\ndesign.die_area = "2.035 cm^2"\n'
        'design.network_per_direction = "3.6 Tb/s"\ntechnology.cooling = "liquid"\n'
        'technology.overrides = { memory.usd_per_gb = "12 USD/GB" }'
    )
    mine, h100 = load_accelerator(path), load_accelerator("h100-sxm")
    assert mine.name == "mine"
    assert mine.design_values == h100.design_values | {"die_area_mm2": 203.5}
    assert mine.design_records["die_area_mm2"].trust == "user"
    assert mine.technology_names == h100.technology_names | {"cooling": "liquid"}
    assert mine.overrides.keys() == h100.overrides.keys() | {"memory.usd_per_gb"}
    assert mine.datasheet == {}, "published figures of another chip"
    write(f'extends = "{path.name}"\nlargest_group = 64', "child.toml")
    assert load_accelerator(str(path.with_name("child.toml"))).largest_group == 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'extends = "h100-sxm"\ndesign.die_aera = "1 mm^2"',
            "mine.toml:design.die_aera: unknown key 'die_aera', did you mean die_area?",
        ),
        ('extends = "h100-sxm"\ndesgin = 1', "did you mean design?"),
        ('extends = "h100-sxm"\ndesign.TFlopsEff = 989', "unknown key 'TFlopsEff'"),
        (
            'extends = "h100-sxm"\ndesign.network = "900 GB/s"',
            "mine.toml:design.network: unknown key 'network', did you mean network_per_direction?",
        ),
        (
            'extends = "h100-sxm"\ndesign.die_area = 203.5',
            "203.5 has no unit; allowed: a quantity in mm^2",
        ),
        ('extends = "h100-sxm"\ndesign.die_area = "203.5 mm"', "mine.toml:design.die_area: 'mm'"),
        (
            'extends = "h100-sxm"\ndesign.die_area = "0 mm^2"',
            "allowed: 10 to 10000 mm^2",
        ),
        (
            'extends = "h100-sxm"\ndesign.die_area = "10001 mm^2"',
            "10001 mm^2 is not accepted; allowed: 10 to 10000 mm^2",
        ),
        ('extends = "h100-sxm"\ndesign.aspect_ratio = 0.5', "allowed: 1 to 10"),
        ('extends = "h100-sxm"\ndesign.aspect_ratio = 10.5', "allowed: 1 to 10"),
        ('extends = "h100-sxm"\ndesign.clock = "10.1 GHz"', "allowed: 0.1 to 10 GHz"),
        ('extends = "h100-sxm"\ndesign.memory = "0 GB"', "allowed: 1 to 10000 GB"),
        ('extends = "h100-sxm"\ndesign.sm_count = 132.5', "a whole number, 1 or more"),
        ('extends = "h100-sxm"\ndesign.memory_stacks = 4.5', "a whole number, 1 or more"),
        ('extends = "h100-sxm"\ndesign.dies_per_package = 1.5', "a whole number, 1 to 16"),
        ('extends = "h100-sxm"\ndesign.dies_per_package = 17', "a whole number, 1 to 16"),
        ('extends = "h100-sxm"\ndesign.sm_count = inf', "not finite"),
        ('extends = "h100-sxm"\ndesign = 3', "mine.toml:design: 3 is not a table"),
        ('extends = "h100-sxm"\nstatus = "good"', "status"),
        ('extends = "h100-sxm"\nnot_compared.tpd = "no"', "did you mean tdp?"),
        ('extends = "h100-sxm"\nnot_compared.tdp = 3', "3 is not a reason; allowed: a text"),
        ('extends = "h100-sxm"\nnot_compared = 3', "3 is not a table"),
        ('extends = "h100-sxm"\nlargest_group = 0', "allowed: a whole number, 1 or more"),
        (
            'extends = "h100-sxm"\ntechnology.memory = "hbm5"',
            "mine.toml:technology.memory: unknown memory 'hbm5', did you mean hbm",
        ),
        (
            'extends = "h100-sxm"\ntechnology.overrides.memory.usd_per_g = 1',
            "did you mean memory.usd_per_gb?",
        ),
        (
            'extends = "h100sxm"',
            "mine.toml:extends: unknown accelerator 'h100sxm', did you mean h100-sxm?; allowed: a",
        ),
        ('extends = "none.toml"', "none.toml: no such file"),
        ('extends = "mine.toml"', "circle"),
        ("extends = 1", "mine.toml:extends: 1 is not accepted"),
        ("", "mine.toml:design.die_area: missing; allowed: a quantity in mm^2"),
        ("a = = 1", "mine.toml: not TOML"),
        ("a = " + "[" * 5000, "mine.toml: not TOML"),
        ("a = " + "9" * 5000, "mine.toml: not TOML"),
    ],
)
def test_wrong_files(write, text, message):
    with pytest.raises(UserError) as caught:
        load_accelerator(write(text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_paths(tmp_path, write):
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    for path in (
        tmp_path,
        tmp_path / "absent.toml",
        binary,
        "h100sxm",
        "",
        "a" * 5000 + ".toml",
        "\0.toml",
    ):
        with pytest.raises(UserError):
            load_accelerator(path)
    with pytest.raises(UserError, match="study.toml:baseline.*did you mean h100-sxm?"):
        load_accelerator("h100sxm", "study.toml:baseline[0].accelerator")


toml_values = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.datetimes()),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2)
    ),
    max_leaves=4,
)
paths = st.sampled_from(
    [
        "extends",
        "title",
        "largest_group",
        "design",
        "design.clock",
        "design.sm_count",
        "flop_per_clock",
        "flop_per_clock.fp8",
        "technology",
        "technology.memory",
        "technology.overrides",
        "technology.overrides.memory",
        "technology.overrides.memory.usd_per_gb",
        "datasheet",
        "datasheet.tdp",
        "not_compared",
        "not_compared.tdp",
        "status",
        "bill_of_materials",
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(paths, toml_values)
def test_any_value_is_accepted_or_a_user_error(write, path, value):
    content: dict[str, Any] = {"extends": "h100-sxm"}
    table = content
    *parents, key = path.split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
    table[key] = value
    try:
        load_accelerator(write(tomli_w.dumps(content), "fuzz.toml"))
    except UserError as error:
        assert "\n" not in str(error)
