"""Is the optimum of every built-in model certified? Gaps of all of them, in one process.

    python experiments/every_model.py [--models NAME ...] [--out FILE.csv]

Every dense model, then every mixture of experts: fp8 weights and cache, prompts of 1500 tokens and
answers of 500, 1 s to the first token and 50 ms between tokens, groups of up to 64 devices, a die
within the reticle field and one of a quarter of it. For each optimum:

- soft and hard: relaxed optimum over its bound, smooth and hard roofline;
- buildable: over the bound of its own stacks, capacity and ports; lattice: over the bound of
  everything buildable;
- agreement: least share of starts that found the optimum of their branch.

Exits with 1 where a dense model misses a gap, or any model that of its buildable design. Experts
are bounded by chords of ranges that are divided while more than 1e-4 could be gained: their gaps
are printed, and not judged.
"""

import argparse
import csv
import io
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from litegpu_opt.files import write_atomic
from litegpu_opt.optimizer.panel import optimize
from litegpu_opt.optimizer.result import Optimum, WorkloadResult
from litegpu_opt.study import Study
from litegpu_opt.workload.huggingface import builtin_models, read_transformer


SOFT, HARD, BUILDABLE = 1e-6, 1e-4, 0.015
"""Largest gaps."""
STARTS_AGREE = 1.0
CANDIDATES = (
    {"name": "reticle", "dies_per_package": [1]},
    {"name": "lite", "die_area_max": "214.5 mm^2", "dies_per_package": [1]},
)
OUT = Path(__file__).parent / "results" / "every_model.csv"
Row = dict[str, str | float | int | bool | None]


def study_of(models: Sequence[str]) -> Study:
    """One workload for each model, so that all share the compiled programs."""
    return Study.model_validate(
        {
            "name": "every-model",
            "technology": {"cooling": ["liquid"]},
            "space": {"tensor_parallel_max": 64},
            "workload": [
                {
                    "name": model,
                    "model": model,
                    "weights": "fp8",
                    "kv": "fp8",
                    "prompt_tokens": 1500,
                    "output_tokens": 500,
                    "ttft": "1 s",
                    "tbt": "50 ms",
                }
                for model in models
            ],
            "candidate": list(CANDIDATES),
            "baseline": [{"accelerator": "h100-sxm"}],
        }
    )


def rows_of(item: WorkloadResult) -> Iterator[Row]:
    """One row for each candidate; one without an optimum has no gaps."""
    dense = not item.workload.transformer.has_experts
    optima = {optimum.name: optimum for optimum in item.optima}
    for candidate in CANDIDATES:
        optimum = optima.get(str(candidate["name"]))
        row: Row = {"model": item.name, "experts": not dense, "candidate": str(candidate["name"])}
        if optimum is None:
            [entry] = [entry for entry in item.infeasible if entry.name == candidate["name"]]
            yield row | {"open_branches": entry.starts.open_branches, "within": True}
        else:
            yield row | _gaps(optimum) | {"within": within(optimum, dense)}


def _gaps(optimum: Optimum) -> Row:
    ((tp_prefill, tp_decode),) = optimum.run.choice.pairs
    built = optimum.buildable
    return {
        "tp_prefill": tp_prefill,
        "tp_decode": tp_decode,
        "usd_per_million_tokens": optimum.soft.value,
        "soft_gap": optimum.soft.gap,
        "hard_gap": optimum.hard.gap,
        "buildable_gap": built.branch_gap if built else None,
        "lattice_gap": built.lattice_gap if built else None,
        "relaxed_gap": built.gap if built else None,
        "starts_agree": optimum.starts.least_agreement,
        "open_branches": optimum.starts.open_branches,
    }


def within(optimum: Optimum, dense: bool) -> bool:
    """Whether the gaps are as small as they have to be."""
    built = optimum.buildable is not None and optimum.buildable.branch_gap <= BUILDABLE
    certified = optimum.soft.gap <= SOFT and optimum.hard.gap <= HARD
    agreed = optimum.starts.least_agreement == STARTS_AGREE
    return built and (not dense or (certified and agreed))


def as_line(row: Row) -> str:
    gaps = ("soft_gap", "hard_gap", "buildable_gap", "lattice_gap", "relaxed_gap")
    if "soft_gap" not in row:
        return f"{row['model']:24}{row['candidate']:9}not feasible"
    cells = (f"{math.nan if row[key] is None else row[key]:11.1e}" for key in gaps)
    degrees = f"{row['tp_prefill']}/{row['tp_decode']}"
    return (
        f"{row['model']:24}{row['candidate']:9}{degrees:>6}{row['usd_per_million_tokens']:10.4f}"
        f"{''.join(cells)}{row['starts_agree']:8.0%}  {'ok' if row['within'] else 'MISSED'}"
    )


def as_csv(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def reporter():
    """Stages on stderr, each when it begins and when it is done."""
    begin, last = time.perf_counter(), [""]

    def report(stage: str, done: int, total: int) -> None:
        if stage != last[0] or done == total:
            last[0] = stage
            seconds = time.perf_counter() - begin
            print(f"{seconds:7.1f} s  {stage}: {done} of {total}", file=sys.stderr, flush=True)

    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=builtin_models(), help="all without")
    parser.add_argument("--out", type=Path, default=OUT, help="file for the result, CSV")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    models = options.models or list(builtin_models())
    rows: list[Row] = []
    print(
        f"{'model':24}{'':9}{'tp':>6}{'USD/M':>10}{'soft':>11}{'hard':>11}{'buildable':>11}"
        f"{'lattice':>11}{'relaxed':>11}{'agree':>8}"
    )
    for experts in (False, True):
        chosen = [name for name in models if read_transformer(name).has_experts == experts]
        if not chosen:
            continue
        for item in optimize(study_of(chosen), reporter()).panel:
            rows += rows_of(item)
            for row in rows[-len(CANDIDATES) :]:
                print(as_line(row), flush=True)
        write_atomic(options.out, as_csv(rows))
    return 0 if all(row["within"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
