"""The machine model against shipped chips: the bars it must reach, and the fits behind it."""

import json

import numpy as np
import pytest
from scipy.optimize import least_squares

from litegpu_opt import cli
from litegpu_opt.catalog import accelerator_names, load_accelerator, records
from litegpu_opt.catalog.measurements import power_series
from litegpu_opt.machine.fitting import SOFT, soft_least_squares
from litegpu_opt.report.validation import QUANTITIES, validation_json, validation_sections


@pytest.fixture(scope="module")
def content():
    return validation_json([load_accelerator(name) for name in accelerator_names()])


@pytest.fixture(scope="module")
def figures(content):
    """Chip -> quantity -> model, published, error, ..."""
    return {row["name"]: row["figures"] for row in content["chips"]}


@pytest.mark.parametrize(
    ("quantity", "bar", "chips"),
    [
        ("die_area_mm2", 0.10, 11),
        ("bf16_dense_tflop_s", 0.01, 19),
        ("memory_tb_s", 0.01, 19),
        ("tdp_w", 0.10, 11),
        ("bill_of_materials_usd", 0.15, 2),
    ],
)
def test_mean_errors_reach_their_bars(content, quantity, bar, chips):
    assert content["mean_abs_error"][quantity] <= bar
    summary = content["summary"][quantity]
    assert summary["bar"] == bar and summary["reached"]
    assert summary["chips"] == chips


def test_peaks_and_bandwidths_hold_for_every_chip(figures):
    for of_chip in figures.values():
        for quantity in ("bf16_dense_tflop_s", "memory_tb_s"):
            assert abs(of_chip[quantity]["error"]) <= 0.01


@pytest.mark.parametrize(("chip", "usd"), [("h100-sxm", 3320), ("b200-sxm", 6400)])
def test_bills_of_materials(figures, chip, usd):
    bill = figures[chip]["bill_of_materials_usd"]
    assert bill["published"] == usd
    assert abs(bill["error"]) <= 0.15


@pytest.mark.parametrize("quantity", ["die_area_mm2", "tdp_w"])
def test_dies_left_out_of_the_fit_are_met_too(content, quantity):
    assert content["summary"][quantity]["left_out_mean_abs_error"] <= 0.10


def test_means_are_those_of_the_chips(content, figures):
    for quantity in QUANTITIES:
        rows = [row[quantity] for row in figures.values() if quantity in row]
        errors = [row["error"] for row in rows if row["not_compared"] is None]
        assert content["mean_abs_error"][quantity] == pytest.approx(np.mean(np.abs(errors)))
        for row in rows:
            assert row["error"] == pytest.approx(row["model"] / row["published"] - 1.0)


def test_what_stays_out_of_a_mean_is_shown_with_its_reason(figures):
    out = {
        (name, quantity)
        for name, row in figures.items()
        for quantity, entry in row.items()
        if entry["not_compared"]
    }
    assert out == {("gaudi-3", "tdp_w"), ("tpu-v7", "tdp_w")}


def test_circular_powers_are_those_with_a_measured_clock(figures):
    circular = {name for name, row in figures.items() if row.get("tdp_w", {}).get("circular")}
    assert circular == {"a100-sxm", "b200-sxm", "gb200", "mi300x", "l40s"}
    for name in figures:
        share = load_accelerator(name).overrides.get("rating.rated_clock_share")
        measured = share is not None and share.source.startswith("measured")
        assert measured == (name in circular or name == "gaudi-3")


def test_at_most_eight_coefficients_and_the_catalogue_ships_their_fit(content):
    coefficients = content["coefficients"]
    assert len(coefficients) <= 8
    fitted = [entry for entry in coefficients if entry["refitted"] is not None]
    assert len(fitted) == 5
    for entry in fitted:
        assert entry["shipped"] == pytest.approx(entry["refitted"], rel=0.03), entry["name"]
        assert entry["low"] <= entry["shipped"] <= entry["high"]
        # the catalogue's range is that of the dies left out
        shipped = records("process", "n4")[entry["name"].partition(".")[2]]
        assert [shipped.low, shipped.high] == pytest.approx([entry["low"], entry["high"]], rel=0.01)


def test_no_figure_is_made_of_nothing(content, figures):
    assert not any(name.startswith("paper-") for name in figures)
    assert "tdp_w" not in figures["tpu-v6e"]
    text = json.dumps(content)
    assert "NaN" not in text and "Infinity" not in text


def test_the_fit_is_the_minimum_that_scipy_finds():
    random = np.random.default_rng(0)
    chips = random.uniform(1, 5, (9, 4))
    known = chips.sum(axis=1) * random.uniform(0.7, 1.4, 9)
    weights = random.uniform(0.3, 1, 9)

    def residuals(factors):
        return weights * ((chips[:, :-1] @ factors + chips[:, -1]) / known - 1)

    expected = least_squares(
        residuals, np.ones(3), loss="soft_l1", f_scale=SOFT, xtol=1e-12, ftol=1e-12, gtol=1e-12
    ).x
    assert soft_least_squares(chips, known, weights) == pytest.approx(expected, rel=1e-5)


def test_exact_figures_give_the_coefficients_back():
    chips = np.random.default_rng(1).uniform(1, 5, (6, 3))
    known = chips[:, :-1] @ [1.3, 0.7] + chips[:, -1]
    assert soft_least_squares(chips, known, np.ones(6)) == pytest.approx([1.3, 0.7])


def test_the_command_prints_what_the_report_holds(content, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["validate", "machine", "--json"])
    assert ended.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["mean_abs_error"].keys() == QUANTITIES.keys()
    assert len(printed["chips"]) == 19
    with pytest.raises(SystemExit):
        cli.main(["validate", "machine"])
    assert "not known" in capsys.readouterr().out


def test_every_quantity_has_a_table(content):
    headings = [section.heading for section in validation_sections(content)]
    assert headings[0] == "Mean absolute error"
    assert {"Die area, mm2", "Thermal design power, W"} <= set(headings)


# --- measured power ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def series(content):
    """Name -> rows with their means."""
    return {entry["name"]: entry for entry in content["power"]}


def test_measured_powers_are_those_of_the_catalogue(series):
    catalogued = {entry.name: entry for entry in power_series()}
    assert set(series) == set(catalogued) | {"assumed-loads"}
    for name, entry in catalogued.items():
        shown = series[name]
        assert [row["measured_w"] for row in shown["rows"]] == [row.watts for row in entry.rows]
        assert shown["licence"] and shown["source"] and shown["trust"] in "ABCD"
    assert len(series["llm-inference-bench"]["rows"]) == 40


def test_errors_of_power_are_by_row_and_their_means(series):
    for entry in series.values():
        errors = [row["model_w"] / row["measured_w"] - 1 for row in entry["rows"]]
        assert [row["error"] for row in entry["rows"]] == pytest.approx(errors)
        assert entry["mean_abs_error"] == pytest.approx(np.mean(np.abs(errors)))
        assert entry["mean_error"] == pytest.approx(np.mean(errors))


def test_decode_of_one_device_is_met_without_a_coefficient_of_its_own(series):
    # 40 rows of A100 and H100 under three engines; nothing is fitted to them
    assert series["llm-inference-bench"]["mean_abs_error"] <= 0.14
    assert abs(series["llm-inference-bench"]["mean_error"]) <= 0.06


def test_a_measured_run_by_hand(series):
    # H100, Llama-2-7B, one sequence of 1024 + 1024 tokens at 261.3 tokens/s: 7.838 s. A step reads
    # 6.6e9 weights of 2 bytes and 1,536 tokens of 524,288 bytes: 14.02 GB at 8e-3 x 5.5 J. A token
    # makes 2 x 6.6e9 FLOPs at 0.485 pJ, in prefill (weights once) and in decode.
    seconds = 2048 / 261.3
    static_w = 0.086 * 814 + 0.897 * 132 * 1.83
    steps_j = 1023 * (13.21 + 1536 * 524_288e-9) * 8e-3 * 5.5
    flops_j = 2047 * 2 * 6.6e-3 * 0.485
    rows = series["llm-inference-bench"]["rows"]
    [row] = [row for row in rows if row["measured_w"] == 367.1]
    expected = static_w + (steps_j + flops_j + 13.21 * 8e-3 * 5.5) / seconds
    assert row["model_w"] == pytest.approx(expected, rel=0.005)


def test_no_coefficient_is_left_out_of_the_list(content):
    fitted = {
        f"{table}.{field}"
        for table, entry in (("process", "n4"), ("rating", "default"))
        for field, record in records(table, entry).items()
        if "own fit" in record.source
    }
    listed = {entry["name"] for entry in content["coefficients"]}
    assert listed == fitted | {"issued share of a GEMM"}
    assert len(listed) == 8
