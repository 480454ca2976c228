"""One design for several workloads: its bound, its limits, and what it loses on each."""

import itertools
import math

import pytest
from small_study import STUDY, Searched, load, solve

from litegpu_opt.errors import UserError
from litegpu_opt.optimizer.branches import Task
from litegpu_opt.optimizer.layout import SINGLE, Layout
from litegpu_opt.optimizer.mix import combinations_as_group, rows_by_outline
from litegpu_opt.optimizer.panel import optimize
from litegpu_opt.report.mixes import mix_sections
from litegpu_opt.report.result_json import panel_json
from litegpu_opt.space import DESIGN_VARIABLES


pytestmark = pytest.mark.slow

begin, end = STUDY.index("[[workload]]"), STUDY.index("[[candidate]]")
FIRST = STUDY[begin:end]
SECOND = (
    FIRST.replace('name = "70b"', 'name = "long"')
    .replace("prompt_tokens = 1500", "prompt_tokens = 6000")
    .replace("output_tokens = 500", "output_tokens = 200")
    .replace('ttft = "1 s"', 'ttft = "4 s"')
)
MIX = """
[[mix]]
name = "fleet"
workloads = ["70b", "long"]
shares = [3, 1]
"""
ONE_CANDIDATE = STUDY[end : STUDY.index('[[candidate]]\nname = "reticle"')]
TEXT = STUDY[:begin].replace("starts = 3", "starts = 1") + FIRST + SECOND + ONE_CANDIDATE + MIX


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return load(tmp_path_factory.mktemp("mix") / "study.toml", TEXT)


@pytest.fixture(scope="module")
def result(study):
    return optimize(study)


@pytest.fixture(scope="module")
def fleet(result):
    [found] = result.mixes
    return found


def test_names_of_several_workloads_belong_to_one():
    layout = Layout(("a", "b"))
    assert layout.origin("batch_decode[b]") == (1, "batch_decode")
    assert layout.origin("die_area_mm2") == (0, "die_area_mm2")
    for number, name in itertools.product((0, 1), SINGLE.variables):
        own = layout.name_for(number, name)
        assert layout.origin(own)[1] == name
        assert (own == name) == (name in (*DESIGN_VARIABLES, "tdp_w"))


def test_the_mix_is_certified(fleet):
    cost = fleet.relaxed.objective
    assert 0.0 <= cost.gap < 1e-6
    # no mix is cheaper than a design for each workload
    own = sum(row.share * row.own for row in fleet.relaxed.workloads)
    assert cost.value >= own * (1.0 - 1e-9)


def test_the_cost_is_the_sum_over_the_workloads(fleet):
    assert [row.share for row in fleet.relaxed.workloads] == [0.75, 0.25]
    for design in (fleet.relaxed, fleet.buildable):
        parts = sum(row.share * row.objective for row in design.workloads)
        assert parts == pytest.approx(design.objective.value, rel=1e-8)


def test_one_design_serves_all_within_their_limits(fleet):
    for design in (fleet.relaxed, fleet.buildable):
        first, second = (row.run for row in design.workloads)
        for name in (*DESIGN_VARIABLES, "tdp_w"):
            assert first.values[name] == second.values[name]
        for run in (first, second):
            services = run.metrics.services
            assert (services.latency_ms <= [1000.0, 50.0]).all() or services.latency_ms[0] <= 4000.0
        assert first.choice.technology == second.choice.technology


def test_each_workload_loses_something(fleet):
    losses = [row.objective / row.own - 1.0 for row in fleet.relaxed.workloads]
    assert all(loss >= -1e-8 for loss in losses)
    assert max(losses) > 1e-5


def test_the_metrics_are_those_of_the_objective(fleet):
    for row in fleet.relaxed.workloads:
        usd = 1e6 * float(row.run.metrics.usd_per_token)
        assert usd == pytest.approx(row.objective, rel=1e-8)


def test_no_combination_is_better(study, fleet):
    """Every pair of degrees of both workloads, solved."""
    searched = Searched(study)
    chosen = [
        (group, end)
        for group, end in zip(searched.groups, searched.ended, strict=True)
        if group.name == "lite"
    ]
    rows = [
        rows_by_outline(group, end, share)
        for (group, end), share in zip(chosen, (0.75, 0.25), strict=True)
    ]
    [outline] = rows[0]
    every = list(itertools.product(*(row[outline] for row in rows)))
    assert len(every) == 16
    labels = dict(
        zip(("70b", "long"), (group.task.workloads[""] for group, _ in chosen), strict=True)
    )
    task = Task(labels, study.objective)
    group = combinations_as_group(task, chosen[0][0], every)
    branches = [branch for _, branch in group.branches]
    values, _ = solve(branches, [branch.middle for branch in branches], explore=True)
    assert fleet.relaxed.objective.value == pytest.approx(math.exp(values.min()), rel=1e-8)


def test_a_buildable_design_is_whole(fleet):
    assert fleet.buildable.objective.value >= fleet.relaxed.objective.lower_bound
    assert fleet.buildable.objective.gap >= 0.0
    values = fleet.buildable.workloads[1].run.values
    for name in ("sm_count", "memory_stacks", "batch_prefill", "batch_decode"):
        assert values[name] == pytest.approx(round(values[name]), abs=1e-9)


def test_it_is_told(result):
    content = panel_json(result)
    [section] = mix_sections(content)
    assert "fleet" in section.heading
    [table] = [block for block in section.blocks if not isinstance(block, str)]
    words = " ".join(str(row) for row in table.rows)
    assert "70b: common against own" in words and "% more" in words
    [buildable] = [block for block in section.blocks if isinstance(block, str)]
    assert buildable.startswith("Buildable lite: ")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("shares = [3, 1]", "shares = [3]", "mix[0].shares: "),
        ("shares = [3, 1]", "shares = [3, 0]", "mix[0].shares"),
        ('["70b", "long"]', '["70b"]', "mix[0].workloads: "),
        ('["70b", "long"]', '["70b", "lnog"]', "did you mean long?"),
        ("seed = 0", "seed = 0\nobjective = { usd_per_million_tokens = 2 }", "mix[0]: "),
    ],
)
def test_wrong_mixes(tmp_path, old, new, fault):
    with pytest.raises(UserError, match="mix") as raised:
        load(tmp_path / "study.toml", TEXT.replace(old, new))
    assert fault in str(raised.value)
