"""The interior point and the certificate on random geometric programs, against Clarabel."""

import functools
import math
import warnings

import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from litegpu_opt.optimizer import interior
from litegpu_opt.optimizer.certificate import lower_bounds


VARIABLES, LIMITS, TERMS = 6, 6, 4
"""Largest sizes; smaller problems are padded with terms that vanish and limits that never bind."""

LOWER, UPPER = np.full(VARIABLES, -2.0), np.full(VARIABLES, 2.0)
NEVER = -60.0
"""Logarithm of a coefficient that is as good as zero."""
COUNT = 60
STEPS = 60


def posynomials(exponents, logs):
    """`x -> log sum_k exp(a_ik . x + b_ik)`, shape `(1 + limits,)`: objective and limits."""
    return lambda x: jax.nn.logsumexp(exponents @ x + logs, axis=1)


def random_programs(seed, feasible):
    """Exponents `(COUNT, 1 + LIMITS, TERMS, VARIABLES)`, logarithms of coefficients, and sizes.

    Feasible ones hold with a margin at some point of the box. In infeasible ones two limits
    contradict each other: `m(x) <= 1/c` and `1/m(x) <= 1/c` with a monomial m and c > 1.
    """
    random = np.random.default_rng(seed)
    exponents = random.normal(size=(COUNT, 1 + LIMITS, TERMS, VARIABLES))
    logs = random.normal(size=(COUNT, 1 + LIMITS, TERMS))
    n = random.integers(2, VARIABLES + 1, size=COUNT)
    m = random.integers(1 if feasible else 2, LIMITS + 1, size=COUNT)
    inside = random.uniform(-1.0, 1.0, size=(COUNT, VARIABLES))
    for i in range(COUNT):
        exponents[i, :, :, n[i] :] = 0.0
        exponents[i, 1 + m[i] :] = 0.0
        logs[i, 1 + m[i] :] = NEVER
        value = np.asarray(posynomials(exponents[i], logs[i])(inside[i]))
        margin = random.uniform(0.05, 0.5, size=m[i])
        logs[i, 1 : 1 + m[i]] -= (value[1 : 1 + m[i]] + margin)[:, None]
        if not feasible:
            logs[i, 1:3, 1:] = NEVER
            exponents[i, 2, 0] = -exponents[i, 1, 0]
            logs[i, 1:3, 0] = random.uniform(0.05, 1.0)
    return exponents, logs, n, m


@jax.jit
def _solve(exponents, logs, starts):
    """All programs as lanes, with solution, objective, and the bounds of (1, l) and (0, l)."""
    lower, upper = jnp.asarray(LOWER), jnp.asarray(UPPER)

    def advance(exponents, logs, state):
        return interior.step(posynomials(exponents, logs), state, lower, upper)

    def body(_, states):
        return jax.vmap(advance)(exponents, logs, states)

    def begin(exponents, logs, x):
        return interior.start(posynomials(exponents, logs), x, lower, upper)

    def finish(exponents, logs, state):
        functions = posynomials(exponents, logs)
        found = interior.solution(functions, state)
        weights = jnp.maximum(found.multipliers, 0.0)
        rows = jnp.stack([jnp.append(1.0, weights), jnp.append(0.0, weights)])
        values, bounds = lower_bounds(functions, found.x, rows, lower, upper)
        return found, values[0], bounds[0], bounds[1]

    states = jax.vmap(begin)(exponents, logs, starts)
    states = jax.lax.fori_loop(0, STEPS, body, states)
    return jax.vmap(finish)(exponents, logs, states)


def solve(programs, starts=None, seed=0):
    exponents, logs, _, _ = programs
    if starts is None:
        starts = np.random.default_rng(seed).uniform(LOWER, UPPER, size=(COUNT, VARIABLES))
    return jax.device_get(_solve(exponents, logs, starts))


FEASIBLE, INFEASIBLE = (random_programs(seed, seed == 1) for seed in (1, 2))


def by_clarabel(exponents, logs, n, m):
    """Logarithm of the least value, and multipliers of the limits, of a geometric program.

    `None` where Clarabel itself does not reach its accuracy.
    """
    x = cvxpy.Variable(n, pos=True)

    def posynomial(i):
        terms = [
            float(np.exp(log)) * cvxpy.prod([x[j] ** float(row[j]) for j in range(n)])
            for row, log in zip(exponents[i], logs[i], strict=True)
        ]
        return sum(terms[1:], start=terms[0])

    limits = [posynomial(1 + i) <= 1.0 for i in range(m)]
    box = [x >= np.exp(LOWER[:n]), x <= np.exp(UPPER[:n])]
    problem = cvxpy.Problem(cvxpy.Minimize(posynomial(0)), limits + box)
    for tolerance in (1e-9, 1e-8):
        accuracy = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), tolerance)
        with warnings.catch_warnings():
            # it warns where it does not reach the accuracy asked for
            warnings.simplefilter("ignore", UserWarning)
            problem.solve(gp=True, solver=cvxpy.CLARABEL, **accuracy)
        if problem.status == "optimal":
            return math.log(problem.value), np.array([float(row.dual_value) for row in limits])
    return None


@functools.cache
def reference(number):
    """The same of one of the feasible programs."""
    return by_clarabel(*(part[number] for part in FEASIBLE))


@functools.cache
def found():
    return solve(FEASIBLE)


def test_the_programs_are_of_all_sizes_and_bind_at_limits_and_box():
    _, _, n, m = FEASIBLE
    assert set(n) == set(range(2, 7)) and set(m) == set(range(1, 7))
    solution, *_ = found()
    binding = (solution.multipliers > 1e-6).sum(axis=1)
    assert binding.min() == 0 and binding.max() >= 2
    at_box = [np.any(np.abs(x[:k]) > 2 - 1e-6) for x, k in zip(solution.x, n, strict=True)]
    assert 0 < np.sum(at_box) < COUNT
    # the exact penalty is not the binding constraint
    assert solution.multipliers.sum(axis=1).max() < interior.PENALTY / 2


def test_every_lane_reaches_a_kkt_point():
    solution, *_ = found()
    assert solution.residual.max() <= 1e-9
    assert solution.relaxation.max() <= 1e-9
    assert solution.steps.max() < STEPS


@pytest.mark.parametrize("number", range(COUNT))
def test_value_and_multipliers_are_those_of_clarabel(number):
    value, multipliers = reference(number)
    solution, ours, _, _ = found()
    m = FEASIBLE[3][number]
    assert ours[number] == pytest.approx(value, abs=1e-6)
    assert solution.multipliers[number][:m] == pytest.approx(multipliers, abs=1e-4)
    assert solution.multipliers[number][m:] == pytest.approx(0.0, abs=1e-8)


@settings(max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, VARIABLES),
    st.integers(0, LIMITS),
    st.floats(0.2, 3.0),
    st.floats(0.0, 0.6),
)
def test_any_program_is_solved_as_clarabel_does(seed, n, m, steepness, sparsity):
    """Of any size, gentle or steep, dense or sparse; all lanes are the same program."""
    random = np.random.default_rng(seed)
    exponents = steepness * random.normal(size=(1 + LIMITS, TERMS, VARIABLES))
    exponents[random.uniform(size=exponents.shape) < sparsity] = 0.0
    exponents[:, :, n:] = 0.0
    exponents[1 + m :] = 0.0
    logs = random.normal(size=(1 + LIMITS, TERMS))
    logs[1 + m :] = NEVER
    inside = np.asarray(posynomials(exponents, logs)(random.uniform(-1.0, 1.0, VARIABLES)))
    logs[1 : 1 + m] -= (inside[1 : 1 + m] + random.uniform(0.05, 0.5, m))[:, None]
    expected = by_clarabel(exponents, logs, n, m)
    assume(expected is not None)
    value, multipliers = expected
    starts = random.uniform(LOWER, UPPER, size=(COUNT, VARIABLES))
    many = (np.broadcast_to(part, (COUNT, *part.shape)) for part in (exponents, logs))
    solution, ours, bound, _ = solve((*many, None, None), starts)
    assert solution.residual.max() <= 1e-7
    assert ours == pytest.approx(value, abs=1e-6)
    assert np.all(bound <= value + 1e-8) and (ours - bound).max() <= 1e-6
    assert np.abs(solution.multipliers[:, :m] - multipliers).max(initial=0.0) <= 1e-4


def test_the_bound_is_below_the_optimum_and_tight():
    _, value, bound, proof = found()
    best = np.array([reference(i)[0] for i in range(COUNT)])
    assert np.all(bound <= value) and np.all(bound <= best + 1e-9)
    assert (value - bound).max() <= 1e-6
    assert np.all(proof <= 0.0)


def test_the_optimum_does_not_depend_on_the_start():
    values = [solve(FEASIBLE, seed=seed)[1] for seed in range(4)]
    assert np.ptp(values, axis=0).max() <= 1e-8


def test_the_bound_holds_for_any_point_and_any_multipliers():
    random = np.random.default_rng(5)
    best = np.array([reference(i)[0] for i in range(COUNT)])
    exponents, logs = FEASIBLE[:2]

    @jax.jit
    @jax.vmap
    def bounds(exponents, logs, x, weights):
        rows = jnp.stack([jnp.append(1.0, weights), jnp.append(0.0, weights)])
        functions = posynomials(exponents, logs)
        return lower_bounds(functions, x, rows, jnp.asarray(LOWER), jnp.asarray(UPPER))[1]

    for scale in (0.0, 0.1, 1.0, 10.0):
        x = random.uniform(LOWER, UPPER, size=(COUNT, VARIABLES))
        weights = scale * random.exponential(size=(COUNT, LIMITS))
        bound, proof = np.asarray(bounds(exponents, logs, x, weights)).T
        assert np.all(bound <= best + 1e-9)
        assert np.all(proof <= 0.0)


def test_infeasibility_is_measured_and_proved():
    solution, _, _, proof = solve(INFEASIBLE)
    assert solution.relaxation.min() > 1e-3
    # The multipliers minimise f + K tau, so J' lambda = -grad f instead of 0, and the proof loses
    # what f can fall over the box: a relaxation that costs less than that stays unproved.
    steepest = np.abs(INFEASIBLE[0][:, 0]).max(axis=1)
    fall = (steepest * (UPPER - LOWER)).sum(axis=1)
    certain = interior.PENALTY * solution.relaxation > fall
    assert certain.sum() > COUNT / 2
    assert proof[certain].min() > 0.0
    assert np.mean(proof > 0.0) > 0.95


def test_without_an_objective_every_infeasible_program_is_proved_so():
    exponents, logs, n, m = INFEASIBLE
    exponents, logs = exponents.copy(), logs.copy()
    exponents[:, 0] = 0.0
    logs[:, 0] = NEVER
    logs[:, 0, 0] = 0.0
    solution, _, _, proof = solve((exponents, logs, n, m))
    assert proof.min() > 0.0
    # the proof is tight: the least common relaxation, K times
    assert proof == pytest.approx(interior.PENALTY * solution.relaxation, rel=1e-6)


def test_the_relaxation_is_the_least_common_one():
    # two contradicting monomials c m(x) <= tau, c/m(x) <= tau alone: tau is log c
    exponents = np.zeros((COUNT, 1 + LIMITS, TERMS, VARIABLES))
    logs = np.full((COUNT, 1 + LIMITS, TERMS), NEVER)
    exponents[:, 0, 0, 0] = 1.0
    logs[:, 0, 0] = 0.0
    # a little curvature everywhere, so that the optimum is unique
    exponents[:, 0, 1:3, :] = np.array([1.0, -1.0])[:, None]
    logs[:, 0, 1:3] = -2.0
    exponents[:, 1, 0, 0], exponents[:, 2, 0, 0] = 1.0, -1.0
    excess = np.linspace(0.01, 1.0, COUNT)
    logs[:, 1, 0] = logs[:, 2, 0] = excess
    solution, *_ = solve((exponents, logs, None, None))
    assert solution.relaxation == pytest.approx(excess, abs=1e-6)


def test_one_failing_lane_does_not_disturb_the_others():
    starts = np.random.default_rng(3).uniform(LOWER, UPPER, size=(COUNT, VARIABLES))
    whole = solve(FEASIBLE, starts)
    starts[7] = np.nan
    broken = solve(FEASIBLE, starts)
    others = np.arange(COUNT) != 7
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(broken), strict=True):
        np.testing.assert_array_equal(a[others], b[others])
    # and it cannot be taken for a solution or for a proof
    solution, _, bound, proof = broken
    assert not solution.residual[7] <= 1e-7
    assert not proof[7] > 0.0
    assert not np.isfinite(bound[7])


def test_solving_twice_gives_the_same_bits():
    first, second = solve(FEASIBLE, seed=9), solve(FEASIBLE, seed=9)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)
