"""Technology tables: complete, sourced, consistent with the pytrees, and strict about names."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from litegpu_opt import catalog
from litegpu_opt.catalog.records import Record
from litegpu_opt.errors import UserError
from litegpu_opt.machine.technology import TABLES
from litegpu_opt.units import _registry, parse_quantity


ENTRIES = [(table, entry) for table in catalog.TABLE_NAMES for entry in catalog.names(table)]


def test_tables_are_those_of_the_model():
    assert set(catalog.TABLE_NAMES) == set(TABLES) == set(catalog.DEFAULT_ENTRIES)


@pytest.mark.parametrize(("table", "entry"), ENTRIES)
def test_every_leaf_has_value_unit_source_and_trust(table, entry):
    records = catalog.records(table, entry)
    assert set(records) == {field.name for field in fields(TABLES[table])}
    assert catalog.title(table, entry)
    for record in records.values():
        assert record.low <= record.value <= record.high
        assert len(record.source) > 10
        assert record.trust in "ABCD"
        typical_source = record.source.split("; low:")[0].split("; high:")[0]
        if "recalled" in typical_source or "assumption" in typical_source:
            assert record.trust == "D"
        _registry().parse_units(record.unit)
        assert parse_quantity(f"1 {record.unit}", record.unit) == 1


@pytest.mark.parametrize(("table", "entry"), ENTRIES)
def test_units_agree_with_field_names(table, entry):
    endings = {
        "_mm2": "mm^2",
        "_ghz": "GHz",
        "_gb": "GB",
        "_gb_s": "GB/s",
        "_tb_s": "TB/s",
        "_w": "W",
        "_k": "K",
        "_k_per_w": "K/W",
        "_k_mm2_per_w": "K*mm^2/W",
        "_usd": "USD",
        "_years": "year",
        "_us": "us",
        "_us_per_k": "us",
        "_per_cm2": "1/cm^2",
        "_usd_per_gb": "USD/GB",
        "_usd_per_gbit_s": "USD/(Gb/s)",
        "_usd_per_kwh": "USD/kWh",
        "_usd_per_w": "USD/W",
        "_usd_per_mm2": "USD/mm^2",
        "_w_per_mm2": "W/mm^2",
        "_pj_per_bit": "pJ/bit",
        "_mm2_per_gb_s": "mm^2/(GB/s)",
        "_usd_per_gb_s": "USD/(GB/s)",
        "_share": "",
    }
    for field, record in catalog.records(table, entry).items():
        matching = [ending for ending in endings if f"_{field}".endswith(ending)]
        if matching:
            assert record.unit == endings[max(matching, key=len)], field


def test_golden_values():
    process = catalog.records("process", "n4")
    peak = 132 * process["flop_per_clock_bf16"].value * process["reference_clock_ghz"].value / 1e3
    assert peak == pytest.approx(989.4, rel=1e-3)
    assert process["flop_per_clock_fp8"].value == 2 * process["flop_per_clock_bf16"].value
    hbm3, hbm3e = catalog.records("memory", "hbm3"), catalog.records("memory", "hbm3e")
    assert 5 * hbm3["stack_tb_s"].value == pytest.approx(3.35, rel=1e-12)
    per_gb = [
        m["usd_per_stack"].value / gb + m["usd_per_gb"].value for m, gb in ((hbm3, 16), (hbm3e, 36))
    ]
    assert per_gb == pytest.approx([15, 12], rel=0.01)
    assert catalog.offered_gb("hbm3e") == (24, 36, 48)
    cpo = catalog.records("interconnect", "cpo")
    assert cpo["edge_gb_s_per_mm"].value == parse_quantity("0.75 Tb/s/mm", "GB/s/mm")
    assert cpo["pj_per_bit"].value == pytest.approx(9 / 1.6, rel=0.01)


def test_entries_differ_only_where_they_say():
    packet, ethernet = (catalog.records("switch", name) for name in ("nvswitch", "ethernet"))
    changed = {field for field in packet if packet[field] != ethernet[field]}
    assert changed == {"usd_per_gbit_s", "hop_us", "largest_domain"}
    cost, price = catalog.records("prices", "cost"), catalog.records("prices", "price")
    changed = {field for field in cost if cost[field] != price[field]}
    assert changed == {"gross_margin", "nre_charged"}


def test_technology_holds_what_provenance_says():
    choice = {
        "memory": "hbm3",
        "execution": "ideal",
        "overrides": {"memory.usd_per_gb": "12 USD/GB"},
    }
    technology, records = catalog.technology(**choice), catalog.provenance(**choice)
    for name, record in records.items():
        table, field = name.split(".")
        assert float(getattr(getattr(technology, table), field)) == record.value
    assert records["memory.usd_per_gb"] == Record.exact(12.0, "USD/GB")
    assert records["memory.usd_per_gb"].trust == "user"
    assert records["memory.stack_tb_s"].value == 0.67


@pytest.mark.parametrize(
    "overrides",
    [
        {"memory": {"usd_per_gb": 12}},
        {"memory.usd_per_gb": 12.0},
        {"memory.usd_per_gb": "0.012 USD/MB"},
    ],
)
def test_spellings_of_an_override(overrides):
    assert catalog.override_records(overrides)["memory.usd_per_gb"].value == 12


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"process.wafer_edge_mm": 110}, "does not fit on a wafer"),
        ({"process.field_long_mm": 400}, "does not fit on a wafer"),
        ({"memory.stack_min_gb": 100}, "stack_min_gb is above stack_max_gb"),
    ],
)
def test_values_that_do_not_go_together(overrides, message):
    # a die at the rim has no dies per wafer, and then a certificate would not hold
    with pytest.raises(UserError, match=message):
        catalog.technology(overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"memory.usd_per_g": 12}, "did you mean memory.usd_per_gb?"),
        ({"memry.usd_per_gb": 12}, "did you mean memory.usd_per_gb?"),
        ({"x": 12}, "table.field"),
        ({"memory.usd_per_gb": "12 USD"}, "a quantity in USD/GB"),
        ({"memory.usd_per_gb": -1}, "0 or more"),
        ({"process.voltage_slope": 1.3}, "0 to 1"),  # would not be log-log convex
        ({"package.bond_yield": 0}, "above 0 and at most 1"),
        ({"prices.gross_margin": 1}, "below 1"),
        ({"execution.overlap_exponent": 0.5}, "1 or more"),
        ({"prices.it_life_years": 0}, "above 0"),
        ({"memory.usd_per_gb": float("nan")}, "not finite"),
        ({"memory.usd_per_gb": {"value": 12, "sorce": "me"}}, "did you mean source?"),
        ({"memory.usd_per_gb": {"source": "me"}}, "no value"),
        ({"memory": {"usd_per_gb": {"value": 12, "trust": "E"}}}, "allowed: A, B, C, D, user"),
        ("memory", "not a table"),
    ],
)
def test_wrong_overrides(overrides, message):
    with pytest.raises(UserError) as caught:
        catalog.override_records(overrides, "study.toml:technology.overrides")
    assert message in str(caught.value)
    assert str(caught.value).startswith("study.toml:technology.overrides")
    assert len(str(caught.value)) < 1200


def test_unknown_names():
    with pytest.raises(UserError, match="did you mean hbm3e?"):
        catalog.records("memory", "hbm-3e")
    with pytest.raises(UserError, match="did you mean memory?"):
        catalog.technology(memroy="hbm3e")
    with pytest.raises(UserError, match="did you mean cooling?"):
        catalog.names("cooler")


@pytest.mark.parametrize("bad", [(2, 0, 1), (0, 1, 2), (float("nan"), 0, 1)])
def test_record_outside_its_range(bad):
    with pytest.raises(ValueError, match="outside"):
        Record(*bad, unit="", source="a source", trust="A")


def test_import_needs_neither_jax_nor_pint():
    code = (
        "import sys; import litegpu_opt.study as s, litegpu_opt.catalog as c;"
        "c.load_accelerator('h100-sxm'); c.provenance(); s.resolved_toml(s.load_study());"
        "print(sorted({'jax', 'equinox', 'pint'} & set(sys.modules)))"
    )
    root = Path(catalog.__file__).parents[2]
    out = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert out.stdout.strip() == "[]", out.stderr


def test_measurements_have_ranges_sources_and_trust():
    assert catalog.issued_share().value == 0.85
    for series in catalog.power_series():
        assert series.trust in "ABCD" and len(series.source) > 10 and series.licence


@pytest.mark.parametrize("leaf", [{"typical": 1}, dict(typical=3, low=0, high=1)])
def test_a_faulty_leaf_of_an_embedded_file_says_where(leaf):
    whole = {"unit": "", "source": "a source", "trust": "A"} | leaf
    with pytest.raises(ValueError, match="file.toml:entry.field"):
        Record.of_leaf(whole, "file.toml:entry.field")
