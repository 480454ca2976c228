"""Metrics and sensitivities at solved points, many at a time in one compiled program each."""

from collections.abc import Iterable, Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..evaluation import Metrics, assess
from ..execution.roofline import SoftRoof, for_pools
from ..machine.design import Design
from ..machine.technology import Technology
from ..programs import compiled
from ..workload.pool import Pool
from ..workload.traffic import Workload
from .branches import stack
from .problem import Branch, values_at
from .sensitivity import lagrangian_slopes, technology_elasticities, workload_elasticities
from .solved import Solved


HALF_LOAD = 0.5


@compiled
def _assess_rows(branches: Branch, points: Array, prompts: Array) -> tuple[Metrics, Array]:
    """Metrics of many points, and their cost per token at half load."""

    def one(branch: Branch, x: Array, prompt: Array) -> tuple[Metrics, Array]:
        design, tdp_w, (batches, clocks_ghz) = values_at(x, branch)
        design = Design(**{**vars(design), "tdp_w": tdp_w})

        def metrics(technology: Technology) -> Metrics:
            return assess(
                branch.pools,
                batches,
                clocks_ghz,
                for_pools(SoftRoof(technology.execution.overlap_exponent)),
                design,
                technology,
                prompt,
                branch.caps,
            )

        load = lambda technology: technology.prices.load_factor  # noqa: E731 - a path
        half = eqx.tree_at(load, branch.technology, jnp.asarray(HALF_LOAD))
        return metrics(branch.technology), metrics(half).usd_per_token

    return jax.vmap(one)(branches, points, prompts)


@compiled
def _slope_rows(branches: Branch, points: Array, multipliers: Array) -> tuple[Technology, Pool]:
    return jax.vmap(lagrangian_slopes)(branches, points, multipliers)


def _rows(tree, count: int) -> list:
    on_host = jax.device_get(tree)
    return [jax.tree.map(lambda leaf, row=row: leaf[row], on_host) for row in range(count)]


def _padded(rows: list, count: int = 16) -> list:
    """Rows repeated up to a multiple of `count`, so that sizes share their compilations."""
    return rows + [rows[-1]] * (-len(rows) % count)


def assess_solved(items: Iterable[Solved], prompts: Sequence[float]) -> list[tuple[Metrics, float]]:
    """Metrics of each item, and its cost per token at half load in USD."""
    items = list(items)
    if not items:
        return []
    branches = stack(_padded([item.branch for item in items]))
    points = np.stack(_padded([item.x for item in items]))
    result = _assess_rows(branches, points, np.array(_padded(list(prompts))))
    return _rows(result, len(items))


def sensitivities_at(
    items: Iterable[Solved],
    multipliers: Iterable[np.ndarray],
    workloads: Iterable[Mapping[str, Workload]],
) -> list[tuple[dict[str, float], dict[str, float]]]:
    """For each item, `"table.field"` and `"workload.number"` -> elasticity of the least objective,
    and for leaves that are 0 the slope of its logarithm.

    **Arguments:**

    - `workloads`: of each item, by label.
    """
    items = list(items)
    branches = stack(_padded([item.branch for item in items]))
    points = np.stack(_padded([item.x for item in items]))
    table = _slope_rows(branches, points, np.stack(_padded(list(multipliers))))
    found = []
    for (of_technology, of_pools), item, served in zip(
        _rows(table, len(items)), items, workloads, strict=True
    ):
        elasticities, slopes = technology_elasticities(item.branch.technology, of_technology)
        elasticities |= workload_elasticities(served, item.choice.pairs, of_pools)
        found.append((elasticities, slopes))
    return found
