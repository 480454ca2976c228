"""One dictionary, rendered on the screen and as Markdown."""

import copy
import json
import math
import re
import shlex
from collections import Counter

import numpy as np
import panel_fixture
import pytest

from litegpu_opt.cli.console import show
from litegpu_opt.cli.optimize import _exit_code
from litegpu_opt.report.document import Section, Table, figure, finite, json_text, percent
from litegpu_opt.report.findings import NOT_MODELLED, findings
from litegpu_opt.report.markdown import markdown_block, markdown_report
from litegpu_opt.report.panel import panel_sections, workload_section
from litegpu_opt.report.provenance import COMPARED
from litegpu_opt.study import load_study, study_hash


@pytest.fixture(scope="session")
def finished(tmp_path_factory, pytestconfig):
    return panel_fixture.search(tmp_path_factory, pytestconfig)


@pytest.fixture
def content(finished):
    return finished.content


@pytest.fixture
def screen(capsys, monkeypatch):
    """Text that some sections give at a width."""

    def printed(sections, width=120):
        monkeypatch.setenv("COLUMNS", str(width))
        show(sections)
        return capsys.readouterr().out

    return printed


# plain data


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (math.nan, "n/a"),
        (math.inf, "n/a"),
        (0.0, "0"),
        (0.127613, "0.1276"),
        (999.99999, "1,000"),
        (7836159.2, "7,836,159"),
        (3e-9, "3e-09"),
        (214.5, "214.5"),
    ],
)
def test_figures(value, text):
    assert figure(value) == text


def test_percent():
    assert percent(0.5283) == "52.8 %"
    assert percent(None) == "n/a"


def test_json_never_holds_nan_or_infinity():
    content = {"a": np.float64("nan"), "b": [math.inf, 1], "c": {"d": np.float64(2.5)}, "e": True}
    assert finite(content) == {"a": None, "b": [None, 1], "c": {"d": 2.5}, "e": True}
    assert json.loads(json_text(content))["b"] == [None, 1]


def test_pipes_are_escaped_in_markdown():
    text = markdown_block(Table(("a", "b"), (("x|y", "1"),), "T"))
    assert text.splitlines() == ["**T**", "", "| a | b |", "| --- | ---: |", "| x\\|y | 1 |"]


# screen


@pytest.mark.parametrize("width", [60, 120, 200])
def test_screen_fits_and_is_ascii(content, screen, width):
    text = screen(panel_sections(content), width)
    assert text.isascii() and "\x1b" not in text
    assert max(map(len, text.splitlines())) <= width
    for word in ("lite", "reticle", "multi-die", "h100-sxm", "TTFT", "Buildable", "die_area_max"):
        assert word in text


def test_narrow_tables_keep_every_column(screen):
    columns = ("label", *(f"column-{index}" for index in range(9)))
    table = Table(columns, (("row", *(str(index) * 5 for index in range(9))),))
    text = screen([Section("H", (table,))], 40)
    for index in range(9):
        assert f"column-{index}" in text and str(index) * 5 in text


def test_one_workload_fills_about_one_screen(content, screen):
    only = content | {"panel": content["panel"][:1]}
    assert len(screen(panel_sections(only)).splitlines()) < 110


def test_screen_shows_the_numbers_of_the_json(content, screen):
    text = screen(panel_sections(content), 200)
    for optimum in content["panel"][0]["optima"]:
        assert figure(optimum["objective"]) in text
        assert figure(optimum["buildable"]["objective"]) in text
        assert figure(optimum["tokens_per_dollar"]) in text
    assert "slack" in text
    counts = content["trust"]
    assert counts["user"] == 1 and counts["D"] > 0
    known = f"Of {sum(counts.values())} technology values"
    for subject in (
        "expert parallelism in a search",
        known,
        f"{counts['D']} are trust D",
        "1 are given by the user",
    ):
        assert subject in text


def test_provenance_of_a_study(content, screen):
    """Trust of every technology table, efficiency factors, error of the machine model."""
    found = content["provenance"]
    tables = "process memory interconnect switch package cooling prices rating execution".split()
    assert set(found["trust"]) == set(tables)
    counted = Counter()
    for entry in found["trust"].values():
        counted.update(entry["values"])
        assert entry["weakest"]
    assert counted == content["trust"]
    assert found["execution"]["memory_efficiency"]["value"] == 0.913
    text = " ".join(screen(panel_sections(content)).split())
    assert "memory_efficiency 0.913" in text and "overlap_exponent 4.2" in text
    for key, error in found["machine_errors"]["h100-sxm"].items():
        assert f"{COMPARED[key]} {100 * error:+.1f} %" in text
    assert "litegpu validate machine" in text


# sentences


def test_findings_say_what_staying_small_costs(content):
    workload = content["panel"][0]
    lite, reticle, multi = workload["optima"]
    text = " ".join(workload["findings"])
    assert f"{percent(lite['objective'] / reticle['objective'] - 1)} more than reticle" in text
    assert f"{percent(lite['objective'] / multi['objective'] - 1)} more than multi-die" in text
    worth = lite["multipliers"]["die_area_max"]
    assert f"1 % more die area for lite: -{figure(worth, 3)} %." in text
    assert "Big dies win: multi-die" in text


def test_findings_turn_round_when_small_dies_win(content):
    workload = copy.deepcopy(content["panel"][0])
    small = workload["optima"][0]
    small["objective"] = 0.5 * min(optimum["objective"] for optimum in workload["optima"])
    small["multipliers"]["die_area_max"] = 0.0
    text = " ".join(findings(workload))
    assert text.startswith("Small dies win: lite")
    assert "less than reticle" in text and "does not bind" in text


def test_a_cheaper_baseline_is_said_first(content):
    workload = copy.deepcopy(content["panel"][0])
    best = min(optimum["objective"] for optimum in workload["optima"])
    h100, shrunk = workload["baselines"]
    h100["objective"] = 0.8 * best
    shrunk["objective"] = 0.5 * best
    first = findings(workload)[0]
    assert first.startswith("No candidate beats h100-sxm. Best candidate: ")
    assert "25 % more than h100-sxm" in first


def test_what_cannot_be_built_is_said(content):
    workload = copy.deepcopy(content["panel"][0])
    workload["optima"][0]["buildable"] = None
    text = " ".join(findings(workload))
    assert "lite: no buildable design among the neighbours searched." in text
    assert "reticle: no buildable" not in text
    assert "shrunk cannot be built as described: block_area" in text
    assert "h100-sxm cannot" not in text


def test_overrides_gaps_and_starts_are_shown(content, screen):
    workload = copy.deepcopy(content["panel"][0])
    for optimum in workload["optima"]:
        optimum["gap"] = 1e-10
    starts = dict(total=196, converged=80, feasible_branches=42, infeasible_branches=56,
                  beaten_branches=0, open_branches=0, least_agreement=1.0)  # fmt: skip
    workload["optima"][0]["starts"] = starts
    text = screen([workload_section(workload)], 200)
    assert "< 1e-6 %" in text and "not searched" in text
    assert "lite 80 of 84" in text and "56 proved infeasible" in text
    text = screen(panel_sections(content), 200)
    assert re.search(r"prices\.interest +0\.08 -> 0\.09 +file", text)


def test_network_is_irrelevant_only_without_groups(content):
    workload = copy.deepcopy(content["panel"][0])
    for optimum in workload["optima"]:
        optimum["deployment"] |= {"tp_prefill": 1, "tp_decode": 2}
    assert "network is irrelevant" not in " ".join(findings(workload))
    workload["optima"][1]["deployment"] |= {"tp_decode": 1}
    assert "The network is irrelevant for reticle: tp = 1" in " ".join(findings(workload))


def test_box_bounds_and_withheld_sensitivities_are_named(content):
    workload = copy.deepcopy(content["panel"][0])
    workload["optima"][0] |= {
        "at_box": {"clock_ghz": "upper bound of the search box"},
        "sensitivities": {},
    }
    text = " ".join(findings(workload))
    assert "lite clock_ghz (upper bound of the search box)" in text
    assert "Sensitivities of lite are withheld" in text


# files


def test_exit_code_is_zero_while_some_candidate_is_feasible(content, capsys):
    first, hopeless = content["panel"]
    partly = {**first, "infeasible": hopeless["infeasible"][:1]}
    assert _exit_code({"panel": [partly]}) == 0
    assert capsys.readouterr().err == ""
    assert _exit_code({"panel": [first, hopeless]}) == 3


def test_open_branches_are_not_called_infeasible(content, capsys, screen):
    hopeless = copy.deepcopy(content["panel"][1])
    for entry in hopeless["infeasible"]:
        entry["starts"]["open_branches"] = 3
    name = hopeless["infeasible"][0]["name"]
    assert _exit_code({"panel": [hopeless]}) == 3
    err = capsys.readouterr().err
    assert f"  {name}: not solved: 3 branches are open\n" in err
    assert "nothing feasible" not in err and "smallest relaxation" not in err
    text = screen([workload_section(hopeless)])
    assert f"{name}: not solved: 3 branches are open." in text
    assert f"{name} is not feasible" not in text
    assert "no feasible candidate was found" in markdown_report(content | {"panel": [hopeless]})


def test_reasons_end_with_one_full_stop(content, screen):
    hopeless = copy.deepcopy(content["panel"][1])
    assert ".." not in screen([workload_section(hopeless)])
    hopeless["infeasible"][0]["shortfalls"] = []
    assert ".." not in screen([workload_section(hopeless)])


def test_folder_holds_the_study_the_json_and_the_report(finished):
    assert sorted(path.name for path in finished.folder.iterdir()) == [
        "designs",
        "report.md",
        "result.json",
        "study.toml",
    ]
    assert json.loads((finished.folder / "result.json").read_text()) == finished.content
    again = load_study(finished.folder / "study.toml")
    assert study_hash(again) == finished.content["study_hash"]
    assert study_hash(again) == study_hash(load_study(finished.study))


@pytest.mark.parametrize("name", ["lite", "multi-die"])
def test_a_buildable_design_is_a_file_that_evaluates_to_the_same_numbers(finished, content, name):
    path = finished.folder / "designs" / f"70b.{name}.toml"
    command = path.read_text().splitlines()[1].removeprefix("# litegpu ")
    words = shlex.split(command.replace(path.name, str(path)))
    done = panel_fixture.run(*words, "--json")
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    [built] = [o["buildable"] for o in content["panel"][0]["optima"] if o["name"] == name]
    for key, value in built.items():
        if key.endswith(("_s", "_w", "_usd", "_gb", "_tokens", "_token")) and value is not None:
            assert again[key] == pytest.approx(value, rel=1e-12), key
    assert again["feasible"]


def test_report_has_decision_sources_and_a_way_to_reproduce(finished, content):
    report = (finished.folder / "report.md").read_text()
    assert "- **70b**: Big dies win" in report
    assert "- **hopeless**: no candidate can serve it" in report
    for subject in NOT_MODELLED:
        assert subject in report
    for optimum in content["panel"][0]["optima"]:
        rows = optimum["top_assumptions"]
        assert len(rows) == 15
        assert [abs(row["elasticity"]) for row in rows] == sorted(
            (abs(value) for value in optimum["sensitivities"].values()), reverse=True
        )[:15]
        for row in rows:
            assert row["source"] and row["trust"] in (*"ABCD", "user")
            assert f"| {row['name']} | {row['elasticity']:+.3f} % |" in report
    assert "    litegpu optimize study.toml --out DIR\n" in report
    assert "| prices.interest |" in report
    assert content["study_hash"] in report and f"seed {content['seed']}" in report


def test_tables_of_the_report_are_rectangular(finished):
    report = (finished.folder / "report.md").read_text()
    tables = re.findall(r"(?:^\|.*\n)+", report, flags=re.MULTILINE)
    assert len(tables) >= 5
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1
    assert "\n\n\n\n" not in report
