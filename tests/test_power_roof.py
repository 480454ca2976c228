"""A phase slows down to stay within the TDP: one more roof, `max(t, E/(TDP - S))`."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litegpu_opt.catalog import technology
from litegpu_opt.execution.roofline import SoftRoof, for_pools
from litegpu_opt.limits import LIMIT_NAMES, Caps
from litegpu_opt.machine.power import energy_costs, rated_power_w
from litegpu_opt.numerics import scalar
from litegpu_opt.optimizer.branches import Task, candidate_branches, stacked_pools
from litegpu_opt.optimizer.layout import BOX, VARIABLES
from litegpu_opt.optimizer.problem import objective_and_limits, point_at
from litegpu_opt.serving import MOST_STATIC_SHARE, capped_time_ms
from litegpu_opt.workload.huggingface import read_transformer
from litegpu_opt.workload.precision import Precision
from litegpu_opt.workload.traffic import make_workload


LOWER, UPPER = np.log([BOX[name] for name in VARIABLES]).T
SLOT = {name: i for i, name in enumerate(VARIABLES)}
CLOCKS = [SLOT["clock_prefill_ghz"], SLOT["clock_decode_ghz"]]
MANY = 20_000

time_ms = jax.jit(capped_time_ms)
logs = st.floats(-7, 7).map(math.exp)
shares = st.floats(0.0, 1.0)


def capped(roof_ms, dynamic_j, static_w, tdp_w, on=1.0):
    return float(time_ms(*map(scalar, (roof_ms, dynamic_j, static_w, tdp_w, on))))


# --- the roof alone ----------------------------------------------------------------------------


@given(logs, logs, logs, st.floats(1e-6, MOST_STATIC_SHARE))
def test_the_time_is_the_larger_one_to_a_percent(roof_ms, dynamic_j, tdp_w, share):
    power_ms = 1e3 * dynamic_j / (tdp_w * (1 - share))
    exact_ms = max(roof_ms, power_ms)
    found = capped(roof_ms, dynamic_j, share * tdp_w, tdp_w)
    # a norm of exponent 64 exceeds the maximum of two by 2^(1/64) = 1.1 % at most
    assert exact_ms * (1 - 1e-12) <= found <= 1.012 * exact_ms


@given(logs, logs, shares)
def test_the_roof_is_untouched_at_four_fifths_of_the_tdp(roof_ms, tdp_w, share):
    static_w = 0.8 * share * tdp_w + 1e-9 * tdp_w
    dynamic_j = (0.8 * tdp_w - static_w) * roof_ms / 1e3
    assert capped(roof_ms, max(dynamic_j, 0.0), static_w, tdp_w) == pytest.approx(
        roof_ms, rel=1e-8, abs=0.0
    )


@given(logs, logs, logs, logs)
def test_switched_off_it_is_the_roof(roof_ms, dynamic_j, static_w, tdp_w):
    assert capped(roof_ms, dynamic_j, static_w, tdp_w, 0.0) == pytest.approx(roof_ms, rel=1e-12)


@given(logs, st.floats(-20, 20).map(math.exp), st.sampled_from([0.0, 1.0]))
def test_time_and_slopes_are_finite_however_much_is_static(roof_ms, share, on):
    arguments = [scalar(value) for value in (roof_ms, 1.0, share, 1.0, on)]
    value, slopes = jax.value_and_grad(lambda *a: jnp.log(capped_time_ms(*a)), range(5))(*arguments)
    assert np.isfinite(value) and np.all(np.isfinite(slopes))


def test_the_tangent_continues_value_and_slope():
    def log_time(log_share):
        static_w = jnp.exp(log_share)
        return jnp.log(capped_time_ms(scalar(1e-6), scalar(1.0), static_w, scalar(1.0), scalar(1)))

    edge = math.log(MOST_STATIC_SHARE)
    for side in (-1e-9, 1e-9):
        value, slope = jax.value_and_grad(log_time)(jnp.asarray(edge + side))
        # 1 J at 1 W, of which 5 % are left: 20 s; d(-log(1 - u))/d(log u) = u/(1 - u) = 19
        assert float(value) == pytest.approx(math.log(20e3), abs=1e-7)
        assert float(slope) == pytest.approx(19.0, rel=1e-6)
    assert float(jax.grad(log_time)(jnp.asarray(2.0))) == pytest.approx(19.0, rel=1e-12)


# --- in the model ------------------------------------------------------------------------------


AT_PEAK = {
    f"execution.{name}": 1.0
    for name in (
        "compute_efficiency_bf16",
        "compute_efficiency_fp8",
        "attention_efficiency",
        "memory_efficiency",
    )
}
"""Software that draws more than a design is rated for."""


@functools.cache
def branch(dies=1, peak=False):
    workload = make_workload(
        read_transformer("llama-3.1-70b"),
        Precision("fp8", "fp8", "bf16", "bf16"),
        prompt_tokens=1500,
        output_tokens=500,
        ttft_ms=1000,
        tbt_ms=50,
    )
    [(_, made)] = candidate_branches(
        Task({"": workload}, {"usd_per_million_tokens": 1.0}),
        {"t": technology(AT_PEAK if peak else {})},
        pools=stacked_pools(workload, [(2, 4)]),
        aspect_ratios=[1.27],
        dies_per_package=[dies],
        caps=Caps(),
        bounds={},
    )
    return jax.tree.map(jnp.asarray, made)


def soft(made):
    return for_pools(SoftRoof(made.technology.execution.overlap_exponent))


def switched(made, on):
    return eqx.tree_at(lambda b: b.technology.execution.power_capped, made, scalar(on))


@jax.jit
def draws(points, made):
    """Of both pools: power drawn while busy over the TDP, and time with and without the cap."""

    def one(x):
        point = point_at(x, made, soft(made))
        free = point_at(x, switched(made, 0.0), soft(made)).services.time_ms
        drawn_w = 1e3 * point.services.device_j / point.services.time_ms
        return drawn_w / point.tdp_w, point.services.time_ms, free

    return jax.vmap(one)(points)


@jax.jit
def at_rated_power(points, made):
    """The same designs with a TDP of what they are rated for, run within their clock."""

    def one(x):
        x = x.at[jnp.array(CLOCKS)].set(jnp.minimum(x[jnp.array(CLOCKS)], x[SLOT["clock_ghz"]]))
        powers = rated_power_w(point_at(x, made, soft(made)).design, made.technology)
        return x.at[SLOT["tdp_w"]].set(jnp.log(jnp.max(jnp.stack(powers))))

    return jax.vmap(one)(points)


def random_points(seed):
    return np.random.default_rng(seed).uniform(LOWER, UPPER, size=(MANY, len(VARIABLES)))


@pytest.mark.parametrize(("dies", "peak"), [(1, False), (1, True), (4, True)])
def test_no_design_that_meets_its_rated_limits_draws_more_than_its_tdp(dies, peak):
    made = branch(dies, peak)
    points = at_rated_power(random_points(1), made)
    values = jax.jit(jax.vmap(lambda x: objective_and_limits(x, made, soft(made))))(points)
    rated = [1 + i for i, name in enumerate(LIMIT_NAMES) if name.startswith("rated_")]
    assert np.max(np.asarray(values)[:, rated]) <= 1e-12
    share, time, free = map(np.asarray, draws(points, made))
    assert share.max() <= 1.001
    # the cap is what keeps them there: software at its peak would draw more with some designs
    slowed = time > 1.01 * free
    assert slowed.any() == peak
    assert share[slowed].min(initial=1.0) > 0.95
    # and it leaves alone who stays below four fifths
    calm = share < 0.8
    assert calm.sum() > MANY / 10
    np.testing.assert_allclose(time[calm], free[calm], rtol=1e-8)


def test_time_is_the_larger_of_both_roofs_in_the_model():
    made = branch()
    points = at_rated_power(random_points(2), made)

    @jax.jit
    @jax.vmap
    def shares(x):
        point = point_at(x, made, soft(made))
        energy = jax.vmap(lambda c: energy_costs(point.design, c, made.technology))(
            point.clocks_ghz
        )
        return energy.static_w / point.tdp_w

    drawn, time, free = map(np.asarray, draws(points, made))
    static = np.asarray(shares(points))
    # drawn = static + E/time, so that E/(TDP - static) follows from the time itself
    powered = time * (drawn - static) / (1.0 - static)
    usual = static <= MOST_STATIC_SHARE
    exact = np.maximum(free, powered)[usual]
    assert np.all(exact * (1 - 1e-9) <= time[usual])
    assert np.all(time[usual] <= 1.012 * exact)


def test_gradients_are_finite_where_static_power_exceeds_the_tdp():
    made = branch(2)
    corners = np.array(
        [
            [(LOWER, UPPER)[(number >> i) & 1][i] for i in range(len(VARIABLES))]
            for number in range(2 ** len(VARIABLES))
        ]
    )

    @jax.jit
    def slopes(points):
        def one(x):
            point = point_at(x, made, soft(made))
            static_w = energy_costs(point.design, point.clocks_ghz[1], made.technology).static_w

            def total(x, tree):
                there = eqx.tree_at(lambda b: b.technology, made, tree)
                return jnp.sum(objective_and_limits(x, there, soft(there)))

            value, parts = jax.value_and_grad(total, argnums=(0, 1))(x, made.technology)
            finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((value, parts))]
            return jnp.all(jnp.stack(finite)), static_w / point.tdp_w

        return jax.vmap(one)(points)

    parts = [slopes(part) for part in np.split(corners, 8)]
    finite = np.concatenate([part[0] for part in parts])
    share = np.concatenate([part[1] for part in parts])
    assert (share > 1.0).sum() > 100 and (share < 1.0).sum() > 100
    assert finite.all()
