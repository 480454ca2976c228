"""Sensitivities: what every assumption is worth at an optimum, by the envelope theorem.

    d log(value*) / d log(theta) = theta dL/d theta  at the optimum and its multipliers

One backward pass of the Lagrangian gives its slopes along every leaf of the technology and of the
pools; within a branch, and where the multipliers are unique. The pools are functions of the
workload, whose forward derivative turns their slopes into those along request lengths and limits.
"""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..execution.roofline import SoftRoof, for_pools
from ..machine.technology import TABLES, Technology
from ..programs import compiled
from ..workload.counts import with_idle_experts
from ..workload.parallelism import Parallelism
from ..workload.phases import PHASES
from ..workload.pool import Pool, build_pools
from ..workload.traffic import NO_LIMIT_MS, Workload
from .problem import Branch, objective_and_limits


def lagrangian_slopes(branch: Branch, x: Array, multipliers: Array) -> tuple[Technology, Pool]:
    """`dL/d theta` for every leaf of the technology and of the pools, as pytrees of their kind."""
    weights = jnp.concatenate([jnp.ones(1), multipliers])

    def lagrangian(technology: Technology, pools: Pool) -> Array:
        there = Branch(**{**vars(branch), "technology": technology, "pools": pools})
        roofs = for_pools(SoftRoof(technology.execution.overlap_exponent), branch.pool_count)
        return jnp.sum(weights * objective_and_limits(x, there, roofs))

    return jax.grad(lagrangian, argnums=(0, 1))(branch.technology, branch.pools)


def technology_elasticities(
    technology: Technology, slopes: Technology
) -> tuple[dict[str, float], dict[str, float]]:
    """`"table.field"` -> elasticity; and for leaves that are 0 and have none, the slope."""
    leaves, slope_of = _by_name(technology), _by_name(slopes)
    return (
        {name: leaf * slope_of[name] for name, leaf in leaves.items() if leaf != 0.0},
        {name: slope_of[name] for name, leaf in leaves.items() if leaf == 0.0},
    )


def _by_name(technology: Technology) -> dict[str, float]:
    """`"table.field"` -> value of a technology pytree."""
    return {
        f"{table}.{field}": float(value)
        for table in TABLES
        for field, value in vars(getattr(technology, table)).items()
    }


def workload_elasticities(
    workloads: Mapping[str, Workload], pairs: tuple[tuple[int, int], ...], slopes: Pool
) -> dict[str, float]:
    """`"workload.prompt_tokens"` and so on -> elasticity; of several, with `[label]` behind.

    What a workload does not have, such as a limit, is left out.

    **Arguments:**

    - `workloads`: by label, as in `Layout.labels`.
    - `pairs`: tensor-parallel degrees (prefill, decode) for each workload.
    - `slopes`: along the pools of all workloads, on a leading axis; axes may be padded.
    """
    found = {}
    for number, ((label, workload), pair) in enumerate(zip(workloads.items(), pairs, strict=True)):
        first = number * len(PHASES)
        own = jax.tree.map(lambda leaf, at=first: leaf[at : at + len(PHASES)], slopes)
        of = f"[{label}]" if label else ""
        found |= {
            f"workload.{name}{of}": float(value) * _along(own, derivative)
            for (name, value), derivative in zip(
                _numbers(workload).items(), pool_derivatives(workload, pair), strict=True
            )
            if _has(workload, name)
        }
    return found


def _along(slopes: Pool, derivative: Pool) -> float:
    """Sum of the products of all leaves; those of the slopes may have longer axes."""

    def product(slope: np.ndarray, change: np.ndarray) -> float:
        return float(np.sum(slope[tuple(map(slice, change.shape))] * change))

    if slopes.operators.experts is not None:
        operators = with_idle_experts(derivative.operators)
        derivative = eqx.tree_at(lambda p: p.operators, derivative, operators)
    return sum(jax.tree.leaves(jax.tree.map(product, slopes, derivative)))


def _numbers(workload: Workload) -> dict[str, Array]:
    """What a study says of a workload in numbers."""
    return {**vars(workload.traffic), **vars(workload.slo)}


def _has(workload: Workload, name: str) -> bool:
    """Whether a number of a workload says anything about it."""
    return {
        "prompt_tokens": True,
        "output_tokens": workload.serves_decode,
        "ttft_ms": workload.serves_prefill and float(workload.slo.ttft_ms) < NO_LIMIT_MS,
        "tbt_ms": workload.serves_decode and float(workload.slo.tbt_ms) < NO_LIMIT_MS,
    }[name]


class _Served(eqx.Module):
    """A workload on groups of given degrees."""

    workload: Workload
    pair: tuple[int, int] = eqx.field(static=True)


def pool_derivatives(workload: Workload, pair: tuple[int, int]) -> list[Pool]:
    """Derivative of the prefill and the decode pool by every number of the workload, as pools."""
    table = jax.device_get(_derivatives(_Served(workload, pair)))
    return [
        jax.tree.map(lambda leaf, at=at: leaf[..., at], table)
        for at in range(len(_numbers(workload)))
    ]


@compiled
def _derivatives(served: _Served) -> Pool:
    """The same with the numbers on a last axis."""
    workload = served.workload
    of_numbers = lambda w: list(_numbers(w).values())  # noqa: E731 - paths
    numbers = jnp.stack(of_numbers(workload))

    def pools(numbers: Array) -> Pool:
        there = eqx.tree_at(of_numbers, workload, list(numbers))
        return build_pools(there, *map(Parallelism, served.pair))

    return jax.jacfwd(pools)(numbers)
