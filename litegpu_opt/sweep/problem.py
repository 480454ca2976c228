"""What a sweep needs before its first point: grid, technologies, counts of every group, limits."""

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..catalog import HARDWARE_TABLES, default_records, load_accelerator, technology
from ..errors import UserError
from ..limits import NO_CAP, Caps, limits_of, limits_that_apply
from ..machine.design import Design
from ..machine.technology import Technology
from ..numerics import stack_padded
from ..space import OBJECTIVES
from ..study import Study, study_transformers
from ..study.sweep import BATCH_AXES, DESIGN_AXES, TRAFFIC_AXES, StudySweep, axis_unit
from ..units import allowed_quantity
from ..workload.parallelism import Parallelism, check_parallelism
from ..workload.pool import Pool, decode_pool, handed_over_gb, prefill_pool
from ..workload.traffic import NO_LIMIT_MS, Workload, make_workload
from .grid import Grid, make_grid


OVERLAP = "execution.overlap_exponent"
MOST_TABLE_BYTES = 2**30
"""Of the counts of all groups."""


class Tables(eqx.Module):
    """Everything that is looked up by index while the points are visited."""

    technologies: Technology
    """Combinations on a leading axis."""
    prefill: Pool
    """Pools by pair of degrees and by traffic: two leading axes."""
    decode: Pool
    """Pools by degree of decode and by traffic."""
    caps: Caps


@dataclass(frozen=True)
class Problem:
    """A sweep that is ready to run."""

    sweep: StudySweep
    workload: Workload
    grid: Grid
    base: Mapping[str, float]
    """Field of `Design` -> value where no axis gives one."""
    technology_names: tuple[str, ...]
    degrees: tuple[tuple[int, int], ...]
    """Tensor-parallel degrees (prefill, decode) that the groups go through."""
    tables: Tables
    applies: Mapping[str, bool]
    """Limit -> whether it holds."""
    objective: Mapping[str, float]

    @property
    def hard(self) -> bool:
        """Whether compute and memory overlap completely."""
        return self.sweep.roof == "hard"

    @property
    def euclidean(self) -> bool:
        """Whether the overlap exponent is 2 everywhere."""
        exponents = np.asarray(self.tables.technologies.execution.overlap_exponent)
        return OVERLAP not in self.sweep.axes and bool(np.all(exponents == 2.0))


def sweep_problem(study: Study) -> Problem:
    """The sweep of a study.

    **Raises:** `UserError` where the study has none, or for values that the model does not allow.
    """
    sweep = study.sweep
    if sweep is None:
        raise UserError("missing", where="sweep", allowed="a table [sweep] in the study")
    names = [row.name for row in study.workloads]
    number = names.index(sweep.workload) if sweep.workload else 0
    row = study.workloads[number]
    workload = make_workload(
        study_transformers(study)[number],
        row.precision(),
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
        ttft_ms=NO_LIMIT_MS if row.ttft_ms is None else row.ttft_ms,
        tbt_ms=NO_LIMIT_MS if row.tbt_ms is None else row.tbt_ms,
        pools=row.pools,
        where=f"workload[{number}]",
    )
    technologies, base = _hardware(study, sweep)
    _check_complete(sweep, workload, base)
    grid = make_grid(sweep.axes, sweep.samples, study.seed, len(technologies))
    caps = Caps(
        die_area_max_mm2=_cap(sweep.die_area_max_mm2),
        tdp_max_w=_cap(sweep.tdp_max_w),
        unit_cost_max_usd=_cap(sweep.unit_cost_max_usd),
        objectives=np.array([row.limits.get(name, NO_CAP) for name in OBJECTIVES]),
    )
    built = bool(sweep.accelerator) and not any(name in DESIGN_AXES for name in sweep.axes)
    concerned = limits_that_apply({"": workload}, caps)
    degrees = _degrees(sweep, workload)
    prefill, decode = _pools(workload, degrees, _traffic(grid, workload))
    return Problem(
        sweep=sweep,
        workload=workload,
        grid=grid,
        base=base,
        technology_names=tuple(technologies),
        degrees=degrees,
        tables=Tables(
            technologies=stack_padded(list(technologies.values())),
            prefill=prefill,
            decode=decode,
            caps=caps,
        ),
        applies={
            limit.name: concerned.get(limit.name, True) and not (built and limit.kind == "machine")
            for limit in limits_of(("",))
        },
        objective=study.objective,
    )


def _cap(value: float | None) -> float:
    return NO_CAP if value is None else value


def _hardware(study: Study, sweep: StudySweep) -> tuple[dict[str, Technology], dict[str, float]]:
    """Name -> technology of every combination, and the design values that need no axis."""
    if sweep.accelerator:
        accelerator = load_accelerator(sweep.accelerator, "sweep.accelerator")
        tree = accelerator.technology(
            study.technology.overrides, prices=study.basis, execution=study.technology.execution
        )
        return {accelerator.name: tree}, accelerator.design_values
    trees = {
        "/".join(entries[table] for table in HARDWARE_TABLES): technology(
            study.technology.overrides, **entries
        )
        for entries in study.technology_choices()
    }
    return trees, {}


def _check_complete(sweep: StudySweep, workload: Workload, base: Mapping[str, float]) -> None:
    """Refuse a sweep that leaves something open."""
    optional = [
        field.name
        for field in dataclasses.fields(Design)
        if field.default is not dataclasses.MISSING
    ]
    needed = [
        key
        for key, (field, _) in DESIGN_AXES.items()
        if field not in base and field not in optional
    ]
    if "batch" not in sweep.axes:
        needed += BATCH_AXES[1:] if workload.serves_prefill else BATCH_AXES[2:]
    for name in needed:
        if name not in sweep.axes:
            allowed = f"a value, a list or a range: {allowed_quantity(axis_unit(name))}"
            raise UserError("missing", where=f"sweep.axes.{name}", allowed=allowed)
    lengths = sweep.axes.get("output_tokens")
    if lengths and lengths.size != 1 and not min(lengths.values or (lengths.low,)) > 1.0:
        what = "an answer of one token has no decode phase, unlike the others"
        raise UserError(what, where="sweep.axes.output_tokens", allowed="more than 1 token")


def _degrees(sweep: StudySweep, workload: Workload) -> tuple[tuple[int, int], ...]:
    """Pairs of degrees in the order of the groups' digits."""

    def listed(name: str) -> tuple[int, ...]:
        axis = sweep.axes.get(name)
        values = tuple(int(value) for value in axis.values) if axis else (1,)
        for value in values:
            check_parallelism(workload.transformer, Parallelism(value), f"sweep.axes.{name}")
        return values

    if "tp" in sweep.axes:
        return tuple((tp, tp) for tp in listed("tp"))
    return tuple(itertools.product(listed("tp_prefill"), listed("tp_decode")))


def _traffic(grid: Grid, workload: Workload) -> dict[str, np.ndarray]:
    """Prompt and output tokens of every traffic point, by its number (`traffic_index`)."""
    shared = grid.groups.dimensions.get("sobol")
    sampled = shared is not None and any(name in TRAFFIC_AXES for name in shared.axes)
    own = {n: d for n, d in grid.groups.dimensions.items() if n in TRAFFIC_AXES}
    dimensions = ({"sobol": shared} if sampled and shared else {}) | own
    places = list(itertools.product(*(range(d.size) for d in dimensions.values())))
    rows = np.array(places, np.int64).reshape(len(places), len(dimensions))
    result = {
        name: np.full(len(rows), float(getattr(workload.traffic, name))) for name in TRAFFIC_AXES
    }
    for column, dimension in enumerate(dimensions.values()):
        at = jax.jit(jax.vmap(lambda digit, d=dimension: d.values(digit, grid.seed)))
        for name, values in at(jnp.asarray(rows[:, column])).items():
            if name in result:
                result[name] = np.asarray(values)
    return result


def traffic_index(grid: Grid, digits: Mapping[str, Array]) -> Array:
    """Number of the traffic point of a group, from its digits."""
    index = jnp.zeros((), jnp.int64)
    for name, dimension in grid.groups.dimensions.items():
        if name in TRAFFIC_AXES or any(axis in TRAFFIC_AXES for axis in dimension.axes):
            index = index * dimension.size + digits[name]
    return index


def degree_index(grid: Grid, digits: Mapping[str, Array]) -> tuple[Array, Array]:
    """Number of the pair of degrees of a group, and of its degree of decode among those there
    are.
    """
    zero = jnp.zeros((), jnp.int64)
    if "tp" in digits:
        return digits["tp"], digits["tp"]
    decode = digits.get("tp_decode", zero)
    decodes = grid.groups.dimensions["tp_decode"].size if "tp_decode" in digits else 1
    return digits.get("tp_prefill", zero) * decodes + decode, decode


def _pools(
    workload: Workload, degrees: tuple[tuple[int, int], ...], traffic: Mapping[str, np.ndarray]
) -> tuple[Pool, Pool]:
    """Pools of prefill by pair and traffic, and of decode by degree and traffic.

    Operators are counted once per degree; only the KV hand-over belongs to a pair.
    """

    def over_traffic(function):
        def one(prompt, output):
            at = eqx.tree_at(
                lambda w: (w.traffic.prompt_tokens, w.traffic.output_tokens),
                workload,
                (prompt, output),
            )
            return function(at)

        lengths = (jnp.asarray(traffic[name]) for name in TRAFFIC_AXES)
        return jax.tree.map(np.asarray, jax.vmap(one)(*lengths))

    decodes = tuple(dict.fromkeys(tp for _, tp in degrees))
    decode = [over_traffic(lambda w, tp=tp: decode_pool(w, Parallelism(tp))) for tp in decodes]
    alone = {
        tp: over_traffic(lambda w, tp=tp: prefill_pool(w, Parallelism(tp)))
        for tp in dict.fromkeys(tp for tp, _ in degrees)
    }
    prefill = []
    for pair in degrees:
        pool = alone[pair[0]]
        if workload.serves_prefill:
            ways = tuple(Parallelism(tp) for tp in pair)
            handed_over = over_traffic(lambda w, ways=ways: handed_over_gb(w, *ways))
            pool = eqx.tree_at(
                lambda p: (p.sent_gb_per_seq, p.handover_gb_per_seq), pool, handed_over
            )
        prefill.append(pool)
    needed = sum(leaf.nbytes for leaf in jax.tree.leaves([prefill, decode]))
    if needed > MOST_TABLE_BYTES:
        what = f"counts of {len(degrees)} ways of parallelism under {len(traffic[TRAFFIC_AXES[0]])}"
        raise UserError(
            f"{what} kinds of traffic take {needed / 1e9:.1f} GB",
            where="sweep.axes",
            allowed=f"at most {MOST_TABLE_BYTES / 1e9:.1f} GB",
        )
    return stack_padded(prefill, np), stack_padded(decode, np)


def leaf_names(sweep: StudySweep) -> tuple[str, ...]:
    """Axes that are values of a technology."""
    return tuple(name for name in sweep.axes if name in default_records())
