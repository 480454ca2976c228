"""Is the certificate real? A million random feasible designs against the bound, and held variables.

    python experiments/certificate_check.py [--points 1000000] [--lattice] [--study STUDY.toml]

For every optimum of the study:

1. random points of random branches, near the optimum of the branch and anywhere in the box, are
   kept if every limit holds; the best is compared with the certified lower bounds;
2. with `--lattice`, so is every point of a lattice of the full model around the best branch's
   optimum: 1.5e7 points each, some of which the repair makes equal;
3. clock, stacks and network are held away from the optimum and the rest is solved again: the value
   must get worse.

Prints one line per check, exits with 1 if any fails.
"""

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from litegpu_opt.execution.roofline import HardRoof, SoftRoof, for_pools
from litegpu_opt.machine.power import thermal_design_power_w
from litegpu_opt.machine.silicon import blocks, field_area_mm2
from litegpu_opt.optimizer.branches import hold, stack
from litegpu_opt.optimizer.ended import solved
from litegpu_opt.optimizer.groups import study_groups, study_workloads
from litegpu_opt.optimizer.hard import search_hard
from litegpu_opt.optimizer.layout import SINGLE, VARIABLES
from litegpu_opt.optimizer.problem import design_at, objective_and_limits
from litegpu_opt.optimizer.search import search, solve_parts
from litegpu_opt.optimizer.solving import solve
from litegpu_opt.programs import compiled
from litegpu_opt.study import load_study


CHUNK = 50_000
HELD_SHARES = (0.8, 1.25)
HELD = ("clock_ghz", "memory_stacks", "network_gb_s")
FEASIBLE = 1e-12
SLOT = {name: i for i, name in enumerate(VARIABLES)}

FACTORS = (0.5, 0.8, 0.95, 1.0 - 1e-6, 1.05, 1.25, 2.0)
"""Of the optimum, on the lattice; its own point a hair inside the limits that bind."""
SHARES = (1.0, 0.95, 0.8)
"""Of the design's clock, in a phase."""
AXES = {
    "die_area_mm2": FACTORS,
    "clock_ghz": FACTORS,
    "memory_stacks": FACTORS,
    "memory_gb": FACTORS,
    "network_gb_s": FACTORS,
    "batch_prefill": FACTORS,
    "batch_decode": FACTORS,
    "clock_prefill_ghz": SHARES,
    "clock_decode_ghz": SHARES,
    # of those for which the die has room
    "sm_count": (1.0, 0.95),
}
SIZES = tuple(len(axis) for axis in AXES.values())


def draw(key, branch, optimum):
    """Logarithms of a random point, repaired.

    One in five is drawn from the whole box, the others around the optimum at random distances.
    """
    lower, upper = branch.box
    where, around, whole, far = jax.random.split(key, 4)
    spread = 10.0 ** jax.random.uniform(far, minval=-3.0, maxval=-0.3)
    near = optimum + spread * jax.random.normal(around, lower.shape)
    anywhere = lower + (upper - lower) * jax.random.uniform(whole, lower.shape)
    return repaired(jnp.where(jax.random.uniform(where) < 0.2, anywhere, near), branch)


def lattice_point(number, branch, optimum):
    """Logarithms of one point of the lattice around an optimum, repaired."""
    x, room_share = optimum, 1.0
    places = jnp.unravel_index(number, SIZES)
    for (name, axis), place in zip(AXES.items(), places, strict=True):
        factor = jnp.asarray(axis)[place]
        if name == "sm_count":
            room_share = factor
        elif name.startswith("clock_") and name != "clock_ghz":
            # the axis of the design's clock is in front
            x = x.at[SLOT[name]].set(x[SLOT["clock_ghz"]] + jnp.log(factor))
        else:
            x = x.at[SLOT[name]].add(jnp.log(factor))
    full = x.at[SLOT["sm_count"]].set(branch.upper[SLOT["sm_count"]])
    return repaired(full, branch, room_share)


def repaired(x, branch, room_share=1.0):
    """The point moved so that it respects area, clocks and memory, with a TDP of what it draws."""
    technology, process = branch.technology, branch.technology.process
    memory = technology.memory

    def put(x, name, value):
        return x.at[SLOT[name]].set(jnp.log(value))

    def get(x, name):
        return jnp.exp(x[SLOT[name]])

    field_mm2 = field_area_mm2(branch.aspect_ratio, technology)
    area_max_mm2 = jnp.minimum(branch.caps.die_area_max_mm2, field_mm2)
    x = put(x, "die_area_mm2", jnp.minimum(get(x, "die_area_mm2"), area_max_mm2))
    x = put(x, "clock_ghz", jnp.minimum(get(x, "clock_ghz"), process.max_clock_ghz))
    stacks = get(x, "memory_stacks")
    ends = memory.stack_min_gb * stacks, memory.stack_max_gb * stacks
    x = put(x, "memory_gb", jnp.clip(get(x, "memory_gb"), *ends))
    floor_gb_s = technology.interconnect.floor_gb_s
    x = put(x, "network_gb_s", jnp.maximum(get(x, "network_gb_s"), floor_gb_s))
    # SMs as far as the die has room beside the other blocks
    design = design_at(put(x, "sm_count", 1.0), branch)
    one = blocks(design, technology)
    sm_mm2 = one.sm_mm2 + one.sram_mm2
    room = room_share * (1.0 + (design.die_area_mm2 - one.total_mm2) / sm_mm2)
    x = put(x, "sm_count", jnp.clip(get(x, "sm_count"), 1.0, jnp.maximum(room, 1.0)))
    x = put(x, "tdp_w", thermal_design_power_w(design_at(x, branch), technology))
    usable_gb = technology.execution.memory_usable_share * get(x, "memory_gb")
    fit = (usable_gb - branch.pools.weights_gb) / branch.pools.kv_gb_per_seq
    for pool, phase in enumerate(("prefill", "decode")):
        clock, batch = f"clock_{phase}_ghz", f"batch_{phase}"
        x = put(x, clock, jnp.minimum(get(x, clock), get(x, "clock_ghz")))
        x = put(x, batch, jnp.clip(get(x, batch), 1.0, jnp.maximum(fit[pool], 1.0)))
    return x


def values_at(x, branch):
    """Whether a point is feasible, and its objective if so: soft, then hard."""
    exponent = branch.technology.execution.overlap_exponent
    soft = objective_and_limits(x, branch, for_pools(SoftRoof(exponent)))
    hard = objective_and_limits(x, branch, HardRoof())
    ok_soft, ok_hard = (jnp.all(values[1:] <= FEASIBLE) for values in (soft, hard))
    return (
        ok_soft,
        jnp.where(ok_soft, soft[0], jnp.inf),
        jnp.where(ok_hard, hard[0], jnp.inf),
    )


def _best(found):
    feasible, soft, hard = found
    return jnp.sum(feasible), jnp.min(soft), jnp.min(hard)


@compiled
def best_drawn(keys, branches, optima):
    """Feasible points in a chunk of random ones, and the least soft and hard objective of them."""
    one = lambda key, branch, optimum: values_at(draw(key, branch, optimum), branch)  # noqa: E731
    return _best(jax.vmap(one)(keys, branches, optima))


@compiled
def best_of_lattice(numbers, branch, optimum):
    """The same of a chunk of the lattice."""
    one = lambda number: values_at(lattice_point(number, branch, optimum), branch)  # noqa: E731
    return _best(jax.vmap(one)(numbers))


def verdict(name, what, found, least, hard_least, bound, hard_bound, enough) -> bool:
    """Print how far the best point is above both bounds; whether all is well."""
    good = enough and least >= bound and hard_least >= hard_bound
    above, hard_above = np.expm1(least - bound), np.expm1(hard_least - hard_bound)
    print(
        f"{name}: {found:,} feasible of {what}; the best is {above:.4%} above the bound, "
        f"hard {hard_above:.4%}  {'ok' if good else 'FAIL'}"
    )
    return good


def check_points(name, branches, optima, bound, hard_bound, points, random) -> bool:
    """Random feasible points of all branches against both bounds."""
    found, drawn, least, hard_least = 0, 0, np.inf, np.inf
    table = stack(branches)
    key = jax.random.key(int(random.integers(2**31)))
    while found < points and drawn < 4000 * points:
        key, part = jax.random.split(key)
        rows = random.integers(len(branches), size=CHUNK)
        chunk = jax.tree.map(lambda leaf, rows=rows: leaf[rows], table)
        count, soft, hard = best_drawn(jax.random.split(part, CHUNK), chunk, optima[rows])
        found, drawn = found + int(count), drawn + CHUNK
        least, hard_least = min(least, float(soft)), min(hard_least, float(hard))
    what = f"{drawn:,} drawn"
    return verdict(name, what, found, least, hard_least, bound, hard_bound, found >= points)


def check_lattice(name, branch, x, bound, hard_bound) -> bool:
    """Every point of a lattice around an optimum against both bounds."""
    count = int(np.prod(SIZES))
    branch = jax.tree.map(jnp.asarray, branch)

    def chunk(first):
        numbers = np.minimum(np.arange(first, first + CHUNK), count - 1)
        return [float(part) for part in best_of_lattice(numbers, branch, jnp.asarray(x))]

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        found, soft, hard = np.array(list(pool.map(chunk, range(0, count, CHUNK)))).T
    what = f"the {count:,} points of a lattice"
    # the last chunk repeats its last point
    return verdict(
        name, what, int(found.sum()), soft.min(), hard.min(), bound, hard_bound, found.sum() > 1000
    )


def check_held(name, branch, x, value) -> bool:
    """Each of a few variables held away from its optimum must make the value worse."""
    values = dict(zip(VARIABLES, np.exp(x), strict=True))
    trials = [(held, share) for held in HELD for share in HELD_SHARES]
    rows = [hold(branch, SINGLE, {held: share * values[held]}) for held, share in trials]
    outcome = solve(stack(rows), np.stack([x] * len(rows)), "held", lambda *state: None)
    good = True
    for row, (held, share) in enumerate(trials):
        feasible = bool(solved(outcome)[row])
        worse = not feasible or float(outcome.value[row]) > value + 1e-9
        good &= worse
        change = f"{np.expm1(float(outcome.value[row]) - value):+.3%}" if feasible else "infeasible"
        print(f"{name}: {held} x {share}: {change}  {'ok' if worse else 'FAIL'}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=1_000_000, help="feasible points in all")
    parser.add_argument("--lattice", action="store_true", help="a lattice around every optimum")
    parser.add_argument("--study", help="a study file; the embedded panel without one")
    options = parser.parse_args()
    study = load_study(options.study)
    quiet = lambda *state: None  # noqa: E731 - no progress wanted
    groups = study_groups(study, study_workloads(study))
    parts = solve_parts(groups, quiet)
    ended = search(groups, parts, study, quiet)
    hard = search_hard(groups, ended, parts, quiet)
    random = np.random.default_rng(study.seed)
    optima_count = sum(
        1 for n, end in enumerate(ended) if groups[n].candidate and end.best is not None
    )
    share = -(-options.points // max(1, optima_count))
    good = True
    for n, (group, end) in enumerate(zip(groups, ended, strict=True)):
        if group.candidate is None or end.best is None:
            continue
        name = f"{study.workloads[group.workload].name} {group.name}"
        branches = [branch for _, branch in group.branches]
        optima = end.at_best_start(end.lanes.x)
        x = optima[end.best]
        # around the best one where a branch was ruled out unsolved
        optima = np.where(np.isfinite(end.value)[:, None], optima, x)
        bounds = end.bound.min(), hard[n].bound
        good &= check_points(name, branches, optima, *bounds, share, random)
        if options.lattice:
            good &= check_lattice(name, branches[end.best], x, *bounds)
        good &= check_held(name, branches[end.best], x, end.value[end.best])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
