"""How fast is the exact optimum of a lattice found, and is it the one that every point would give?

    python experiments/exact_lattice.py [--sizes 10 52 100] [--brute 1e7] [--rows NAME ...]

Llama-3.1-70B on quarter dies, as in the embedded panel, with other degrees of parallelism, and with
limits that nothing meets. Seven axes of so many values each; memory, TDP and clock tied. Prints a
row for each lattice; those of `--brute` points at most are also visited point by point. Exits with
1 where an optimum is not proved, or is not that of all points. The first row of a roof compiles.
"""

import argparse
import math
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from litegpu_opt.execution.roofline import HardRoof, SoftRoof, for_pools
from litegpu_opt.optimizer.exact import lattice_optimum
from litegpu_opt.optimizer.exact.lattice import make_lattice
from litegpu_opt.optimizer.groups import study_groups, study_workloads
from litegpu_opt.optimizer.problem import objective_and_limits
from litegpu_opt.programs import compiled
from litegpu_opt.study import load_study


CHUNK = 20_000
FEASIBLE = 1e-9
AGREE = 1e-8

RANGES = {
    "die_area_mm2": (40.0, 214.5),
    "sm_count": (4.0, 132.0),
    "memory_stacks": (1.0, 8.0),
    "network_gb_s": (50.0, 2000.0),
    "batch_prefill": (1.0, 64.0),
    "batch_decode": (1.0, 1000.0),
    "clock_decode_ghz": (0.5, 2.5),
}
HELD = {"clock_prefill_ghz": 1.6}
TIED = ("clock_ghz", "memory_gb", "tdp_w")
DEGREES = ((1, 1), (2, 2), (1, 4))
IMPOSSIBLE_MS = 2.0
"""Between tokens, on one device."""


@compiled
def least_of(x, branch, ties, roofs):
    """Least objective of the feasible ones of many points; infinite without any."""

    def one(x):
        values = objective_and_limits(ties(x, branch), branch, roofs)
        return jnp.where(jnp.all(values[1:] <= FEASIBLE), values[0], jnp.inf)

    return jnp.min(jax.vmap(one)(x))


def visited(branch, layout, axes, roofs) -> float:
    """Least objective of all points, one by one."""
    lattice = make_lattice(branch, layout, axes, held=HELD, tied=TIED)
    sizes = lattice.last + 1
    count = math.prod(map(int, sizes))

    def chunk(first):
        numbers = np.minimum(np.arange(first, first + CHUNK), count - 1)
        indices = np.stack(np.unravel_index(numbers, sizes), axis=-1)
        return float(least_of(lattice.logs(indices), lattice.branch, lattice.ties, roofs))

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return min(pool.map(chunk, range(0, count, CHUNK)))


def agree(one: float, other: float) -> bool:
    """Whether two values are the same but for rounding; two infinite ones are."""
    return one == other or abs(one - other) <= AGREE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 52, 100])
    parser.add_argument("--brute", type=float, default=1e7)
    parser.add_argument("--roofs", nargs="+", default=["soft", "hard"])
    parser.add_argument("--rows", nargs="+", help="degrees as 2+2, or 'too fast'; all without")
    options = parser.parse_args()
    study = load_study(None)
    group = study_groups(study, study_workloads(study)[:1])[0]
    branches = {}
    for choice, branch in group.branches:
        branches.setdefault(choice.pairs[0], branch)
    rows = [("{}+{}".format(*pair), branches[pair]) for pair in DEGREES]
    limit_ms = np.minimum(rows[0][1].pools.limit_ms, IMPOSSIBLE_MS)
    pools = replace(rows[0][1].pools, limit_ms=limit_ms)
    rows.append(("too fast", replace(rows[0][1], pools=pools)))
    rows = [(name, branch) for name, branch in rows if name in (options.rows or dict(rows))]

    good = True
    print(
        "degrees   roof       points     kept    boxes       s   CPU s        value   brute force"
    )
    for roof in options.roofs:
        for size in options.sizes:
            axes = {name: np.geomspace(*ends, size) for name, ends in RANGES.items()}
            for name, branch in rows:
                found = lattice_optimum(
                    branch, group.layout, axes, held=HELD, tied=TIED, hard=roof == "hard"
                )
                brute = ""
                good &= found.proved
                if found.points <= options.brute:
                    soft = SoftRoof(branch.technology.execution.overlap_exponent)
                    roofs = HardRoof() if roof == "hard" else for_pools(soft)
                    start = time.perf_counter()
                    value = visited(branch, group.layout, axes, roofs)
                    brute = f"{value:.9f} {time.perf_counter() - start:.0f} s"
                    good &= agree(value, found.value)
                print(
                    f"{name:9} {roof} {found.points:12.3g} {found.points_kept:8} {found.boxes:8} "
                    f"{found.seconds:7.1f} {found.cpu_seconds:7.1f} {found.value:12.9f}   {brute}",
                    flush=True,
                )
    print("ok" if good else "FAIL")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
