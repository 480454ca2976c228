"""Is the certificate real? A million random feasible designs against the bound, and held variables.

    python experiments/certificate_check.py [--points 1000000] [--study STUDY.toml]

For every optimum of the study:

1. random points of random branches, near the optimum of the branch and anywhere in the box, are
   kept if every limit holds; the cheapest is compared with the certified lower bounds;
2. clock, stacks and network are held away from the optimum and the rest is solved again: the value
   must get worse.

Prints one line per check, exits with 1 if any fails.
"""

import argparse
import sys

import jax
import jax.numpy as jnp
import numpy as np

from litegpu_opt.execution.roofline import HardRoof, SoftRoof, for_pools
from litegpu_opt.machine.power import thermal_design_power_w
from litegpu_opt.machine.silicon import blocks, field_area_mm2
from litegpu_opt.optimizer.branches import hold, stack
from litegpu_opt.optimizer.groups import search, solve, solved, study_groups, study_workloads
from litegpu_opt.optimizer.hard import search_hard
from litegpu_opt.optimizer.problem import VARIABLES, design_at, objective_and_limits
from litegpu_opt.programs import compiled
from litegpu_opt.study import load_study


CHUNK = 50_000
HELD_SHARES = (0.8, 1.25)
HELD = ("clock_ghz", "memory_stacks", "network_gb_s")
FEASIBLE = 1e-12
SLOT = {name: i for i, name in enumerate(VARIABLES)}


def draw(key, branch, optimum):
    """Logarithms of a random point, repaired to respect area, clocks and memory.

    One in five is drawn from the whole box, the others around the optimum at random distances.
    """
    lower, upper = branch.box
    where, around, whole, far = jax.random.split(key, 4)
    spread = 10.0 ** jax.random.uniform(far, minval=-3.0, maxval=-0.3)
    near = optimum + spread * jax.random.normal(around, lower.shape)
    anywhere = lower + (upper - lower) * jax.random.uniform(whole, lower.shape)
    x = jnp.where(jax.random.uniform(where) < 0.2, anywhere, near)
    technology, process = branch.technology, branch.technology.process
    memory = technology.memory

    def put(x, name, value):
        return x.at[SLOT[name]].set(jnp.log(value))

    def get(x, name):
        return jnp.exp(x[SLOT[name]])

    field_mm2 = field_area_mm2(branch.aspect_ratio, technology)
    area_max_mm2 = jnp.minimum(branch.die_area_max_mm2, field_mm2)
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
    room = 1.0 + (design.die_area_mm2 - one.total_mm2) / sm_mm2
    x = put(x, "sm_count", jnp.clip(get(x, "sm_count"), 1.0, jnp.maximum(room, 1.0)))
    x = put(x, "tdp_w", thermal_design_power_w(design_at(x, branch), technology))
    usable_gb = technology.execution.memory_usable_share * get(x, "memory_gb")
    fit = (usable_gb - branch.pools.weights_gb) / branch.pools.kv_gb_per_seq
    for pool, phase in enumerate(("prefill", "decode")):
        clock, batch = f"clock_{phase}_ghz", f"batch_{phase}"
        x = put(x, clock, jnp.minimum(get(x, clock), get(x, "clock_ghz")))
        x = put(x, batch, jnp.clip(get(x, batch), 1.0, jnp.maximum(fit[pool], 1.0)))
    return x


@compiled
def cheapest(keys, branches, optima):
    """Feasible points in a chunk, and the least soft and hard objective among them."""

    def one(key, branch, optimum):
        x = draw(key, branch, optimum)
        exponent = branch.technology.execution.overlap_exponent
        soft = objective_and_limits(x, branch, for_pools(SoftRoof(exponent)))
        hard = objective_and_limits(x, branch, HardRoof())
        ok_soft = jnp.all(soft[1:] <= FEASIBLE)
        ok_hard = jnp.all(hard[1:] <= FEASIBLE)
        return (
            ok_soft,
            jnp.where(ok_soft, soft[0], jnp.inf),
            ok_hard,
            jnp.where(ok_hard, hard[0], jnp.inf),
        )

    ok_soft, soft, ok_hard, hard = jax.vmap(one)(keys, branches, optima)
    return jnp.sum(ok_soft), jnp.min(soft), jnp.sum(ok_hard), jnp.min(hard)


def check_points(name, branches, optima, bound, hard_bound, points, random) -> bool:
    """Random feasible points of all branches against both bounds."""
    found, drawn, least, hard_least = 0, 0, np.inf, np.inf
    table = stack(branches)
    key = jax.random.key(int(random.integers(2**31)))
    while found < points and drawn < 4000 * points:
        key, part = jax.random.split(key)
        rows = random.integers(len(branches), size=CHUNK)
        chunk = jax.tree.map(lambda leaf, rows=rows: leaf[rows], table)
        count, soft, _, hard = cheapest(jax.random.split(part, CHUNK), chunk, optima[rows])
        found, drawn = found + int(count), drawn + CHUNK
        least, hard_least = min(least, float(soft)), min(hard_least, float(hard))
    good = found >= points and least >= bound and hard_least >= hard_bound
    above, hard_above = np.expm1(least - bound), np.expm1(hard_least - hard_bound)
    print(
        f"{name}: {found:,} feasible of {drawn:,} drawn; the cheapest is {above:.4%} above the "
        f"bound, hard {hard_above:.4%}  {'ok' if good else 'FAIL'}"
    )
    return good


def check_held(name, branch, x, value) -> bool:
    """Each of a few variables held away from its optimum must make the value worse."""
    values = dict(zip(VARIABLES, np.exp(x), strict=True))
    trials = [(held, share) for held in HELD for share in HELD_SHARES]
    rows = [hold(branch, {held: share * values[held]}) for held, share in trials]
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
    parser.add_argument("--study", help="a study file; the embedded panel without one")
    options = parser.parse_args()
    study = load_study(options.study)
    quiet = lambda *state: None  # noqa: E731 - no progress wanted
    groups = study_groups(study, study_workloads(study))
    ended = search(groups, study, quiet)
    hard = search_hard(groups, ended, quiet)
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
        good &= check_points(name, branches, optima, end.bound.min(), hard[n].bound, share, random)
        x = optima[end.best]
        good &= check_held(name, branches[end.best], x, end.value[end.best])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
