"""How long the main job takes: cold, and in a new process with a warm compilation cache.

    python benchmarks/optimize_time.py [--runs 2] [--out benchmarks/results/optimize_time.json]

Runs `litegpu optimize --json` in new processes: the first with an empty cache, the others with what
it left. Records wall-clock and processor seconds, the stages, and the share of the cold run that
compilation is (cold - warm). Seconds depend on the machine; the ratio within the run is the result.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run(cache: str) -> dict:
    """One run of the main job in a new process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "litegpu_opt", "optimize", "--json"],
        env={**os.environ, "LITEGPU_CACHE": cache},
        capture_output=True,
        check=True,
    )
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "wall_s": round(wall, 2),
        "processor_s": round(processor, 2),
        "stages_s": json.loads(done.stdout)["seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2, help="warm runs")
    parser.add_argument("--out", type=Path, help="file for the result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        cold = run(cache)
        warm = [run(cache) for _ in range(options.runs)]
    least = min(item["wall_s"] for item in warm)
    result = {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cold": cold,
        "warm": warm,
        "compile_share_of_cold": round(1.0 - least / cold["wall_s"], 3),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
