"""`litegpu explain`: every printed line can be worked out from its own numbers, and says what the
model says.
"""

import ast
import json
import math
import operator

import pytest
from test_cli import call as call  # the fixture
from test_cli import strict_json

from litegpu_opt.catalog import accelerator_names, load_accelerator, records
from litegpu_opt.cli.options import Serving
from litegpu_opt.machine.cost import bill_of_materials, die_usd
from litegpu_opt.machine.power import thermal_design_power_w
from litegpu_opt.report.explain.document import (
    ALL_METRICS,
    METRICS,
    explanation_json,
    explanation_sections,
    machine_formulas,
)
from litegpu_opt.report.explain.formulas import complete
from litegpu_opt.report.explain.serving import serving_formulas
from litegpu_opt.report.explain.shares import shares_json


OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}
FUNCTIONS = {"sqrt": math.sqrt, "exp": math.exp, "floor": math.floor, "max": max, "min": min}


def worked_out(text, values=None):
    """The value of arithmetic in text, by its syntax tree alone; names are looked up."""

    def value(node):
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id="pi"):
                return math.pi
            case ast.Name(id=name):
                return values[name]
            case ast.Attribute(value=ast.Name(id=table), attr=field):
                return values[f"{table}.{field}"]
            case ast.BinOp(left=left, op=op, right=right):
                return OPERATORS[type(op)](value(left), value(right))
            case ast.UnaryOp(op=op, operand=operand):
                return OPERATORS[type(op)](value(operand))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return FUNCTIONS[name](*map(value, arguments))
        raise AssertionError(ast.dump(node))

    return value(ast.parse(text, mode="eval").body)


def served(model, accelerator="h100-sxm", basis=None, **options):
    options = {"tp": 1, "batch": 32, "prompt": 1500.0, "output": 500.0} | options
    return Serving(model=model, **options).deployed(accelerator, basis, {})


DEPLOYMENTS = {
    "dense": lambda: served("llama-3.1-70b", tp=8),
    "ideal": lambda: served("llama-3.1-70b", tp=8, execution="ideal"),
    "stages": lambda: served("llama-3.1-70b", tp=2, pp=3, microbatches=2, weights="fp8"),
    "experts": lambda: served("gpt-oss-120b", tp=2, dp=2, ep=4, basis="price"),
    "latent": lambda: served("deepseek-v3", tp=8, weights="fp8"),
    "one token": lambda: served("llama-3.1-8b", output=1.0),
}


@pytest.mark.parametrize("name", accelerator_names())
def test_every_formula_of_the_machine_gives_what_the_model_gives(name):
    chip = load_accelerator(name)
    quantities, constants, modelled = machine_formulas(chip, chip.technology(), chip.provenance())
    values = complete(quantities, constants, modelled)
    for quantity, (formula, *_) in quantities.items():
        expected = pytest.approx(float(values[quantity]), rel=1e-11)
        assert worked_out(formula, values) == expected, quantity


def test_what_the_model_returns_is_never_taken_from_the_text():
    chip = load_accelerator("h100-sxm")
    quantities, _, modelled = machine_formulas(chip, chip.technology(), chip.provenance())
    assert set(quantities) - set(modelled) == {
        "usable_radius_mm",
        "pitch_area_mm2",
        "good_dies_per_wafer",
        "whole_dies_usd",
        "interposer_mm2",
        "rated_clock_ghz",
        "rated_memory_w",
        "always_w",
        "junction_rise_k",
        "thermal_limit_w",
        "it_capital_usd",
        "electricity_usd_per_hour",
        "device_hour_usd",
    }
    design, technology = chip.design(), chip.technology()
    assert modelled["die_usd"] == die_usd(design, technology)
    assert modelled["unit_cost_usd"] == bill_of_materials(design, technology).total_usd
    assert modelled["tdp_w"] == thermal_design_power_w(design, technology)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_formula_of_a_deployment_gives_what_the_model_gives(name):
    deployed = DEPLOYMENTS[name]()
    quantities, constants, modelled = machine_formulas(
        deployed.accelerator, deployed.technology, deployed.constants
    )
    more, counts, times = serving_formulas(deployed)
    quantities, modelled = quantities | more, modelled | times
    values = complete(quantities, constants | counts, modelled)
    for quantity, (formula, *_) in quantities.items():
        expected = pytest.approx(float(values[quantity]), rel=1e-9, abs=1e-25)
        assert worked_out(formula, values) == expected, quantity
    # the headline figures come from the model
    for phase in ("prefill", "decode"):
        for figure in ("time_ms", "device_j", "cluster_j", "usd_per_token", "memory_gb"):
            assert f"{phase}_{figure}" in times
    assert {"ttft_ms", "tokens_per_dollar", "joules_per_token"} <= set(times)


@pytest.mark.parametrize("metric", ALL_METRICS)
def test_every_line_on_the_screen_can_be_worked_out_by_hand(metric):
    deployed = served("llama-3.1-70b", tp=8)
    content = explanation_json(metric, deployed.accelerator, "cost", deployed)
    assert content["lines"] and content["results"]
    json.dumps(content, allow_nan=False)
    for line in content["lines"]:
        shown = float(f"{line['value']:.7g}")
        assert worked_out(line["numbers"]) == pytest.approx(line["value"], rel=1e-9)
        assert worked_out(line["shown"]) == pytest.approx(shown, rel=1e-4, abs=1e-12)
    blocks = explanation_sections(content)[1].blocks
    for line in content["lines"]:
        assert f"  = {line['shown']}" in blocks


@pytest.mark.parametrize("metric", METRICS)
def test_every_constant_has_a_source(metric, call):
    code, out, _ = call("explain", metric, "--accelerator", "mi300x", "--json")
    assert code == 0
    content = strict_json(out)
    assert content["constants"]
    for constant in content["constants"].values():
        assert constant["source"] and constant["trust"] in "ABCD"
    # nothing stands in a line that is neither a constant nor an earlier line
    known = {name: row["value"] for name, row in content["constants"].items()}
    for line in content["lines"]:
        assert worked_out(line["formula"], known) == pytest.approx(line["value"], rel=1e-9)
        known[line["name"]] = line["value"]


def test_explanations_agree_with_evaluate(call):
    words = "--accelerator h100-sxm --model llama-3.1-70b --tp 8 --batch 32 --prompt 1500".split()
    words += ["--output", "500", "--basis", "price", "--json"]
    evaluated = strict_json(call("evaluate", *words)[1])

    def explained(metric):
        content = strict_json(call("explain", metric, *words)[1])
        return {name: row["value"] for name, row in content["results"].items()}

    expected = {
        "ttft": {"ttft_ms": 1e3 * evaluated["ttft_s"]},
        "tbt": {"decode_time_ms": 1e3 * evaluated["tbt_s"]},
        "tokens-per-dollar": {"tokens_per_dollar": evaluated["tokens_per_dollar"]},
        "energy-per-token": {"joules_per_token": evaluated["joules_per_token"]},
        "device-hour": {"device_hour_usd": evaluated["device_hour"]["total_usd"]},
        "unit-price": {"accelerator_capital_usd": evaluated["unit_price_usd"]},
        "power": {f"{p}_power_w": evaluated[f"power_{p}_w"] for p in ("prefill", "decode")},
        "memory": {
            "prefill_memory_gb": evaluated["memory"]["prefill"]["total_gb"],
            "decode_memory_gb": evaluated["memory"]["decode"]["total_gb"],
            "usable_memory_gb": evaluated["memory"]["decode"]["usable_gb"],
        },
    }
    for metric, values in expected.items():
        assert explained(metric) == pytest.approx(values, rel=1e-9), metric


def _silicon(area, sms):
    """A chip of an area without repair, on textbook wafers with near-Poisson yield."""
    sm_mm2 = 2.69 + 0.39 * 4.096 + 60 / 144 * 1.02
    others = 144 / 132 * sms * sm_mm2 + 450 * 0.064 + 14.5
    return f"""
extends = "h100-sxm"
[design]
die_area = "{area} mm^2"
sm_count = {sms}
memory_stacks = 1
memory = "16 GB"
[technology.overrides]
process.wafer_usd = 17000
process.defects_per_cm2 = 0.1
process.clustering = 10000
process.scribe_mm = 0
process.wafer_edge_mm = 0
process.sort_share = 0
process.bump_usd_per_mm2 = 0
process.sm_repairable = 0
process.sram_repairable = 0
process.memory_phy_repairable = 0
memory.sites_per_stack = 1
process.fixed_mm2 = {area - others}
"""


@pytest.mark.parametrize(
    ("area", "sms", "yielded", "whole", "usd", "whole_usd"),
    [(814.0, 100, 0.4431, 63, 604.34, 609.0), (203.5, 20, 0.8159, 300, 69.31, 69.46)],
)
def test_cost_of_a_die_by_hand(tmp_path, area, sms, yielded, whole, usd, whole_usd):
    # $17,000 a wafer, 0.1 defects per cm2, Poisson. Whole dies: 17000/(63 x 0.4431) is
    # $609, 17000/(300 x 0.8159) is $69.46, four of them $278. 63.48 and 300.63 dies on average.
    path = tmp_path / "die.toml"
    path.write_text(_silicon(area, sms))
    content = explanation_json("die-cost", load_accelerator(path), "cost")
    lines = {line["name"]: line["value"] for line in content["lines"]}
    assert lines["killed_mm2"] == pytest.approx(area, rel=1e-9)
    assert lines["die_yield"] == pytest.approx(yielded, abs=1e-4)
    assert math.floor(lines["dies_per_wafer"]) == whole
    assert lines["die_usd"] == pytest.approx(usd, rel=3e-4)
    assert lines["whole_dies_usd"] == pytest.approx(whole_usd, rel=3e-4)


def test_dollars_per_million_tokens_by_hand():
    # $2.50 an hour and 1,000 tokens a second are $0.6944 per million, 1,440,000 per dollar
    deployed = served("llama-3.1-8b")
    lines = {
        line["name"]: line["formula"]
        for line in explanation_json("tokens-per-dollar", deployed.accelerator, "cost", deployed)[
            "lines"
        ]
    }
    decode = {"decode_usd_per_busy_hour": 2.5, "decode_seconds_per_token": 1 / 1000}
    usd = worked_out(lines["decode_usd_per_token"], decode)
    others = {"prefill_usd_per_token": 0.0, "nre_usd_per_token": 0.0}
    million = worked_out(lines["usd_per_million_tokens"], others | {"decode_usd_per_token": usd})
    assert million == pytest.approx(2.5 / (1000 * 3600) * 1e6, rel=1e-12)
    assert million == pytest.approx(0.6944, abs=5e-5)
    dollar = worked_out(lines["tokens_per_dollar"], {"usd_per_million_tokens": million})
    assert dollar == pytest.approx(1_440_000)


@pytest.mark.parametrize(
    "leaf",
    ["process.pj_per_flop_bf16", "process.pj_per_sm_clock", "process.idle_w_per_mm2"],
)
def test_power_that_is_not_known_meets_no_limit(call, tmp_path, leaf):
    # without power data every limit would be met at 0 W
    path = tmp_path / "chip.toml"
    limit = 'cooling.limit_package_w = "300 W"'
    path.write_text(f'extends = "h100-sxm"\n[technology.overrides]\n{limit}\n{leaf} = 0\n')
    code, out, err = call("explain", "tdp", "--accelerator", str(path))
    assert (code, out) == (2, "")
    assert "not modelled" in err and leaf in err and err.count("\n") == 1


def test_a_figure_that_is_not_published_is_not_known(call):
    assert "published: not known" in call("explain", "tdp", "--accelerator", "tpu-v6e")[1]
    assert "published: 700, NVIDIA data sheet" in call("explain", "tdp")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["die-yeild"], "unknown metric 'die-yeild', did you mean die-yield?"),
        (["ttft"], "--model: ttft is about a model that is served"),
        (["tdp", "--accelerator", "h10-sxm"], "did you mean h100-sxm?"),
        (["tbt", "--model", "llama-3.1-8b"], "--tp"),
        (
            "tbt --model llama-3.1-8b --tp 1 --batch 1 --prompt 9 --output 1".split(),
            "--output: one output token has no next one",
        ),
    ],
)
def test_errors_are_one_line(call, words, message):
    code, out, err = call("explain", *words)
    assert (code, out) == (2, "")
    assert message in err and err.count("\n") == 1


# --- what is charged per package, per watt, per area ---------------------------------------------


@pytest.fixture(scope="module")
def shares():
    return shares_json(load_accelerator("paper-lite"), load_accelerator("h100-sxm"), "cost")


def test_a_charge_per_package_by_hand(shares):
    rows = {row["name"]: row for row in shares["charges"]}
    yearly = 0.08 / (1 - 1.08**-5) + 0.05  # repaid in 5 years at 8 %, and operation
    host = rows["prices.host_usd_per_package"]
    for chip in ("small", "large"):
        assert host["usd_per_hour"][chip] == pytest.approx(1.05 * 125 * yearly / 8760, rel=1e-9)
    tdp = float(
        thermal_design_power_w(
            load_accelerator("h100-sxm").design(), load_accelerator("h100-sxm").technology()
        )
    )
    watts = rows["prices.host_usd_per_w"]["usd_per_hour"]["large"]
    assert watts == pytest.approx(1.05 * 4.5 * tdp * yearly / 8760, rel=1e-9)


def test_what_is_paid_by_the_package_counts_against_small_ones(shares):
    by_name = {row["name"]: row["ratio_at"] for row in shares["charges"]}
    assert shares["small_devices"] == 4
    for name in ("prices.host_usd_per_package", "package.test_usd"):
        assert by_name[name]["low"] < by_name[name]["high"]
    ratios = {name: row["ratio"] for name, row in shares["alternatives"].items()}
    assert ratios["host 1,000 USD per package"] > ratios["as in the catalogue"]
    assert ratios["host nothing per W"] > ratios["as in the catalogue"]
    for row in shares["alternatives"].values():
        assert row["ratio"] == pytest.approx(4 * row["small"] / row["large"])


def test_alternatives_are_those_of_the_catalogue(shares, call):
    assert records("prices", "host-per-package")["host_usd_per_package"].value == 1000
    assert records("prices", "host-without-power")["host_usd_per_w"].value == 0
    printed = strict_json(call("explain", "cost-shares", "--json")[1])
    assert printed["alternatives"].keys() == shares["alternatives"].keys()
    screen = call("explain", "cost-shares")[1]
    assert "Ethernet switch" in screen and "W of TDP" in screen
