"""Other objectives, limits and bounds of the study: every optimum certified, and its own."""

import math
from dataclasses import replace

import jax
import numpy as np
import pytest
from small_study import STUDY, Searched, Small, fourth_order, load, solve

from litegpu_opt.execution.roofline import SoftRoof, for_pools
from litegpu_opt.limits import LIMIT_NAMES, NO_CAP, uses_and_limits
from litegpu_opt.optimizer.branches import push
from litegpu_opt.optimizer.layout import SINGLE, VARIABLES
from litegpu_opt.optimizer.problem import objective_and_limits, point_at
from litegpu_opt.space import OBJECTIVES


PRODUCT = {"usd_per_million_tokens": 1.0, "joules_per_token": 0.5, "sm_seconds_per_token": 0.25}
WEIGHTS = {name: {name: 1.0} for name in OBJECTIVES} | {"product": PRODUCT}
NAME = "lite"


def asked(die="214.5 mm^2", **changes):
    """The small study, one candidate, with more keys: of the file, the workload, the candidate."""
    text = STUDY.partition("[[baseline]]")[0]
    text = text.partition('[[candidate]]\nname = "reticle"')[0]
    text = text.replace('"214.5 mm^2"', f'"{die}"')
    for header, row in (("[technology]", "study"), ("[[candidate]]", "workload"), (None, "lite")):
        line = changes.get(row, "") + "\n"
        text = text.replace(header, line + header, 1) if header else text + line
    return text


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("objectives")
    cache = {}

    def search(**changes):
        key = tuple(sorted(changes.items()))
        if key not in cache:
            cache[key] = Searched(load(folder / "study.toml", asked(**changes)))
        return cache[key].best(NAME)

    return search


def objective(weights, exponent=1.0):
    inside = ", ".join(f"{name} = {exponent * weight}" for name, weight in weights.items())
    return f"objective = {{ {inside} }}"


def at(x, name):
    return math.exp(x[VARIABLES.index(name)])


def value_of(weights, branch, x):
    """Another objective at a point of a branch: logarithm, and the largest violation."""
    made = replace(branch, objective=SINGLE.of_objectives(weights))
    values = np.asarray(objective_and_limits(x, made, soft(branch)))
    return float(values[0]), float(values[1:].max())


def soft(branch):
    return for_pools(SoftRoof(branch.technology.execution.overlap_exponent))


# --- objectives --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WEIGHTS)
def test_every_objective_is_optimised_and_certified(searched, name):
    _, _, value, bound = searched(study=objective(WEIGHTS[name]))
    assert 0 <= math.expm1(value - bound) <= 1e-6


@pytest.mark.parametrize("name", WEIGHTS)
def test_no_optimum_of_another_objective_beats_an_optimum_at_its_own(searched, name):
    _, x, value, bound = searched(study=objective(WEIGHTS[name]))
    apart = []
    for other, weights in WEIGHTS.items():
        branch, there, _, _ = searched(study=objective(weights))
        measured, violation = value_of(WEIGHTS[name], branch, there)
        assert violation <= 1e-8
        assert measured >= bound
        if other == name:
            assert measured == pytest.approx(value, abs=1e-12)
        else:
            apart.append(measured - value)
    # they do not all ask for the same design
    assert max(apart) > 0.01


def test_a_power_of_an_objective_has_the_same_optimum(searched):
    branch, x, value, _ = searched(study=objective(PRODUCT))
    other, there, doubled, bound = searched(study=objective(PRODUCT, exponent=2.0))
    assert doubled == pytest.approx(2 * value, abs=1e-6)
    assert doubled - bound <= 2e-6
    assert there == pytest.approx(x, abs=1e-6)
    assert int(branch.pools.devices[0]) == int(other.pools.devices[0])


def test_a_reciprocal_asks_for_the_same(searched):
    plain = searched(study='objective = "joules_per_token"')
    other = searched(study='objective = "tokens_per_joule"')
    np.testing.assert_array_equal(plain[1], other[1])
    assert plain[2] == other[2]


def test_the_objectives_by_hand(searched):
    branch, x, value, _ = searched()
    services = point_at(x, branch, soft(branch)).services
    process, prices = branch.technology.process, branch.technology.prices
    nre_usd = float(process.nre_musd) / (1e9 * float(prices.fleet_lifetime_tokens_e15))
    usd = float(services.usd_per_token.sum()) + nre_usd
    devices = np.asarray(branch.pools.devices)
    # prefill makes the first of 500 tokens
    shares = np.array([1.0, 499.0]) / 500.0
    batches = np.array([at(x, "batch_prefill"), at(x, "batch_decode")])
    seconds = float((devices * shares * np.asarray(services.time_ms) / 1e3 / batches).sum())
    expected = {
        "usd_per_million_tokens": 1e6 * usd,
        "joules_per_token": float(services.joules_per_token.sum()),
        "sm_seconds_per_token": at(x, "sm_count") * seconds,
        "package_seconds_per_token": seconds,
    }
    assert list(expected) == list(OBJECTIVES)
    assert math.exp(value) == pytest.approx(expected["usd_per_million_tokens"], rel=1e-12)
    for name, number in expected.items():
        found, _ = value_of({name: 1.0}, branch, x)
        assert math.exp(found) == pytest.approx(number, rel=1e-12)


# --- limits of the study -----------------------------------------------------------------------


def test_a_power_limit_binds_in_whatever_unit(searched):
    _, free, cheapest, _ = searched(die="none")
    _, x, value, bound = searched(die="none", lite='tdp_max = "300 W"')
    _, same, again, _ = searched(die="none", lite='tdp_max = "0.3 kW"')
    assert at(free, "tdp_w") > 301
    assert at(x, "tdp_w") == pytest.approx(300, rel=1e-7)
    assert value > cheapest + 1e-4
    assert 0 <= value - bound <= 1e-6
    assert again == pytest.approx(value, abs=1e-9)
    assert same == pytest.approx(x, abs=1e-6)


def test_a_limit_on_the_bill_of_materials_binds(searched):
    branch, x, cheapest, _ = searched()
    unit_usd = math.exp(value_of_limit(branch, x, "unit_cost_max"))
    cap = 0.8 * unit_usd
    branch, x, value, bound = searched(lite=f'unit_cost_max = "{cap!r} USD"')
    assert value > cheapest + 1e-5
    assert value_of_limit(branch, x, "unit_cost_max") == pytest.approx(0.0, abs=1e-7)
    assert 0 <= value - bound <= 1e-6


def value_of_limit(branch, x, limit):
    """Logarithm of use/limit of one limit, whether it applies or not; of the use, where no limit
    was given.
    """
    point = point_at(x, branch, soft(branch))
    uses, limits = uses_and_limits(
        point.design,
        point.tdp_w,
        point.clocks_ghz,
        point.services,
        branch.pools.limit_ms,
        branch.technology,
        branch.caps,
    )
    row = LIMIT_NAMES.index(limit)
    allowed = 1.0 if limits[row] >= NO_CAP else limits[row]
    return float(np.log(uses[row] / allowed))


STEP = 1e-3


def with_caps(branch, objectives):
    """A branch with other limits on the objectives."""
    caps = jax.tree.map(np.asarray, replace(branch.caps, objectives=objectives))
    return replace(branch, caps=caps)


def test_a_limit_on_energy_binds_and_its_multiplier_is_the_slope_of_the_optimum(searched, tmp_path):
    branch, x, cheapest, _ = searched()
    joules = math.exp(value_of({"joules_per_token": 1.0}, branch, x)[0])
    _, _, least, _ = searched(study='objective = "joules_per_token"')
    cap = math.sqrt(joules * math.exp(least))
    limit = f"limits = {{ joules_per_token = {cap!r} }}"
    branch, x, value, bound = searched(workload=limit)
    assert value > cheapest + 1e-5
    assert 0 <= value - bound <= 1e-6
    assert value_of_limit(branch, x, "joules_per_token_max") == pytest.approx(0.0, abs=1e-7)
    [optimum] = Small(load(tmp_path / "energy.toml", asked(workload=limit))).panel.optima
    assert optimum.soft.value == pytest.approx(math.exp(value), rel=1e-9)
    index = list(OBJECTIVES).index("joules_per_token")
    moved = []
    for steps in (-2, -1, 1, 2):
        objectives = np.array(branch.caps.objectives)
        objectives[index] *= math.exp(steps * STEP)
        moved.append(with_caps(branch, objectives))
    slope = -fourth_order(solve(moved, [x] * 4)[0], STEP)
    assert slope > 1e-2
    assert optimum.multipliers["joules_per_token_max"] == pytest.approx(slope, abs=1e-6)


def test_nothing_is_below_the_least_energy(searched):
    # a limit below the least energy of all designs is infeasible, and `push` finds that energy
    branch, x, least, bound = searched(study='objective = "joules_per_token"')
    pushed = with_caps(push(branch, SINGLE, "joules_per_token_max"), np.ones(len(OBJECTIVES)))
    [found], _ = solve([pushed], [x])
    assert found == pytest.approx(least, abs=1e-7)


# --- bounds of the study -----------------------------------------------------------------------


def test_a_fixed_variable_stays_and_a_bounded_one_ends_at_its_bound(searched, tmp_path):
    _, free, cheapest, _ = searched()
    clock, stacks = at(free, "clock_ghz"), at(free, "memory_stacks")
    most_ghz = 0.7 * clock
    more_stacks = round(1.2 * stacks, 6)
    bounds = (
        f'bounds = {{ memory_stacks = {more_stacks!r}, clock = ["0.5 GHz", "{most_ghz!r} GHz"], '
        "sm_count = [2, 1500] }"
    )
    [optimum] = Small(load(tmp_path / "bounds.toml", asked(lite=bounds))).panel.optima
    values = optimum.run.values
    assert values["memory_stacks"] == pytest.approx(more_stacks, rel=1e-12)
    assert 0.5 <= values["clock_ghz"] <= most_ghz * (1 + 1e-9)
    assert values["clock_ghz"] == pytest.approx(most_ghz, rel=1e-6)
    assert optimum.at_box["clock_ghz"] == "upper bound of the study"
    assert "memory_stacks" not in optimum.at_box
    assert "sm_count" not in optimum.at_box
    assert optimum.soft.value > math.exp(cheapest) * 1.00001
    assert 0 <= optimum.soft.gap <= 1e-6


def test_bounds_that_do_not_bind_change_nothing(searched):
    _, free, cheapest, _ = searched()
    area = at(free, "die_area_mm2")
    wide = f'bounds = {{ die_area = ["{0.5 * area!r} mm^2", "{1.5 * area!r} mm^2"] }}'
    _, x, value, bound = searched(lite=wide)
    assert value == pytest.approx(cheapest, abs=1e-8)
    assert 0 <= value - bound <= 1e-6
