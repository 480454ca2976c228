"""What the quick-compile options buy: compile and run time of one solver step, with and without.

    python benchmarks/compile_time.py

Processor seconds, and their ratio within this run.
"""

import itertools
import os
import time

import jax
import numpy as np

from litegpu_opt.execution.roofline import SoftRoof, for_pools
from litegpu_opt.optimizer import interior
from litegpu_opt.optimizer.branches import stack
from litegpu_opt.optimizer.groups import study_groups, study_workloads
from litegpu_opt.optimizer.lanes import LANES_PER_CHUNK, functions_of
from litegpu_opt.programs import QUICK_COMPILE
from litegpu_opt.study import load_study


REPEATS = 5


def processor_s() -> float:
    """Processor seconds of this process so far."""
    times = os.times()
    return times.user + times.system


def main() -> None:
    study = load_study()
    group = study_groups(study, study_workloads(study))[0]
    lanes = [
        branch for _, branch in itertools.islice(itertools.cycle(group.branches), LANES_PER_CHUNK)
    ]
    branches = stack(lanes)
    lower, upper = (np.asarray(side) for side in group.branches[0][1].box)
    points = lower + (upper - lower) * np.random.default_rng(0).uniform(
        size=(LANES_PER_CHUNK, len(lower))
    )
    roofs = for_pools(SoftRoof(2.0), group.branches[0][1].pool_count)

    def start(branch, x):
        return interior.start(functions_of(branch, roofs), x, *branch.box)

    def step(branch, state):
        return interior.step(functions_of(branch, roofs), state, *branch.box)

    states = jax.jit(jax.vmap(start))(branches, points)
    lowered = jax.jit(jax.vmap(step)).lower(branches, states)
    measured = {}
    for name, options in (("default", None), ("quick", dict(QUICK_COMPILE))):
        begin = processor_s()
        program = lowered.compile(compiler_options=options)
        compiled_s = processor_s() - begin
        jax.block_until_ready(program(branches, states))
        begin = time.perf_counter()
        for _ in range(REPEATS):
            jax.block_until_ready(program(branches, states))
        step_us = (time.perf_counter() - begin) / REPEATS / LANES_PER_CHUNK * 1e6
        measured[name] = compiled_s, step_us
        print(f"{name:8s} compile {compiled_s:5.1f} processor s   step {step_us:6.1f} us a lane")
    ratios = [q / d for q, d in zip(measured["quick"], measured["default"], strict=True)]
    print(f"quick/default: compile {ratios[0]:.2f}, step {ratios[1]:.2f}")


if __name__ == "__main__":
    main()
