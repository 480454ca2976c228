"""Pairs of hardware point and deployment per second, beside what the machine can do at most.

    python benchmarks/sweep_speed.py [--out benchmarks/results/sweep_speed.json] [--long]

Every pair is prefill and decode of Llama-3.1-70B with its real operators, all limits, dollars and
energy, reduced to the best deployment of each hardware point; once more with a histogram of watts.
The bound is a bare loop of multiplications and maxima on the same blocks, in four independent
chains, with as many operations per pair as the program of the sweep has (its loops are counted; a
root, a logarithm and an exponential count as one).

`product`: a group has 32 x 64 batches, so that a row of a pool is shared by many pairs. `alone`:
every deployment has rows of its own. Both are timed on one core and on all; `cpu` divides by
processor seconds instead, which says what idle cores would do on a machine that is shared.

`--long` adds memory and time of 1e8, 1e9 and 1e10 points, each in a process of its own. The same
command measures a GPU where JAX has one.
"""

import argparse
import concurrent.futures
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from litegpu_opt.study import load_study
from litegpu_opt.sweep.run import make_engine, sweep


STUDY = """
[technology]
cooling = "liquid"
[technology.overrides]
"execution.overlap_exponent" = {exponent}
[[workload]]
name = "70b"
model = "llama-3.1-70b"
weights = "fp8"
kv = "fp8"
prompt_tokens = 1500
output_tokens = 500
ttft = "1 s"
tbt = "50 ms"
limits = {{ joules_per_token = 10.0 }}
[sweep]
roof = "{roof}"
best = 10
histograms = {histograms}
[sweep.axes]
die_area = {{ from = "400 mm^2", to = "640 mm^2", points = {areas} }}
sm_count = {{ from = 40, to = 160, points = 16 }}
clock = {{ from = "1 GHz", to = "2 GHz", points = 16 }}
memory_stacks = [2, 4, 6, 8]
memory = ["96 GB", "144 GB", "192 GB", "288 GB"]
network_per_direction = "200 GB/s"
{ways}
"""
PRODUCT = """
tp_prefill = [1, 2]
tp_decode = [1, 2, 4, 8]
batch_prefill = {{ from = 1, to = 32, points = 32 }}
batch_decode = {{ from = 8, to = 512, points = 64, scale = "log" }}
"""
ALONE = """
tp_prefill = [1, 2]
tp_decode = [1, 2, 4, 8]
batch_prefill = { from = 1, to = 32, sobol = true }
batch_decode = { from = 8, to = 512, scale = "log", sobol = true }
"""
ROOFS = {"hard": ("hard", 2.0), "q = 2": ("soft", 2.0), "q = 3": ("soft", 3.0)}
ARITHMETIC = set(
    "add sub mul div max min sqrt exp exp2 log log1p expm1 pow integer_pow square neg abs sign "
    "eq ne lt le gt ge and or not select_n is_finite logistic".split()
)
REPEATS = 4


def study_of(roof: str, ways: str, areas: int, histograms: str = '["power_w"]'):
    name, exponent = ROOFS[roof]
    text = STUDY.format(
        roof=name,
        exponent=exponent,
        areas=areas,
        ways=ways.replace("{{", "{").replace("}}", "}"),
        histograms=histograms,
    )
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        return load_study(file.name)


def operations(jaxpr) -> float:
    """Elementwise operations of a program; a loop of unknown length counts once."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name in ARITHMETIC:
            total += float(np.prod(equation.outvars[0].aval.shape))
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    total += times * operations(inner)
    return total


def bare(count: int, block: int, deployments: int):
    """A loop over deployments of `count` multiplications and maxima on a block."""

    def body(number, total):
        chains, factor = [vectors[row] for row in range(4)], scalars[number]
        for step in range(count // 2):
            chains[step % 4] = jnp.maximum(chains[step % 4] * factor, vectors[step % 8])
        return total + sum(chains)

    random = np.random.default_rng(0)
    vectors = jnp.asarray(random.uniform(0.5, 1.0, (8, block)), jnp.float32)
    scalars = jnp.asarray(random.uniform(0.9, 1.0, deployments), jnp.float32)
    run = jax.jit(
        lambda start: jax.lax.fori_loop(0, deployments, body, jnp.full(block, start, jnp.float32))
    )
    return lambda: jax.block_until_ready(run(0.0))


def timed(call, points: int, workers: int) -> dict:
    """Points per second of a call on some threads at once: by the clock, and by processor time."""
    call()
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        runs = []
        for _ in range(REPEATS):
            wall, cpu = time.perf_counter(), time.process_time()
            list(pool.map(lambda _: call(), range(workers)))
            runs.append((time.perf_counter() - wall, time.process_time() - cpu))
    return {
        "wall": points * workers / min(wall for wall, _ in runs),
        "cpu": points * workers / min(cpu for _, cpu in runs),
    }


def measured(roof: str, ways: str, cores: int, histograms: str) -> dict:
    """Speed of one kind of sweep, and of the bare loop."""
    engine = make_engine(study_of(roof, ways, 4, histograms), devices=jax.local_devices()[:1])
    began = time.process_time()
    engine.prepare()
    compile_s = time.process_time() - began
    grid, layout, screens = engine.problem.grid, engine.layout, engine.no_screens()
    points = layout.block * layout.groups * grid.prefill_rows * grid.decode_rows
    first = np.zeros(1, np.int64)

    def tile():
        jax.block_until_ready(engine.tiles(first, first, screens))

    tables = engine._tables
    traced = jax.make_jaxpr(
        lambda found: engine._tile(jnp.int64(0), jnp.int64(0), engine._cast(found), screens, tables)
    )(engine._at(first))
    of_group = layout.block * grid.prefill_rows * grid.decode_rows
    count = operations(traced.jaxpr) / of_group
    result = {"operations_per_pair": round(count, 1), "compile_cpu_s": round(compile_s, 1)}
    deployments = 4096
    kernel = bare(2 * round(count / 2), layout.block, deployments)
    for workers in sorted({1, cores}):
        mine = timed(tile, points, workers)
        bound = timed(kernel, layout.block * deployments, workers)
        result[f"{workers} threads"] = {
            "pairs_per_s": mine["wall"],
            "bare_per_s": bound["wall"],
            "pairs_per_cpu_s": mine["cpu"],
            "bare_per_cpu_s": bound["cpu"],
            "share_of_bare": mine["cpu"] / bound["cpu"],
        }
    return result


def long_run(points: float) -> dict:
    """Seconds and peak memory of a whole sweep; in a process of its own."""
    areas = max(2, round(points / (4096 * 16384)))
    study = study_of("q = 2", PRODUCT, areas, "[]")
    seconds = []
    with tempfile.TemporaryDirectory() as out:
        result = sweep(study, out, report=lambda progress: seconds.append(progress.seconds))
    return {
        "points": result["points"],
        "seconds": seconds[-1],
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "best": result["best"][0]["value"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="file for the result")
    parser.add_argument("--long", action="store_true", help="also memory and time of 1e8 to 1e10")
    parser.add_argument("--points", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.points:
        print(json.dumps(long_run(options.points)))
        return
    cores = os.cpu_count() or 1
    result = {
        "machine": platform.machine(),
        "device": str(jax.local_devices()[0]),
        "cores": cores,
        "load_before": os.getloadavg(),
        "speed": {},
    }
    for kind, ways in (("product", PRODUCT), ("alone", ALONE)):
        for roof in ROOFS:
            for histograms in ("[]", '["power_w"]') if kind == "product" else ("[]",):
                name = f"{kind}, {roof}" + (", histogram of watts" if histograms != "[]" else "")
                result["speed"][name] = found = measured(roof, ways, cores, histograms)
                print(name, json.dumps(found), file=sys.stderr, flush=True)
    if options.long:
        result["long"] = []
        for points in (1e8, 1e9, 1e10):
            done = subprocess.run(
                [sys.executable, __file__, "--points", str(points)],
                capture_output=True,
                text=True,
                check=True,
            )
            result["long"].append(json.loads(done.stdout))
            print(done.stdout, file=sys.stderr, flush=True)
    result["load_after"] = os.getloadavg()
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
