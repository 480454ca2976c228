"""Every term of the optimiser is convex in log-space: random chords over the search box.

A certificate is only as good as this property, so every term is tested by its name. A pass
is evidence and no proof; the proofs are that posynomials, norms of them, and the listed
functions are closed under the sums, products and powers that the model makes of them.

| term                         | convex because                                                  |
|------------------------------|-----------------------------------------------------------------|
| 1/dies per wafer             | Ac posynomial; 1/(1 - z) has positive coefficients              |
| 1/yield                      | power of a posynomial, for a fixed clustering and repairability |
| 1/yield of Murphy            | x/(1 - exp(-x)) has a growing elasticity in x                   |
| bill of materials            | exp and expm1 of posynomials have positive coefficients         |
| use/limit                    | generalised posynomial over monomial                            |
| voltage                      | norm of a constant and a posynomial, for a slope of at most 1   |
| junction resistance          | constant and 1/area: a posynomial                               |
| energies, rated powers       | products and sums of the above                                  |
| phase time                   | sums of q-norms of posynomials, any q > 0                       |
| capital, a year by line      | sums of the above over constants: spares are a share of them    |
| power roof                   | energy / TDP x 1/(1 - u), u = static/TDP; beyond u = 0.95 the   |
|                              | tangent of -log(1 - u) in log u                                 |
| objectives                   | dollars or watts x time + dollars or 1 x energy                 |

Not convex, so never used as an objective or a limit: average power (an energy over a time),
yield in its clustering, an area that is a difference, a voltage slope above 1, and the
maximum of what may be sold (tokens per dollar).
"""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from litegpu_opt.catalog import load_accelerator, technology
from litegpu_opt.execution.phase import dynamic_energy_j
from litegpu_opt.execution.roofline import HardRoof, MeanRoof, SoftRoof
from litegpu_opt.limits import LIMIT_NAMES, Caps, uses_and_limits
from litegpu_opt.machine.cost import (
    BillOfMaterials,
    Capital,
    YearlyCost,
    bill_of_materials,
    capital,
    die_usd,
    provisioned_w,
    yearly_cost,
)
from litegpu_opt.machine.power import (
    EnergyCosts,
    energy_costs,
    junction_k_per_w,
    rated_power_w,
    relative_voltage,
    thermal_design_power_w,
)
from litegpu_opt.machine.silicon import (
    Blocks,
    blocks,
    dies_per_wafer,
    edge_needed_mm,
    harvested_yield,
    killed_mm2,
)
from litegpu_opt.machine.yields import (
    murphy_yield,
    negative_binomial_yield,
    poisson_yield,
    seeds_yield,
)
from litegpu_opt.numerics import TINY, scalar
from litegpu_opt.objectives import objective_values
from litegpu_opt.optimizer.branches import Task, candidate_branches, stacked_pools
from litegpu_opt.optimizer.layout import BOX, VARIABLES
from litegpu_opt.optimizer.problem import objective_and_limits, point_at
from litegpu_opt.serving import capped_time_ms
from litegpu_opt.space import OBJECTIVES
from litegpu_opt.workload.huggingface import read_transformer
from litegpu_opt.workload.precision import Precision
from litegpu_opt.workload.traffic import make_workload


CHORDS = 20_480
CHUNK = 5_120
TOLERANCE = 1e-12
EXPONENTS = (1.0, 2.0, 4.0, 64.0, 1024.0)
LOWER, UPPER = np.log([BOX[name] for name in VARIABLES]).T


def terms(x, branch, q):
    """Name -> logarithm of a term at logarithms x; all should be convex."""
    roofs = SoftRoof(jnp.broadcast_to(q, (2,)))
    tree = branch.technology
    point = point_at(x, branch, roofs)
    design, services = point.design, point.services
    parts = blocks(design, tree)
    killed = killed_mm2(parts, tree)
    bom = bill_of_materials(design, tree)
    spent = capital(design, point.tdp_w, tree)
    year = yearly_cost(design, point.tdp_w, tree)
    energy = energy_costs(design, point.clocks_ghz[1], tree)
    rated = rated_power_w(design, tree)
    uses, limits = uses_and_limits(
        design,
        point.tdp_w,
        point.clocks_ghz,
        services,
        branch.pools.limit_ms,
        tree,
        branch.caps,
    )
    objectives = objective_values(services, design, tree)
    positive = {
        "1/dies per wafer": 1.0 / dies_per_wafer(design.die_area_mm2, tree),
        "1/yield": 1.0 / harvested_yield(parts, tree),
        **{
            f"1/yield, {model.__name__}": 1.0 / model(killed, tree.process.defects_per_cm2)
            for model in (poisson_yield, murphy_yield, seeds_yield)
        },
        "killed area": killed,
        "block area": parts.total_mm2,
        # a single die has no link to others
        **{f"block area: {name}": value + TINY for name, value in vars(parts).items()},
        "die edge": edge_needed_mm(design, tree),
        "die cost": die_usd(design, tree),
        "bill of materials": bom.total_usd,
        **{f"bill of materials: {name}": value for name, value in vars(bom).items()},
        **{f"capital: {name}": value for name, value in vars(spent).items()},
        **{f"year: {name}": value for name, value in vars(year).items()},
        "dollars per second": year.usd_per_second,
        "provisioned power": provisioned_w(point.tdp_w, design, tree),
        "voltage": relative_voltage(point.clocks_ghz[1], tree),
        **{f"energy: {name}": value for name, value in vars(energy).items()},
        "energy: static_w": energy.static_w,
        "rated power, compute in bf16": rated[0],
        "rated power, compute in fp8": rated[1],
        "rated power, memory": rated[2],
        "rated power": thermal_design_power_w(design, tree),
        "junction resistance": junction_k_per_w(design, tree),
        **{f"limit: {name}": uses[i] / limits[i] for i, name in enumerate(LIMIT_NAMES)},
        **{f"objective: {name}": objectives[i] for i, name in enumerate(OBJECTIVES)},
    }
    for p, phase in enumerate(("prefill", "decode")):
        for field in (
            "time_ms",
            "latency_ms",
            "memory_gb",
            "device_j",
            "cluster_j",
            "device_seconds_per_token",
            "joules_per_token",
            "usd_per_token",
        ):
            positive[f"{phase}: {field}"] = getattr(services, field)[p]
        positive[f"{phase}: power roof"] = power_roof_ms(point, branch, p)
    logs = {name: jnp.log(value) for name, value in positive.items()}
    objective = objective_and_limits(x, branch, roofs)
    logs["objective"] = objective[0]
    # the Lagrangian of the certificate, with every limit weighed alike
    logs["Lagrangian"] = objective[0] + jnp.sum(objective[1:])
    weights = jnp.full((2, branch.pools.operators.repeats.shape[1]), 0.3)
    for name, roof in (("hard roof", HardRoof()), ("mean roof", MeanRoof(weights))):
        there = point_at(x, branch, roof).services
        logs[f"{name}: prefill time"] = jnp.log(there.time_ms[0])
        logs[f"{name}: decode time"] = jnp.log(there.time_ms[1])
        logs[f"{name}: cost"] = jnp.log(objective_values(there, design, tree)[0])
    return logs


def power_roof_ms(point, branch, p):
    """Time of a pool's phase if nothing but its power limited it."""
    pool = jax.tree.map(lambda leaf: leaf[p], branch.pools)
    energy = energy_costs(point.design, point.clocks_ghz[p], branch.technology)
    dynamic_j = dynamic_energy_j(pool.operators, point.batches[p], energy)
    return capped_time_ms(scalar(TINY), dynamic_j, energy.static_w, point.tdp_w, scalar(1.0))


def not_convex(x, branch, q):
    """Terms that the model must not use: the check has to see that they are not convex."""
    roofs = SoftRoof(jnp.broadcast_to(q, (2,)))
    tree = branch.technology
    point = point_at(x, branch, roofs)
    design, services = point.design, point.services
    sms = blocks(design, tree).sm_mm2
    energy = energy_costs(design, point.clocks_ghz[1], tree)
    clustering = design.memory_stacks
    steep = eqx.tree_at(lambda t: t.process.voltage_slope, tree, scalar(1.3))
    return {
        "average power": jnp.log(services.device_j[1] / services.time_ms[1]),
        "yield in its clustering": -jnp.log(
            negative_binomial_yield(design.die_area_mm2, scalar(0.23), clustering)
        ),
        "area as a difference": jnp.log(1000.0 + design.die_area_mm2 - 0.1 * sms),
        "voltage of a steep slope": jnp.log(
            jnp.maximum(relative_voltage(1.2 * design.clock_ghz, steep), 1e-9)
        ),
        "tokens per dollar": -jnp.log(objective_values(services, design, tree)[0]),
        "power roof of the rest of the TDP": jnp.log(
            services.device_j[1] / jnp.abs(point.tdp_w - energy.static_w)
        ),
    }


def chords(seed):
    """Pairs of points: a third within the box, a third on its faces, a third close together."""
    random = np.random.default_rng(seed)
    a, b = random.uniform(size=(2, CHORDS, len(VARIABLES)))
    third = CHORDS // 3
    for ends in (a, b):
        faces = random.uniform(size=(third, len(VARIABLES))) < 0.5
        ends[:third] = np.where(faces, np.round(ends[:third]), ends[:third])
    near = slice(third, 2 * third)
    b[near] = np.clip(a[near] + 0.2 * (b[near] - 0.5), 0, 1)
    return LOWER + (UPPER - LOWER) * a, LOWER + (UPPER - LOWER) * b


@eqx.filter_jit
def _violations(a, b, branch, q, function):
    def one(a, b):
        ends = [function(x, branch, q) for x in (a, b)]
        middle = function(0.5 * (a + b), branch, q)

        def violation(mid, left, right):
            scale = jnp.maximum(1.0, jnp.maximum(jnp.abs(left), jnp.abs(right)))
            return (mid - 0.5 * (left + right)) / scale

        return jax.tree.map(violation, middle, *ends)

    return jax.tree.map(jnp.max, jax.vmap(one)(a, b))


def worst_violations(branch, q, function=terms, seed=0):
    """Name -> largest excess of a chord's middle over the mean of its ends, relative to scale."""
    a, b = chords(seed)
    worst = {}
    for first in range(0, CHORDS, CHUNK):
        part = slice(first, first + CHUNK)
        found = _violations(a[part], b[part], branch, jnp.asarray(q), function)
        for name, value in jax.device_get(found).items():
            # NaN must not pass
            worst[name] = max(worst.get(name, -np.inf), np.nan_to_num(float(value), nan=np.inf))
    return worst


@functools.cache
def branches():
    """A plain branch; two dies in groups; an existing accelerator's technology, at part load."""
    workload = make_workload(
        read_transformer("llama-3.1-70b"),
        Precision("fp8", "fp8", "bf16", "bf16"),
        prompt_tokens=1500,
        output_tokens=500,
        ttft_ms=1000,
        tbt_ms=50,
    )
    busy = technology()
    part_load = load_accelerator("h100-sxm").technology(
        {"prices.load_factor": 0.4, "prices.host_usd_per_gb_s": 1.0}
    )

    def branch(tree, tps, dies):
        [(_, made)] = candidate_branches(
            Task({"": workload}, {"usd_per_million_tokens": 1.0}),
            {"t": tree},
            pools=stacked_pools(workload, [tps]),
            aspect_ratios=[1.27],
            dies_per_package=[dies],
            caps=Caps(die_area_max_mm2=500.0),
            bounds={},
        )
        return made

    return {
        "one die": branch(busy, (1, 1), 1),
        "two dies in groups": branch(busy, (2, 8), 2),
        "part load": branch(part_load, (8, 4), 1),
    }


CASES = [("one die", q) for q in EXPONENTS] + [
    (name, q) for name in ("two dies in groups", "part load") for q in (1.0, 2.0, 1024.0)
]


@functools.cache
def worst(case):
    name, q = case
    return worst_violations(branches()[name], q, seed=CASES.index(case))


PLAIN = branches()["one die"]
TERM_NAMES = tuple(jax.eval_shape(lambda x: terms(x, PLAIN, scalar(2.0)), jnp.asarray(LOWER)))


@pytest.mark.parametrize("name", TERM_NAMES)
def test_term_is_convex_in_logarithms(name):
    found = {case: worst(case)[name] for case in CASES}
    assert {case: value for case, value in found.items() if value > TOLERANCE} == {}


def test_all_limits_and_the_whole_objective_are_among_the_terms():
    assert {f"limit: {name}" for name in LIMIT_NAMES} <= set(TERM_NAMES)
    assert {f"objective: {name}" for name in OBJECTIVES} <= set(TERM_NAMES)
    assert {"objective", "1/yield", "1/dies per wafer"} <= set(TERM_NAMES)


def test_every_quantity_of_the_machine_is_among_the_terms():
    """Every line of a block, a bill, a capital, a year and an energy has its term."""
    lines = {
        "block area": Blocks,
        "bill of materials": BillOfMaterials,
        "capital": Capital,
        "year": YearlyCost,
        "energy": EnergyCosts,
    }
    for title, table in lines.items():
        named = {f"{title}: {line.name}" for line in dataclasses.fields(table)}
        assert named <= set(TERM_NAMES)
    assert {
        "die edge",
        "die cost",
        "killed area",
        "dollars per second",
        "provisioned power",
        "rated power, compute in bf16",
        "rated power, compute in fp8",
        "rated power, memory",
        "voltage",
        "junction resistance",
        "limit: junction_rise",
        "limit: die_edge",
    } <= set(TERM_NAMES)


@pytest.mark.parametrize(
    "name",
    [
        "average power",
        "yield in its clustering",
        "area as a difference",
        "voltage of a steep slope",
        "tokens per dollar",
        "power roof of the rest of the TDP",
    ],
)
def test_the_check_sees_what_is_not_convex(name):
    found = worst_violations(branches()["one die"], 2.0, not_convex)
    assert found[name] > 1e-3


@pytest.mark.parametrize("q", [0.5, 0.25])
def test_time_is_convex_for_any_exponent(q):
    # in logarithms even q < 1 is a log-sum-exp
    found = worst_violations(branches()["two dies in groups"], q)
    assert max(found["prefill: time_ms"], found["decode: time_ms"]) <= TOLERANCE
