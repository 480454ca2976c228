"""What a study asks beside its optima: fronts, break-evens, tornados, a design for each phase."""

import itertools
import math

import pytest

from litegpu_opt.errors import UserError
from litegpu_opt.optimizer.panel import optimize
from litegpu_opt.study import load_study, resolved_toml


STUDY = """
name = "questions"
starts = 1
specialised = true
tornado = 2

[technology]
cooling = ["liquid"]

[space]
tensor_parallel_max = 2
aspect_ratios = [1.27]

[[workload]]
name = "70b"
model = "llama-3.1-70b"
weights = "fp8"
kv = "fp8"
prompt_tokens = 1500
output_tokens = 500
ttft = "1 s"
tbt = "50 ms"

[[candidate]]
name = "lite"
die_area_max = "214.5 mm^2"

[[candidate]]
name = "reticle"

[[baseline]]
accelerator = "h100-sxm"

[[front]]
over = "joules_per_token"
points = 4

[[front]]
over = "tbt"
least = "5 ms"
most = "80 ms"
points = 4
candidates = "lite"

[[break_even]]
parameter = "package.attach_usd_per_stack"
least = "1 USD"
most = "100000 USD"
between = ["reticle", "h100-sxm"]

[[break_even]]
parameter = "process.defects_per_cm2"
between = ["lite", "reticle"]
"""


def read(tmp_path, text=STUDY):
    path = tmp_path / "study.toml"
    path.write_text(text)
    return load_study(path)


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    study = read(tmp_path_factory.mktemp("questions"))
    [workload] = optimize(study).panel
    return workload


@pytest.fixture(scope="module")
def optima(answered):
    return {optimum.name: optimum for optimum in answered.optima}


def best(study_text, tmp_path, name):
    """Best objective of a candidate, or baseline, of a study."""
    [workload] = optimize(read(tmp_path, study_text)).panel
    entries = (*workload.optima, *workload.baselines)
    return next(entry.soft.value for entry in entries if entry.name == name)


def without_questions(text):
    head = text.split("[[front]]")[0]
    return head.replace("specialised = true", "").replace("tornado = 2", "")


# --- a design for each phase -------------------------------------------------------------------


def test_two_designs_are_never_worse_but_for_their_design_cost(answered, optima):
    assert [pair.name for pair in answered.specialised] == ["lite", "reticle"]
    for pair in answered.specialised:
        common = optima[pair.name].run.metrics
        second_design = 1e6 * float(common.nre_usd_per_token)
        assert pair.cost.value <= optima[pair.name].soft.value + second_design * (1 + 1e-6)
        assert 0 <= pair.cost.gap <= 1e-6


def test_each_design_serves_its_phase_alone(answered):
    for pair in answered.specialised:
        prefill, decode = pair.prefill.metrics, pair.decode.metrics
        assert float(prefill.services.usd_per_token[1]) == 0.0
        assert float(decode.services.usd_per_token[0]) == 0.0
        total = 1e6 * float(prefill.usd_per_token + decode.usd_per_token)
        nre = 2e6 * 0.0  # parts carry no design cost
        assert total + nre < pair.cost.value
        assert float(prefill.services.latency_ms[0]) <= 1000 * (1 + 1e-6)
        assert float(decode.services.time_ms[1]) <= 50 * (1 + 1e-6)


# --- fronts ------------------------------------------------------------------------------------


def test_fronts_fall_and_every_point_is_certified(answered, optima):
    assert [(front.name, front.over) for front in answered.fronts] == [
        ("lite", "joules_per_token"),
        ("reticle", "joules_per_token"),
        ("lite", "tbt"),
    ]
    for front in answered.fronts:
        feasible = [point for point in front.points if point.run is not None]
        assert len(feasible) >= 2
        for point in front.points:
            assert point.lower_bound <= point.objective
        for point in feasible:
            assert point.objective / point.lower_bound - 1 <= 1e-6
        for tight, loose in itertools.pairwise(feasible):
            assert tight.limit < loose.limit
            assert loose.objective <= tight.objective * (1 + 1e-8)


def test_a_front_over_energy_ends_at_the_optimum(answered, optima):
    front = answered.fronts[0]
    last = front.points[-1]
    assert last.objective == pytest.approx(optima["lite"].soft.value, rel=1e-7)
    assert last.limit == pytest.approx(float(optima["lite"].run.metrics.joules_per_token), rel=1e-6)
    for point in front.points:
        if point.run is not None:
            joules = float(point.run.metrics.joules_per_token)
            assert joules <= point.limit * (1 + 1e-6)


def test_a_point_of_a_front_is_the_optimum_of_that_study(answered, tmp_path):
    point = answered.fronts[2].points[2]
    assert point.limit == pytest.approx(5 * 16 ** (2 / 3))
    text = without_questions(STUDY).replace('tbt = "50 ms"', f'tbt = "{point.limit!r} ms"')
    assert best(text, tmp_path, "lite") == pytest.approx(point.objective, rel=1e-7)


# --- break-evens -------------------------------------------------------------------------------


def test_at_a_break_even_both_sides_cost_the_same(answered, tmp_path):
    found = answered.break_evens[0]
    assert found.sides == ("reticle", "h100-sxm")
    # a stack costs more to attach only in what is yet to be built
    assert list(found.ratios) == sorted(found.ratios)
    [crossing] = found.crossings
    assert 1 < crossing < 100_000
    text = without_questions(STUDY).replace(
        'cooling = ["liquid"]',
        f'cooling = ["liquid"]\noverrides = {{ "package.attach_usd_per_stack" = {crossing!r} }}',
    )
    reticle = best(text, tmp_path, "reticle")
    h100 = best(without_questions(STUDY), tmp_path, "h100-sxm")
    assert reticle == pytest.approx(h100, rel=1e-5)


def test_no_break_even_is_said(answered):
    found = answered.break_evens[1]
    assert found.crossings == ()
    assert min(found.ratios) > 1.0


# --- tornados ----------------------------------------------------------------------------------


def test_a_tornado_brackets_the_optimum_and_agrees_with_the_slope(answered, optima):
    for name, bars in answered.tornados.items():
        optimum = optima[name]
        slopes = optimum.sensitivities
        sizes = [abs(slopes[bar.name]) for bar in bars]
        assert len(bars) == 2 and sizes == sorted(sizes, reverse=True)
        for bar in bars:
            slope = slopes[bar.name]
            ends = [value for value in (bar.at_minus, bar.at_plus) if not math.isnan(value)]
            assert ends
            for value, step in zip((bar.at_minus, bar.at_plus), (0.9, 1.1), strict=True):
                if not math.isnan(value):
                    change = math.log(value / optimum.soft.value)
                    assert change * slope * math.log(step) > 0
                    # the optimum as a function of an assumption is close to a power over 10 %
                    assert abs(change / (slope * math.log(step)) - 1) < 0.3


# --- the file ----------------------------------------------------------------------------------


def test_questions_survive_writing_and_reading(tmp_path):
    study = read(tmp_path)
    assert read(tmp_path, resolved_toml(study)) == study


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ('over = "tbt"', 'over = "tbtt"', "front[1].over", "tbtt"),
        ('least = "5 ms"', 'least = "5"', "front[1].least", "unit"),
        ('least = "5 ms"', 'least = "5 s"', "front[1].least", "no range"),
        ('most = "80 ms"', "", "front[1].most", "missing"),
        ("points = 4\n\n[[front]]", "points = 1\n\n[[front]]", "front[0].points", "1"),
        ('candidates = "lite"', 'candidates = "light"', "front[1].candidates", "light"),
        ("package.attach_usd_per_stack", "package.attach_usd", "break_even[0].parameter", "attach"),
        ('["reticle", "h100-sxm"]', '["lite", "lite"]', "break_even[0].between", "two"),
        ('["reticle", "h100-sxm"]', '["lite", "h200"]', "break_even[0].between", "h200"),
        ("tornado = 2", "tornado = -1", "tornado", "-1"),
        ("specialised = true", 'specialised = "yes"', "specialised", "yes"),
    ],
)
def test_a_wrong_question_is_one_clear_line(tmp_path, old, new, where, what):
    assert old in STUDY
    with pytest.raises(UserError) as caught:
        read(tmp_path, STUDY.replace(old, new, 1))
    assert where in str(caught.value) and what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_break_even_is_answered_where_a_side_cannot_serve(tmp_path):
    small = STUDY.split("[[front]]")[0].replace("specialised = true", "").replace("tornado = 2", "")
    (tmp_path / "tiny.toml").write_text('extends = "h100-sxm"\ndesign.memory = "4 GB"\n')
    text = small.replace('accelerator = "h100-sxm"', 'accelerator = "tiny.toml"') + (
        '[[break_even]]\nparameter = "process.defects_per_cm2"\nbetween = ["reticle", "{path}"]\n'
    )
    text = text.replace("{path}", str(tmp_path / "tiny.toml"))
    text = text.replace('accelerator = "tiny.toml"', f'accelerator = "{tmp_path / "tiny.toml"}"')
    [workload] = optimize(read(tmp_path, text)).panel
    [found] = workload.break_evens
    assert found.crossings == () and all(math.isnan(ratio) for ratio in found.ratios)
