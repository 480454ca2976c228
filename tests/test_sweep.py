"""Sweeps: the same numbers as `evaluate`, every reduction against brute force, nothing lost."""

import dataclasses
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import COMPILED
from scipy.stats.qmc import Sobol

import litegpu_opt as lg
from litegpu_opt.catalog import HARDWARE_TABLES
from litegpu_opt.cli import main
from litegpu_opt.errors import UserError
from litegpu_opt.execution.roofline import HardRoof, SoftRoof
from litegpu_opt.limits import LIMIT_NAMES, TOLERANCE, limits_that_apply
from litegpu_opt.study import load_study, resolved_toml, study_hash
from litegpu_opt.study.sweep import LARGER_IS_BETTER, METRICS
from litegpu_opt.sweep.parts import compute_part, count_parts, empty_state, first_look, visit_part
from litegpu_opt.sweep.reduce import Found, front, packed, unpacked
from litegpu_opt.sweep.rows import values_at
from litegpu_opt.sweep.run import asked, make_engine, result_of, sweep
from litegpu_opt.sweep.sobol import sobol
from litegpu_opt.workload.parallelism import Parallelism


STUDY = """
seed = 3
[technology]
cooling = ["liquid", "air"]

[[workload]]
name = "8b"
model = "llama-3.1-8b"
weights = "fp8"
kv = "fp8"
prompt_tokens = 1500
output_tokens = 500
ttft = "60 ms"
tbt = "10 ms"
limits = { joules_per_token = 0.15 }

[sweep]
best = 7
fronts = [["usd_per_million_tokens", "joules_per_token"],
          ["usd_per_million_tokens", "ttft_ms", "tokens_per_s"]]
maps = [["die_area", "batch_decode"], ["tp_decode", "memory_stacks"]]
histograms = ["usd_per_million_tokens"]
part_points = 192

[sweep.axes]
die_area = ["500 mm^2", "660 mm^2"]
sm_count = 90
clock = "1.5 GHz"
clock_decode = ["1.2 GHz", "1.5 GHz"]
memory_stacks = [2, 5]
memory = ["48 GB", "120 GB"]
network_per_direction = "200 GB/s"
"process.defects_per_cm2" = { from = 0.05, to = 0.2, points = 3, scale = "log" }
tp_prefill = 2
tp_decode = [1, 4]
batch_prefill = [1, 3]
batch_decode = { from = 16, to = 256, points = 3, scale = "log" }
prompt_tokens = [1000, 2000]
"""
HARDWARE, DEPLOYMENTS = 2 * 2 * 2 * 2 * 2 * 3, 2 * 2 * 2 * 3


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweep") / "study.toml"
    path.write_text(STUDY)
    return load_study(path)


@pytest.fixture(scope="module")
def engine(study):
    engine = make_engine(study)
    engine.prepare()
    return engine


@pytest.fixture(scope="module")
def everything(engine):
    """Metrics and feasibility of all points, `(hardware, deployments)`, each worked out alone."""
    columns = []
    for start in range(0, HARDWARE, engine.layout.detail):
        points = engine.points(start + np.arange(engine.layout.detail), 0, engine.no_screens())
        columns.append(jax.device_get(points))
    metrics = {
        name: np.concatenate([p.metrics[name].T for p in columns]).astype(float) for name in METRICS
    }
    return metrics, np.concatenate([p.feasible.T for p in columns])


@pytest.fixture(scope="module")
def result(engine, study):
    edges, fronts = first_look(engine)
    state = empty_state(engine)
    for part in reversed(range(count_parts(engine))):
        state.add(unpacked(packed(visit_part(engine, part, edges, fronts)[0])), 7)
    return result_of(engine, state, asked(study, x64=False), edges)


def test_the_grid_is_cut_into_parts(engine):
    assert engine.problem.grid.hardware.size == HARDWARE
    assert engine.problem.grid.deployments == DEPLOYMENTS
    assert count_parts(engine) == 12


@functools.cache
def combination(name):
    """The technology of a combination's name."""
    entries = dict(zip(HARDWARE_TABLES, name.split("/"), strict=True))
    return lg.technology(**entries, execution="calibrated", prices="cost")


@eqx.filter_jit
def evaluated(design, deployment, technology, workload, roof):
    return lg.evaluate(design, deployment, technology, workload, roof=roof)


def alone(problem, axes, roof=None):
    """The point with some values of the axes, by `evaluate`: metrics, and limits that it breaks."""
    tree = combination(axes["technology"])
    process = dataclasses.replace(tree.process, defects_per_cm2=axes["process.defects_per_cm2"])
    design = lg.Design(
        die_area_mm2=axes["die_area"],
        sm_count=axes["sm_count"],
        clock_ghz=axes["clock"],
        memory_stacks=axes["memory_stacks"],
        memory_gb=axes["memory"],
        network_gb_s=axes["network_per_direction"],
    )
    deployment = lg.Deployment(
        Parallelism(int(axes["tp_prefill"])),
        Parallelism(int(axes["tp_decode"])),
        axes["batch_prefill"],
        axes["batch_decode"],
        axes["clock"],
        axes["clock_decode"],
    )
    workload = eqx.tree_at(
        lambda w: w.traffic.prompt_tokens, problem.workload, jnp.float64(axes["prompt_tokens"])
    )
    metrics = evaluated(
        design, deployment, dataclasses.replace(tree, process=process), workload, roof
    )
    limits = np.array(metrics.limits)
    limits[LIMIT_NAMES.index("joules_per_token_max")] = 0.15
    broken = np.asarray(metrics.uses) > limits * (1.0 + TOLERANCE)
    found = {
        "usd_per_million_tokens": 1e6 * metrics.usd_per_token,
        "joules_per_token": metrics.joules_per_token,
        "package_seconds_per_token": jnp.sum(metrics.services.device_seconds_per_token),
        "sm_seconds_per_token": jnp.sum(metrics.services.device_seconds_per_token) * 90.0,
        "power_w": metrics.power_w,
        "ttft_ms": metrics.services.latency_ms[0],
        "tbt_ms": metrics.services.latency_ms[1],
        "tokens_per_s": metrics.tokens_per_s,
        "tdp_w": metrics.tdp_w,
        "unit_cost_usd": metrics.bill_of_materials.total_usd,
    }
    names = {name for name, bad in zip(LIMIT_NAMES, broken, strict=True) if bad}
    return {name: float(value) for name, value in found.items()}, names


def test_points_are_those_of_evaluate(engine, everything):
    metrics, feasible = everything
    random = np.random.default_rng(0)
    hardware, deployment = random.integers(0, HARDWARE, 60), random.integers(0, DEPLOYMENTS, 60)
    for h, d, axes in zip(
        hardware, deployment, values_at(engine.problem, hardware, deployment), strict=True
    ):
        found, broken = alone(engine.problem, axes)
        assert feasible[h, d] == (not broken)
        for name in METRICS:
            assert metrics[name][h, d] == pytest.approx(found[name], rel=1e-5), name


@pytest.mark.parametrize("roof", ["soft", "hard"])
def test_double_precision_agrees_to_1e_12(study, roof):
    changed = study.sweep.model_copy(update={"roof": roof, "fronts": (), "maps": ()})
    engine = make_engine(study.model_copy(update={"sweep": changed}), x64=True)
    hardware = np.array([1, 17, 40, 95])
    points = jax.device_get(engine.points(hardware, 0, engine.no_screens()))
    for column, h in enumerate(hardware):
        for d in (5, 20):
            [axes] = values_at(engine.problem, np.array([h]), np.array([d]))
            found, _ = alone(engine.problem, axes, HardRoof() if roof == "hard" else None)
            for name in METRICS:
                value = points.metrics[name][d, column]
                assert value == pytest.approx(found[name], rel=1e-12), name


def test_experts_are_touched_by_the_batch(tmp_path):
    path = tmp_path / "mixture.toml"
    path.write_text(STUDY.replace("llama-3.1-8b", "qwen3-30b-a3b").replace("limits = {", "# {"))
    engine = make_engine(load_study(path), x64=True)
    points = jax.device_get(engine.points(np.array([1, 40]), 0, engine.no_screens()))
    for column, h in enumerate((1, 40)):
        for d in (5, 20):
            [axes] = values_at(engine.problem, np.array([h]), np.array([d]))
            found, _ = alone(engine.problem, axes)
            for name in METRICS:
                value = points.metrics[name][d, column]
                assert value == pytest.approx(found[name], rel=1e-12), name


def test_the_root_is_the_soft_roof_of_2():
    from litegpu_opt.execution.roofline import EuclideanRoof

    a, b = jnp.geomspace(1e-3, 1e3, 7), jnp.full(7, 2.0)
    assert np.allclose(EuclideanRoof()(a, b), SoftRoof(2.0)(a, b), rtol=1e-13, atol=0)


def test_every_point_is_counted(engine, everything, result):
    _, feasible = everything
    points = HARDWARE * DEPLOYMENTS
    assert result["points"] == points
    assert result["feasible"] == feasible.sum() > 0
    assert result["feasible"] + result["not_finite"] + result["infeasible"] == points
    problem = engine.problem
    concerned = limits_that_apply({"": problem.workload}, problem.tables.caps)
    assert set(result["violated"]) == {name for name in LIMIT_NAMES if concerned.get(name, True)}


def test_points_outside_each_limit_are_those_of_evaluate(engine):
    edges, fronts = first_look(engine)
    hardware, deployment = (grid.ravel() for grid in np.indices((8, DEPLOYMENTS)))
    for part in (6,):
        state = visit_part(engine, part, edges, fronts)[0]
        counts = dict.fromkeys(state.violated, 0)
        feasible = 0
        for axes in values_at(engine.problem, 8 * part + hardware, deployment):
            _, broken = alone(engine.problem, axes)
            feasible += not broken
            for name in broken:
                counts[name] += 1
        assert counts == state.violated and feasible == state.feasible


def brute_best(metrics, feasible):
    value = np.where(feasible, metrics["usd_per_million_tokens"], np.inf)
    return value, np.argsort(value, axis=None, kind="stable")


def test_best_points(everything, result):
    value, order = brute_best(*everything)
    for place, entry in enumerate(result["best"]):
        h, d = np.unravel_index(order[place], value.shape)
        assert (entry["hardware"], entry["deployment"]) == (h, d)
        assert entry["value"] == entry["metrics"]["usd_per_million_tokens"] == value[h, d]
    assert len(result["best"]) == 7


def test_best_hardware(everything, result):
    value, _ = brute_best(*everything)
    order = np.argsort(value.min(axis=1), kind="stable")[:7]
    assert [entry["hardware"] for entry in result["best_hardware"]] == order.tolist()
    found = [entry["deployment"] for entry in result["best_hardware"]]
    assert found == value[order].argmin(axis=1).tolist()


def test_fronts(everything, result):
    metrics, feasible = everything
    for entry in result["fronts"]:
        signs = [-1.0 if name in LARGER_IS_BETTER else 1.0 for name in entry["metrics"]]
        costs = np.stack(
            [sign * metrics[n] for n, sign in zip(entry["metrics"], signs, strict=True)], -1
        )
        h, d = np.nonzero(feasible)
        costs = costs[h, d]
        beaten = [
            bool(np.any(np.all(costs <= point, axis=1) & np.any(costs < point, axis=1)))
            for point in costs
        ]
        expected = {tuple(point) for point, bad in zip(costs, beaten, strict=True) if not bad}
        found = {
            tuple(
                metrics[n][p["hardware"], p["deployment"]] * s
                for n, s in zip(entry["metrics"], signs, strict=True)
            )
            for p in entry["points"]
        }
        assert found == expected
        assert len(entry["points"]) == len(expected) > 1


def test_maps(engine, everything, result):
    value, _ = brute_best(*everything)
    hardware, deployment = (grid.ravel() for grid in np.indices(value.shape))
    axes = values_at(engine.problem, hardware, deployment)
    for entry in result["maps"]:
        first, second = entry["axes"]
        for row, column in np.ndindex(*(len(side) for side in entry["values"])):
            inside = np.array(
                [
                    np.isclose(a[first], entry["values"][0][row], rtol=1e-12)
                    and np.isclose(a[second], entry["values"][1][column], rtol=1e-12)
                    for a in axes
                ]
            ).reshape(value.shape)
            least = np.where(inside, value, np.inf)
            found = entry["best"][row][column]
            if np.isinf(least.min()):
                assert found is None and entry["hardware"][row][column] == -1
            else:
                h, d = np.unravel_index(least.argmin(), least.shape)
                assert (found, entry["hardware"][row][column]) == (least.min(), h)
                assert entry["deployment"][row][column] == d


def test_histograms(everything, result):
    metrics, feasible = everything
    [entry] = result["histograms"]
    values = metrics["usd_per_million_tokens"][feasible]
    edges = np.array(entry["edges"], np.float32).astype(float)
    expected = [(values <= edge).sum() for edge in edges]
    assert entry["below"] == expected[0]
    assert entry["counts"] == np.diff(expected).tolist()
    assert entry["above"] == feasible.sum() - expected[-1]
    assert entry["below"] + sum(entry["counts"]) + entry["above"] == feasible.sum()


def test_what_is_not_a_number_is_counted(engine):
    tables = engine._tables
    broken = eqx.tree_at(
        lambda t: t.technologies.prices.host_usd_per_package, tables, jnp.full(2, jnp.nan)
    )
    edges, fronts = first_look(engine)
    good = visit_part(engine, 0, edges, fronts)[0]
    engine._tables = broken
    try:
        bad = visit_part(engine, 0, edges, fronts)[0]
    finally:
        engine._tables = tables
    assert bad.points == good.points and bad.violated == good.violated
    assert bad.within == good.within >= good.feasible and bad.feasible == 0


def test_a_front_keeps_the_first_of_equal_points():
    value = np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0], [2.0, 2.0]])
    for columns in (value, np.column_stack([value, np.ones(4)])):
        found = front(Found(columns, np.array([5, 3, 1, 0]), np.arange(4)))
        assert found.hardware.tolist() == [3, 1]


def test_sobol_points_are_those_of_scipy():
    # the shift is undone by comparing bits with an unshifted point
    points = np.asarray(jax.vmap(lambda i: sobol(i, 16, 5))(jnp.arange(256)))
    bits = np.floor(points * 2**32).astype(np.uint64)
    plain = (Sobol(16, scramble=False, bits=32).random(256) * 2**32).astype(np.uint64)
    assert np.array_equal(bits ^ bits[0], plain ^ plain[0])
    assert not np.array_equal(points, jax.vmap(lambda i: sobol(i, 16, 6))(jnp.arange(256)))


def run(study_path, out, *options, flags="", check=True):
    """`litegpu sweep` in a process of its own."""
    environment = {**os.environ, "LITEGPU_CACHE": str(COMPILED), "XLA_FLAGS": flags}
    command = [sys.executable, "-m", "litegpu_opt", "sweep", str(study_path), "--out", str(out)]
    done = subprocess.run(
        [*command, *options], env=environment, capture_output=True, text=True, check=False
    )
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, study):
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "study.toml").write_text(resolved_toml(study))
    done = run(folder / "study.toml", folder / "out")
    assert "points/s" in done.stderr and "ETA" in done.stderr and "compiled in" in done.stderr
    assert "feasible" in done.stderr and "best" in done.stderr and "\r" not in done.stderr
    return folder


def test_a_study_with_a_sweep_is_written_and_read_again(study, undisturbed):
    again = load_study(undisturbed / "study.toml")
    assert again.sweep == study.sweep and study_hash(again) == study_hash(study)


def test_a_run_is_the_same_as_its_parts(result, undisturbed):
    written = json.loads((undisturbed / "out" / "result.json").read_text())
    assert written == json.loads(json.dumps(result))


def test_killed_and_started_again(undisturbed, tmp_path):
    environment = {**os.environ, "LITEGPU_CACHE": str(COMPILED)}
    command = [sys.executable, "-m", "litegpu_opt", "sweep", str(undisturbed / "study.toml")]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path)], env=environment, stderr=subprocess.DEVNULL
    )
    parts = tmp_path / "parts"
    while process.poll() is None and not list(parts.glob("part-*.npz")):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in parts.glob("part-*.npz")}
    assert before
    (tmp_path / "result.json").unlink(missing_ok=True)
    for path in list(before)[6:]:  # as if it had been killed at half, however fast it was
        path.unlink()
        before.pop(path)
    run(undisturbed / "study.toml", tmp_path)
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())
    same = [(folder / "result.json").read_bytes() for folder in (tmp_path, undisturbed / "out")]
    assert same[0] == same[1]


def test_two_devices(undisturbed, tmp_path):
    run(undisturbed / "study.toml", tmp_path, flags="--xla_force_host_platform_device_count=2")
    one, two = (
        json.loads((folder / "result.json").read_text())
        for folder in (undisturbed / "out", tmp_path)
    )
    assert two["feasible"] == one["feasible"] and two["violated"] == one["violated"]
    for kind in ("best", "best_hardware"):
        for mine, theirs in zip(two[kind], one[kind], strict=True):
            assert mine["hardware"] == theirs["hardware"]
            assert mine["value"] == pytest.approx(theirs["value"], rel=1e-6)


def test_shards_merge_into_the_same_result(study, undisturbed, tmp_path, monkeypatch):
    monkeypatch.setenv("LITEGPU_CACHE", "off")
    first, second = tmp_path / "a", tmp_path / "b"
    assert sweep(study, first, shard=(1, 2)) is None
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "merge", str(first)])
    assert ended.value.code == 2
    assert sweep(study, second, shard=(2, 2)) is None
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "merge", str(first), str(second)])
    assert ended.value.code == 0
    expected = (undisturbed / "out" / "result.json").read_bytes()
    assert (first / "result.json").read_bytes() == expected


def test_another_study_is_refused_with_the_difference(study, undisturbed, monkeypatch):
    monkeypatch.setattr("litegpu_opt.sweep.engine.Engine.prepare", lambda self: None)
    changed = study.model_copy(
        update={"sweep": study.sweep.model_copy(update={"best": 9, "histograms": (), "fronts": ()})}
    )
    with pytest.raises(UserError, match="sweep.best: 7 -> 9"):
        sweep(changed, undisturbed / "out")


def test_rows_and_the_best_of_each(engine, study, everything):
    pytest.importorskip("pyarrow")
    import io

    import pyarrow.parquet as pq

    metrics, feasible = everything
    update = {"each": True, "rows": True, "part_points": 192}
    changed = study.model_copy(update={"sweep": study.sweep.model_copy(update=update)})
    writing = make_engine(changed)
    writing.__dict__ |= {key: engine.__dict__[key] for key in ("_hardware", "_tiles", "_points")}
    files = compute_part(writing, 2, *first_look(writing))
    rows = pq.read_table(io.BytesIO(files["rows/part-000002.parquet"]))
    h, d = (rows[name].to_numpy() for name in ("hardware", "deployment"))
    assert sorted(zip(h, d, strict=True)) == list(
        itertools.product(range(16, 24), range(DEPLOYMENTS))
    )
    assert np.array_equal(rows["feasible"].to_numpy(), feasible[h, d])
    for name, unit in METRICS.items():
        assert np.allclose(rows[name].to_numpy(), metrics[name][h, d], rtol=1e-6, atol=0)
        assert rows.schema.field(name).metadata == {b"unit": unit.encode()}
    assert rows.schema.field("die_area").metadata == {b"unit": b"mm^2"}
    each = pq.read_table(io.BytesIO(files["each/part-000002.parquet"]))
    value = np.where(feasible, metrics["usd_per_million_tokens"], np.inf)[16:24]
    there = np.isfinite(value.min(axis=1))
    assert each["hardware"].to_pylist() == list(range(16, 24))
    assert [v is not None for v in each["deployment"].to_pylist()] == there.tolist()
    found = [v for v in each["value"].to_pylist() if v is not None]
    assert found == value.min(axis=1)[there].tolist()


def test_ray_gives_the_same_result(study, undisturbed, tmp_path):
    pytest.importorskip("ray")
    run(undisturbed / "study.toml", tmp_path, "--executor", "ray")
    expected = (undisturbed / "out" / "result.json").read_bytes()
    assert (tmp_path / "result.json").read_bytes() == expected


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('die_aera = "500 mm^2"', "did you mean die_area"),
        ("die_area = 500", "has no unit"),
        ('clock = { from = "2 GHz", to = "1 GHz", points = 3 }', "is no range"),
        ('clock = { from = "1 GHz", to = "2 GHz" }', "points: missing"),
        ("batch = 4", "batch is both"),
        ("tp_decode = [3]", "sweep.axes.tp_decode"),
        ("memory_stacks = [2, 2]", "twice"),
    ],
)
def test_a_slip_in_the_study_is_one_line(tmp_path, line, words):
    key = line.split(" =")[0]
    lines = [text for text in STUDY.splitlines() if not text.startswith(f"{key} =")]
    path = tmp_path / "study.toml"
    path.write_text("\n".join([*lines, line]))
    with pytest.raises(UserError, match=words) as error:
        make_engine(load_study(path))
    assert "\n" not in str(error.value)
