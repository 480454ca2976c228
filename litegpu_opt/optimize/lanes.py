"""Many problems at once: branches x starts as lanes of one compiled program."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..execution.roofline import HardRoof, MeanRoof, Roof, SoftRoof
from ..numerics import AnyArray, compiled
from . import gradient, interior
from .certificate import lower_bounds
from .problem import Branch, objective_and_limits, point_at


LANES_PER_CHUNK = 128
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
    """Bound on the hard optimum of the branch, from this point and its multipliers."""
    infeasibility: AnyArray
    """Above 0: proof that the branch has no feasible point."""


def soft_roofs(overlap_exponent: Array) -> SoftRoof:
    """The same q-norm in both pools."""
    return SoftRoof(jnp.broadcast_to(overlap_exponent, (2,)))


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
    values, (bound, infeasibility) = lower_bounds(
        soft, solved.x, jnp.stack([optimality, feasibility]), *branch.box
    )
    _, (hard_bound,) = lower_bounds(below_hard, solved.x, optimality[None], *branch.box)
    return Outcome(
        x=solved.x,
        multipliers=solved.multipliers,
        relaxation=solved.relaxation,
        residual=solved.residual,
        steps=solved.steps,
        value=values[0],
        bound=bound,
        hard_value=functions_of(branch, HardRoof())(solved.x)[0],
        hard_bound=hard_bound,
        infeasibility=infeasibility,
    )


@compiled
def solve_chunk(
    branches: Branch, starts: AnyArray, overlap_exponent: Array, explore: Array
) -> Outcome:
    """Search, polish and certify a chunk of lanes; branches and starts have a lane axis."""

    gentle = jnp.minimum(overlap_exponent, GENTLE_EXPONENT)

    def begin(branch: Branch, x: Array) -> interior.State:
        functions = functions_of(branch, soft_roofs(gentle))
        lower, upper = branch.box
        improved = jax.lax.cond(
            explore, lambda y: gradient.search(functions, y, lower, upper), lambda y: y, x
        )
        return interior.start(functions, improved, lower, upper)

    def advance(branch: Branch, state: interior.State) -> interior.State:
        # sharpen the roof along the central path: a sharp one stalls far from the optimum
        sharp = jnp.maximum(gentle, SHARPENING / state.complementarity)
        exponent = jnp.minimum(overlap_exponent, sharp)
        functions = functions_of(branch, soft_roofs(exponent))
        return interior.step(functions, state, *branch.box)

    def unfinished(loop: tuple[Array, interior.State]) -> Array:
        count, states = loop
        return (count < interior.MAX_STEPS) & ~jnp.all(states.done)

    def body(loop: tuple[Array, interior.State]) -> tuple[Array, interior.State]:
        count, states = loop
        return count + 1, jax.vmap(advance)(branches, states)

    states = jax.vmap(begin)(branches, jnp.asarray(starts))
    _, states = jax.lax.while_loop(unfinished, body, (jnp.array(0), states))
    return jax.vmap(lambda b, s: finish(b, s, soft_roofs(overlap_exponent)))(branches, states)


def solve_lanes(
    branches: Branch,
    starts: AnyArray,
    overlap_exponent: float,
    *,
    explore: bool = True,
    progress: Callable[[int], None] = lambda done: None,
) -> Outcome:
    """Solve any number of lanes in chunks of one size, so that there is one compilation.

    Chunks run on all cores: XLA's CPU programs of this kind use one each. Leaves of `branches`
    have a lane axis, as made by `branches.stack`; so have those of the result, as NumPy arrays.
    """
    lanes = starts.shape[0]
    exponent, exploring = jnp.asarray(overlap_exponent, float), jnp.asarray(explore)

    def chunk(first: int) -> Outcome:
        rows = np.minimum(np.arange(first, first + LANES_PER_CHUNK), lanes - 1)
        part, begin = jax.tree.map(lambda leaf: leaf[rows], (branches, starts))
        outcome = jax.block_until_ready(solve_chunk(part, begin, exponent, exploring))
        progress(min(LANES_PER_CHUNK, lanes - first))
        return outcome

    firsts = range(0, lanes, LANES_PER_CHUNK)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        chunks = list(pool.map(chunk, firsts))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:lanes], *chunks)
