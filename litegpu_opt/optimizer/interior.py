"""Primal-dual interior point for smooth convex problems over a box.

    minimise f(x) + K tau   subject to   g_i(x) <= tau,  lower <= x <= upper,  tau >= 0

The relaxation tau makes every start strictly feasible, so there is no phase I; a
tau that stays positive is the report of an infeasible problem, and says by how
much. Method: Boyd & Vandenberghe, Convex Optimization, section 11.7. One Jacobian
and one Hessian a step; the box is handled in closed form.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array


Functions = Callable[[Array], Array]
"""`x (n,) -> [f, g_1, ..., g_m] (1 + m,)`."""

PENALTY = 100.0
"""K; must exceed the sum of the multipliers."""
CENTRING = 10.0
"""Factor by which each step aims to shrink the complementarity gap."""
TOLERANCE = 1e-10
STEP_LENGTHS = (1.0, 0.3, 0.1, 0.02)
"""Tried at once, as shares of the longest step that keeps the multipliers positive."""
KEEP_INSIDE = 0.02
"""Starts are moved this share of the box away from its faces."""


class Duals(eqx.Module):
    """Multipliers (or slacks) of the limits, the two sides of the box, and tau >= 0."""

    limits: Array
    lower: Array
    upper: Array
    relaxation: Array


class State(eqx.Module):
    """Iterate of one lane."""

    x: Array
    relaxation: Array
    multipliers: Duals
    complementarity: Array
    """Least mean product of a slack and its multiplier so far: how far along the central path."""
    residual: Array
    """Largest component of the stationarity condition, and total complementarity."""
    steps: Array
    done: Array


class Solution(eqx.Module):
    """Where a lane ended. Failure is data: read `residual` and `relaxation`."""

    x: Array
    multipliers: Array
    """Of the limits g, `(m,)`."""
    relaxation: Array
    """Relaxation of the limits at the end: about 0 where the problem is feasible. Where it is not,
    this is the relaxation that is worth its penalty, not the smallest one."""
    residual: Array
    """Largest violation of stationarity, complementarity or feasibility."""
    steps: Array


def _dot(a: Duals, b: Duals) -> Array:
    products = jax.tree.map(lambda p, q: jnp.sum(p * q), a, b)
    return jnp.sum(jnp.stack(jax.tree.leaves(products)))


def _mean_product(slacks: Duals, multipliers: Duals) -> Array:
    return _dot(slacks, multipliers) / sum(leaf.size for leaf in jax.tree.leaves(slacks))


def _slacks(x: Array, relaxation: Array, g: Array, lower: Array, upper: Array) -> Duals:
    return Duals(relaxation - g, x - lower, upper - x, relaxation)


def _stationarity(gradient: Array, multipliers: Duals) -> tuple[Array, Array]:
    """Gradient of the Lagrangian in (x, tau); `gradient` is that of f + sum of multipliers x g."""
    return (
        gradient - multipliers.lower + multipliers.upper,
        PENALTY - jnp.sum(multipliers.limits) - multipliers.relaxation,
    )


def _weighted(functions: Functions, x: Array, multipliers: Duals) -> tuple[Array, Array]:
    """Values `[f, g]` at x, and the gradient of `f + multipliers . g`."""
    values, pull = jax.vjp(functions, x)
    return values, pull(jnp.concatenate([jnp.ones(1), multipliers.limits]))[0]


def value_and_jacobian(function: Callable[[Array], Any], x: Array) -> tuple[Any, Any]:
    """Value of a function of `(n,)` and its derivative with a trailing axis `(n,)`, in one pass."""
    value, push = jax.linearize(function, x)
    return value, jax.vmap(push, out_axes=-1)(jnp.eye(x.size))


def start(functions: Functions, x: Array, lower: Array, upper: Array) -> State:
    """A strictly feasible iterate from any point."""
    margin = KEEP_INSIDE * (upper - lower)
    x = jnp.clip(x, lower + margin, upper - margin)
    values, _ = jax.vjp(functions, x)
    relaxation = jnp.maximum(jnp.max(values[1:]), 0.0) + 0.5
    slacks = _slacks(x, relaxation, values[1:], lower, upper)
    multipliers = jax.tree.map(lambda s: 1.0 / s, slacks)
    balance = jnp.maximum(PENALTY - jnp.sum(multipliers.limits), 1.0)
    multipliers = eqx.tree_at(lambda d: d.relaxation, multipliers, balance)
    return State(
        x=x,
        relaxation=relaxation,
        multipliers=multipliers,
        complementarity=_mean_product(slacks, multipliers),
        residual=jnp.array(jnp.inf),
        steps=jnp.array(0),
        done=jnp.array(False),
    )


def step(functions: Functions, state: State, lower: Array, upper: Array) -> State:
    """One Newton step on the perturbed KKT conditions with a backtracking line search."""
    x, tau, duals = state.x, state.relaxation, state.multipliers
    (values, _), (jacobian, hessian) = value_and_jacobian(
        lambda y: _weighted(functions, y, duals), x
    )
    grad_f, jac_g = jacobian[0], jacobian[1:]

    slacks = _slacks(x, tau, values[1:], lower, upper)
    target = _mean_product(slacks, duals) / CENTRING
    stiffness = jax.tree.map(lambda lam, s: lam / s, duals, slacks)
    push = jax.tree.map(lambda s: target / s, slacks)

    # Newton matrix and right-hand side in (x, tau)
    scaled = stiffness.limits[:, None] * jac_g
    top = hessian + jac_g.T @ scaled + jnp.diag(stiffness.lower + stiffness.upper)
    side = -jnp.sum(scaled, axis=0)
    corner = jnp.sum(stiffness.limits) + stiffness.relaxation
    matrix = jnp.block([[top, side[:, None]], [side[None, :], corner[None, None]]])
    rhs = -jnp.append(
        grad_f + jac_g.T @ push.limits - push.lower + push.upper,
        PENALTY - jnp.sum(push.limits) - push.relaxation,
    )
    scale = jax.lax.rsqrt(jnp.maximum(jnp.diag(matrix), 1e-300))
    factor = jnp.linalg.cholesky(matrix * scale[:, None] * scale[None, :])
    move = scale * jax.scipy.linalg.cho_solve((factor, True), scale * rhs)
    dx, dtau = move[:-1], move[-1]

    d_slacks = Duals(dtau - jac_g @ dx, dx, -dx, dtau)
    d_duals = jax.tree.map(lambda lam, p, k, ds: p - lam - k * ds, duals, push, stiffness, d_slacks)

    def longest(value: Array, change: Array) -> Array:
        """Largest step that keeps `value + step * change` positive."""
        return jnp.min(jnp.where(change < 0.0, -value / jnp.minimum(change, -1e-300), jnp.inf))

    limits_of_step = jax.tree.map(longest, duals, d_duals)
    box_of_step = [
        longest(getattr(slacks, side), getattr(d_slacks, side))
        for side in ("lower", "upper", "relaxation")
    ]
    longest_step = 0.99 * jnp.min(jnp.stack([*jax.tree.leaves(limits_of_step), *box_of_step]))
    longest_step = jnp.minimum(1.0, longest_step)

    def norm(gradient: Array, multipliers: Duals, slacks: Duals) -> Array:
        dual_x, dual_tau = _stationarity(gradient, multipliers)
        central = jax.tree.map(lambda lam, s: lam * s - target, multipliers, slacks)
        return jnp.sqrt(jnp.sum(dual_x**2) + dual_tau**2 + _dot(central, central))

    def trial(length: Array) -> tuple[State, Array, Array]:
        multipliers = jax.tree.map(lambda lam, d: lam + length * d, duals, d_duals)
        new_x, new_tau = x + length * dx, tau + length * dtau
        new_values, gradient = _weighted(functions, new_x, multipliers)
        new_slacks = _slacks(new_x, new_tau, new_values[1:], lower, upper)
        dual_x, dual_tau = _stationarity(gradient, multipliers)
        stationarity = jnp.maximum(jnp.max(jnp.abs(dual_x)), jnp.abs(dual_tau))
        residual = jnp.maximum(stationarity, _dot(new_slacks, multipliers))
        candidate = State(
            x=new_x,
            relaxation=new_tau,
            multipliers=multipliers,
            complementarity=jnp.minimum(
                state.complementarity, _mean_product(new_slacks, multipliers)
            ),
            residual=residual,
            steps=state.steps + 1,
            done=residual < TOLERANCE,
        )
        inside = jnp.all(new_slacks.limits > 0.0)
        return candidate, inside, norm(gradient, multipliers, new_slacks)

    lengths = longest_step * jnp.array(STEP_LENGTHS)
    candidates, inside, norms = jax.vmap(trial)(lengths)
    here = norm(grad_f + jac_g.T @ duals.limits, duals, slacks)
    improves = inside & (norms <= (1.0 - 0.01 * lengths) * here)
    # the first that improves, else the last that stays inside, else the shortest, else stay
    rank = jnp.arange(len(STEP_LENGTHS))
    chosen = jnp.where(
        jnp.any(improves), jnp.argmax(improves), jnp.max(jnp.where(inside, rank, -1))
    )
    moved = jax.tree.map(lambda leaf: leaf[chosen], candidates)
    stay = state.done | ~jnp.any(inside)
    return jax.tree.map(lambda old, new: jnp.where(stay, old, new), state, moved)


def solution(functions: Functions, state: State) -> Solution:
    """Read a finished lane."""
    values = functions(state.x)
    violation = jnp.max(jnp.maximum(values[1:], 0.0))
    return Solution(
        x=state.x,
        multipliers=state.multipliers.limits,
        relaxation=state.relaxation,
        residual=jnp.maximum(state.residual, violation),
        steps=state.steps,
    )
