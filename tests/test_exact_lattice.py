"""The exact optimum of a lattice against all of its points, and the proof that there is none."""

import itertools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_study import STUDY, load
from test_experts_search import MIXTURE

from litegpu_opt.errors import UserError
from litegpu_opt.execution.roofline import HardRoof, SoftRoof, for_pools
from litegpu_opt.machine.power import thermal_design_power_w
from litegpu_opt.optimizer.exact import lattice_optimum
from litegpu_opt.optimizer.exact.lattice import TIES, make_lattice
from litegpu_opt.optimizer.exact.search import GAP
from litegpu_opt.optimizer.experts import with_all_batches
from litegpu_opt.optimizer.groups import study_groups, study_workloads
from litegpu_opt.optimizer.problem import design_at, objective_and_limits


pytestmark = pytest.mark.slow

AXES = {
    "die_area_mm2": np.geomspace(100.0, 214.5, 4),
    "sm_count": np.geomspace(16.0, 64.0, 5),
    "memory_stacks": (1.0, 2.0, 3.0),
    "network_gb_s": (50.0, 100.0, 200.0),
    "batch_prefill": (1.0, 2.0, 4.0),
    "batch_decode": np.geomspace(8.0, 128.0, 5),
    "clock_decode_ghz": (1.2, 1.4, 1.6, 1.8),
}
"""10,800 points."""
HELD = {"clock_prefill_ghz": 1.6}
TIED = tuple(TIES)
ROUNDING = 1e-8
HARD = pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])


def group_of(text, folder):
    study = load(folder / "study.toml", text)
    return next(
        group for group in study_groups(study, study_workloads(study)) if group.name == "lite"
    )


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    return group_of(STUDY, tmp_path_factory.mktemp("lattice"))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return group_of(MIXTURE, tmp_path_factory.mktemp("mixture"))


def of_degrees(group, *pair):
    return next(branch for choice, branch in group.branches if choice.pairs == (pair,))


def roofs_of(branch, hard):
    return for_pools(HardRoof() if hard else SoftRoof(branch.technology.execution.overlap_exponent))


@jax.jit
def _feasible_values(x, branch, ties, roofs):
    def one(x):
        values = objective_and_limits(ties(x, branch), branch, roofs)
        return jnp.where(jnp.max(values[1:]) <= 1e-9, values[0], jnp.inf)

    return jax.vmap(one)(x)


def visited(branch, group, axes, hard):
    """Objective of every point of a lattice, infinite where a limit is violated."""
    lattice = make_lattice(branch, group.layout, axes, held=HELD, tied=TIED)
    indices = np.array(list(itertools.product(*(range(n + 1) for n in lattice.last))))
    x = lattice.logs(indices)
    return np.array(_feasible_values(x, lattice.branch, lattice.ties, roofs_of(branch, hard)))


@HARD
@pytest.mark.parametrize("tightened", [True, False])
def test_it_is_the_best_of_all_points(group, hard, tightened):
    branch = of_degrees(group, 2, 2)
    found = lattice_optimum(
        branch, group.layout, AXES, held=HELD, tied=TIED, hard=hard, tightened=tightened
    )
    values = visited(branch, group, AXES, hard)
    assert found.points == values.size == 10_800
    assert np.isfinite(values).sum() > 100
    assert found.value == pytest.approx(values.min(), abs=ROUNDING)
    assert found.value - 2.0 * GAP <= found.bound <= found.value
    assert found.proved and found.undecided == 0
    # the point is one of the lattice, and the relaxed optimum is below it
    assert all(found.values[name] in axis for name, axis in AXES.items())
    assert found.values["clock_prefill_ghz"] == HELD["clock_prefill_ghz"]
    assert found.relaxed_bound <= found.value


@HARD
def test_what_lies_outside_the_narrowed_ranges_is_no_better(group, hard):
    branch = of_degrees(group, 2, 2)
    found = lattice_optimum(branch, group.layout, AXES, held=HELD, tied=TIED, hard=hard)
    values = visited(branch, group, AXES, hard).reshape([len(axis) for axis in AXES.values()])
    inside = np.ix_(
        *[
            (low * 0.999 <= np.array(axis)) & (np.array(axis) <= high * 1.001)
            for axis, (low, high) in zip(AXES.values(), found.kept.values(), strict=True)
        ]
    )
    assert found.points_kept == values[inside].size < values.size
    values[inside] = np.inf
    assert values.min() >= found.value - GAP


def test_tied_variables_have_their_least_value(group):
    branch = of_degrees(group, 2, 2)
    values = lattice_optimum(branch, group.layout, AXES, held=HELD, tied=TIED).values
    assert values["clock_ghz"] == pytest.approx(
        max(values["clock_prefill_ghz"], values["clock_decode_ghz"]), rel=1e-12
    )
    x = np.log([values[name] for name in group.layout.variables])
    design = design_at(x, branch)
    tdp_w = float(thermal_design_power_w(design, branch.technology))
    assert values["tdp_w"] == pytest.approx(tdp_w, rel=1e-9)
    # a hundredth less memory breaks one of its limits
    slot = group.layout.variables.index("memory_gb")
    limits = objective_and_limits(x - 0.01 * np.eye(len(x))[slot], branch, roofs_of(branch, False))
    assert float(limits[1:].max()) == pytest.approx(0.01, rel=1e-6)


def test_ties_grow_with_every_axis(group):
    # what makes their range over a box that of its corners
    branch = of_degrees(group, 2, 2)
    lattice = make_lattice(branch, group.layout, AXES, held=HELD, tied=TIED)
    tied = np.array([group.layout.variables.index(name) for name in TIES])
    random = np.random.default_rng(0)
    indices = random.integers(lattice.last + 1, size=(200, len(AXES)))
    slopes = jax.vmap(jax.jacfwd(lambda x: lattice.ties(x, lattice.branch)))(lattice.logs(indices))
    assert float(slopes[:, tied][:, :, lattice.slots].min()) >= 0.0


@HARD
def test_an_infeasible_lattice_is_proved_so(group, hard):
    branch = of_degrees(group, 2, 2)
    # 70 GB of weights on two devices with one stack each: no room for thousands of sequences
    crowded = AXES | {"memory_stacks": (1.0,), "batch_decode": (2000.0, 4000.0)}
    limit_ms = np.minimum(branch.pools.limit_ms, 2.0)
    for hopeless, axes in (
        (replace(branch, pools=replace(branch.pools, limit_ms=limit_ms)), AXES),
        (branch, crowded),
    ):
        found = lattice_optimum(hopeless, group.layout, axes, held=HELD, tied=TIED, hard=hard)
        assert not np.isfinite(visited(hopeless, group, axes, hard)).any()
        assert found.values is None and found.value == found.bound == math.inf
        assert found.proved
        assert found.boxes < found.points / 10


def test_a_lattice_without_feasible_points_between_feasible_ones_is_proved_so(group):
    # the relaxed problem is feasible, its two neighbours in the SMs are not
    branch = of_degrees(group, 2, 2)
    axes = AXES | {"sm_count": (4.0, 120.0)}
    found = lattice_optimum(branch, group.layout, axes, held=HELD, tied=TIED)
    assert not np.isfinite(visited(branch, group, axes, False)).any()
    assert math.isfinite(found.relaxed_bound)
    assert found.values is None and found.bound == math.inf


def test_batches_of_a_mixture_of_experts(mixture):
    branch = with_all_batches(of_degrees(mixture, 1, 1))
    axes = AXES | {"batch_decode": np.geomspace(1.0, 64.0, 13)}
    found = lattice_optimum(branch, mixture.layout, axes, held=HELD, tied=TIED)
    values = visited(branch, mixture, axes, False)
    assert np.isfinite(values).any()
    assert found.value == pytest.approx(values.min(), abs=ROUNDING)
    assert found.proved
    assert found.boxes < found.points


@pytest.mark.parametrize(
    "axes, held, tied, message",
    [
        (AXES | {"sm_counts": (1.0,)}, HELD, TIED, "did you mean sm_count?"),
        (AXES, {}, TIED, "clock_prefill_ghz is neither an axis nor held nor tied"),
        (AXES, HELD | {"sm_count": 3.0}, TIED, "sm_count is given twice"),
        (AXES | {"sm_count": (0.0, 3.0)}, HELD, TIED, "allowed: 1 to 2000"),
        (AXES | {"sm_count": ()}, HELD, TIED, "sm_count has no values"),
        (AXES | {"sm_count": (1.0, math.nan)}, HELD, TIED, "sm_count has no values, or some"),
        ({}, HELD | {name: axis[0] for name, axis in AXES.items()}, TIED, "no axis has two values"),
        (AXES, HELD, (*TIED, "sm_count"), "sm_count cannot be tied"),
    ],
)
def test_bad_lattices_are_refused(group, axes, held, tied, message):
    with pytest.raises(UserError, match="lattice: ") as error:
        lattice_optimum(of_degrees(group, 2, 2), group.layout, axes, held=held, tied=tied)
    assert message in str(error.value)
