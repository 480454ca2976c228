"""Many problems at once: branches x starts as lanes of one compiled program."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..execution.roofline import HardRoof, MeanRoof, Roof, SoftRoof, for_pools
from ..numerics import AnyArray
from ..programs import compiled
from . import gradient, interior
from .certificate import lower_bounds
from .problem import Branch, objective_and_limits, point_at


LANES_PER_CHUNK = 32
STEPS_PER_ROUND = (20, 4, 4, 8, 24)
GENTLE_EXPONENT = 2.0
"""Largest overlap exponent with which a solve begins."""
SHARPENING = 0.1
"""Overlap exponent times mean complementarity on the way to a large exponent."""


class Outcome(eqx.Module):
    """One lane after search, polish and certificate; with a leading lane axis when batched.

    Values and bounds are those of the objective, as a rule `log($/token)`.
    """

    x: AnyArray
    multipliers: AnyArray
    relaxation: AnyArray
    residual: AnyArray
    steps: AnyArray
    value: AnyArray
    bound: AnyArray
    """No point of the branch is below it."""
    hard_value: AnyArray
    """The same point under the hard roofline."""
    hard_bound: AnyArray
    """Bound on the hard optimum of the branch, from this point and its multipliers; infinite where
    it is proved infeasible."""
    infeasibility: AnyArray
    """Above 0: proof that the branch has no feasible point."""


def sharp_exponent(branch: Branch, sharpness: Array) -> Array:
    """The technology's overlap exponent, or a larger one on the way to the hard roofline."""
    return jnp.maximum(branch.technology.execution.overlap_exponent, sharpness)


def functions_of(branch: Branch, roofs: Roof) -> interior.Functions:
    """`x -> [f, g]` of a branch."""
    return lambda x: objective_and_limits(x, branch, roofs)


def mean_roofs_at(x: Array, branch: Branch, roofs: SoftRoof) -> MeanRoof:
    """Roofs that never exceed the hard ones and have the soft ones' gradient at x."""
    times = point_at(x, branch, roofs).services.times
    return MeanRoof(jax.vmap(SoftRoof.compute_weight)(roofs, times.compute_ms, times.memory_ms))


def finish(branch: Branch, state: interior.State, roofs: SoftRoof) -> Outcome:
    """Certify a finished lane for the soft and for the hard roofline."""
    soft = functions_of(branch, roofs)
    solved = interior.solution(soft, state)
    below_hard = functions_of(branch, mean_roofs_at(solved.x, branch, roofs))
    multipliers = jnp.maximum(solved.multipliers, 0.0)
    optimality = jnp.append(1.0, multipliers)
    feasibility = jnp.append(0.0, multipliers)
    weights = jnp.stack([optimality, feasibility])
    values, (bound, infeasibility) = lower_bounds(soft, solved.x, weights, *branch.box)
    _, (hard_bound, hard_infeasibility) = lower_bounds(below_hard, solved.x, weights, *branch.box)
    hard_bound = jnp.where(hard_infeasibility > 0.0, jnp.inf, hard_bound)

    def claimed(number: Array) -> Array:
        """A lane that ended in NaN claims nothing."""
        return jnp.where(jnp.isnan(number), -jnp.inf, number)

    return Outcome(
        x=solved.x,
        multipliers=solved.multipliers,
        relaxation=solved.relaxation,
        residual=solved.residual,
        steps=solved.steps,
        value=values[0],
        bound=claimed(bound),
        hard_value=functions_of(branch, HardRoof())(solved.x)[0],
        hard_bound=claimed(hard_bound),
        infeasibility=claimed(infeasibility),
    )


@compiled
def _begin(branches: Branch, starts: Array, sharpness: Array, explore: Array) -> interior.State:
    """Gradient search from each start, if wanted, then a strictly feasible iterate."""

    def one(branch: Branch, x: Array) -> interior.State:
        gentle = jnp.minimum(sharp_exponent(branch, sharpness), GENTLE_EXPONENT)
        functions = functions_of(branch, for_pools(SoftRoof(gentle), branch.pool_count))
        lower, upper = branch.box
        improved = jax.lax.cond(
            explore, lambda y: gradient.search(functions, y, lower, upper), lambda y: y, x
        )
        return interior.start(functions, improved, lower, upper)

    return jax.vmap(one)(branches, starts)


@compiled
def _advance(
    branches: Branch, states: interior.State, sharpness: Array, steps: Array
) -> interior.State:
    """Up to `steps` interior-point steps; a lane that is done stays where it is."""

    def one(branch: Branch, state: interior.State) -> interior.State:
        # sharpen the roof along the central path: a sharp one stalls far from the optimum, and
        # one that gets gentle again may leave the iterate outside
        so_far = jnp.maximum(GENTLE_EXPONENT, SHARPENING / state.complementarity)
        exponent = jnp.minimum(sharp_exponent(branch, sharpness), so_far)
        functions = functions_of(branch, for_pools(SoftRoof(exponent), branch.pool_count))
        return interior.step(functions, state, *branch.box)

    def unfinished(loop: tuple[Array, interior.State]) -> Array:
        return (loop[0] < steps) & ~jnp.all(loop[1].done)

    def body(loop: tuple[Array, interior.State]) -> tuple[Array, interior.State]:
        return loop[0] + 1, jax.vmap(one)(branches, loop[1])

    return jax.lax.while_loop(unfinished, body, (jnp.array(0), states))[1]


@compiled
def _certify(branches: Branch, states: interior.State, sharpness: Array) -> Outcome:
    """Read and certify finished lanes."""

    def one(branch: Branch, state: interior.State) -> Outcome:
        roof = SoftRoof(sharp_exponent(branch, sharpness))
        return finish(branch, state, for_pools(roof, branch.pool_count))

    return jax.vmap(one)(branches, states)


def in_chunks(program: Callable, lanes: tuple, *constants: Any, size: int = LANES_PER_CHUNK):
    """Run a program over any number of lanes in chunks of one size: one compilation, all cores.

    `lanes` are pytrees with a lane axis; so is the result, in NumPy arrays.
    """
    count = len(jax.tree.leaves(lanes)[0])

    def chunk(first: int):
        rows = np.minimum(np.arange(first, first + size), count - 1)
        part = jax.tree.map(lambda leaf: leaf[rows], lanes)
        return jax.device_get(program(*part, *constants))

    # XLA's CPU programs of this kind use one core each
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        chunks = list(pool.map(chunk, range(0, count, size)))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *chunks)


def put(leaf: AnyArray, rows: np.ndarray, values: AnyArray) -> np.ndarray:
    """A copy of a leaf with some lanes replaced."""
    changed = np.array(leaf)
    changed[rows] = values
    return changed


def solve_lanes(
    branches: Branch,
    starts: AnyArray,
    *,
    sharpness: float = 0.0,
    explore: bool = True,
    progress: Callable[[int], None] = lambda done: None,
) -> Outcome:
    """Solve any number of lanes, all with the same three compiled programs.

    Leaves of `branches` have a lane axis, as made by `branches.stack`; so have those of the result,
    as NumPy arrays. Lanes that finish leave the rounds of steps, so a slow one delays few others.

    **Arguments:**

    - `starts`: logarithms of the variables, `(lanes, variables)`.
    - `sharpness`: least overlap exponent; a large one for the hard roofline.
    - `explore`: run the gradient search in front of the interior point.
    - `progress`: called with the number of lanes that have ended so far.
    """
    sharp = jnp.asarray(sharpness, float)
    states = in_chunks(_begin, (branches, starts), sharp, jnp.asarray(explore))
    active = np.arange(len(starts))
    for steps in STEPS_PER_ROUND:
        take = partial(jax.tree.map, lambda leaf, rows=active: leaf[rows])
        moved = in_chunks(_advance, (take(branches), take(states)), sharp, jnp.asarray(steps))
        states = jax.tree.map(lambda old, new, rows=active: put(old, rows, new), states, moved)
        active = active[~moved.done]
        progress(len(starts) - len(active))
        if not active.size:
            break
    return in_chunks(_certify, (branches, states), sharp)
