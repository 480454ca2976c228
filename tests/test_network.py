"""Links and switches: what they cost, how long a hop takes, and how many devices they join."""

import equinox as eqx
import jax
import numpy as np
import pytest

from litegpu_opt import catalog
from litegpu_opt.catalog import load_accelerator, technology
from litegpu_opt.deployment import Deployment
from litegpu_opt.errors import UserError
from litegpu_opt.evaluation import evaluate
from litegpu_opt.limits import LIMIT_NAMES, Caps
from litegpu_opt.machine.cost import capital
from litegpu_opt.numerics import scalar
from litegpu_opt.optimizer.branches import Task, candidate_branches, parallel_pairs, stacked_pools
from litegpu_opt.optimizer.groups import study_groups, study_workloads
from litegpu_opt.report.asked import _domains
from litegpu_opt.study import load_study
from litegpu_opt.workload.huggingface import read_transformer
from litegpu_opt.workload.parallelism import Parallelism
from litegpu_opt.workload.precision import Precision
from litegpu_opt.workload.traffic import make_workload


H100 = load_accelerator("h100-sxm")
EXECUTION = catalog.records("execution", "calibrated")
WORKLOAD = make_workload(
    read_transformer("llama-3.1-70b"),
    Precision("fp8", "fp8", "bf16", "bf16"),
    prompt_tokens=1500,
    output_tokens=500,
)


def run(tp=8, **entries):
    """Metrics of an H100 whose links or switch are others."""
    way = Parallelism(tp=tp)
    deployment = Deployment(
        prefill=way,
        decode=way,
        batch_prefill=scalar(1),
        batch_decode=scalar(64),
        clock_prefill_ghz=scalar(1.83),
        clock_decode_ghz=scalar(1.83),
    )
    return evaluate(H100.design(), deployment, H100.technology(**entries), WORKLOAD)


@pytest.mark.parametrize("link", ["nvlink4", "cpo"])
def test_the_measured_network_keeps_its_measured_time(link):
    assert float(technology(interconnect=link, switch="nvswitch").relative_hop) == 1.0


@pytest.mark.parametrize(
    ("link", "switch"),
    [("nvlink4", "ethernet"), ("pluggable", "nvswitch"), ("cpo", "ocs"), ("pcie4", "host")],
)
def test_a_step_takes_time_in_proportion_to_its_hop(link, switch):
    """An all-reduce over 8 ranks in a ring has 14 steps; the rest of its time stays."""
    hops = {
        table: catalog.records(table, entry)["hop_us"].value
        for table, entry in (("interconnect", link), ("switch", switch))
    }
    relative = sum(hops.values()) / 0.3
    here, there = run(), run(interconnect=link, switch=switch)
    times = [np.asarray(m.services.times.hop_ms[1]).sum() for m in (here, there)]
    # two all-reduces in each of 80 layers, one for the embedding; the head gathers in 7 steps
    steps = 161 * 14 + 7
    of_step_us = EXECUTION["fixed_time_factor"].value * EXECUTION["collective_us_per_step"].value
    extra_ms = 1e-3 * of_step_us * (relative - 1) * steps
    assert times[1] - times[0] == pytest.approx(extra_ms, rel=1e-9)


def test_ideal_execution_has_no_latency_on_any_link():
    for link in catalog.names("interconnect"):
        m = run(interconnect=link, execution="ideal")
        assert float(np.sum(np.asarray(m.services.times.hop_ms))) == 0.0


@pytest.mark.parametrize(
    ("switch", "usd_per_gbit_s"),
    [("nvswitch", 2 * 0.15 + 0.3), ("ethernet", 2 * 0.15 + 3), ("mesh", 0.15), ("ocs", 0.15 + 0.3)],
)
def test_ends_of_links_are_paid_by_the_devices_they_join(switch, usd_per_gbit_s):
    """450 GB/s of NVLink4: both ends at a packet switch; otherwise two devices share a link."""
    lines = capital(H100.design(), scalar(700.0), H100.technology(switch=switch))
    assert float(lines.network_usd) == pytest.approx(450 * 8 * usd_per_gbit_s)


def test_a_bit_passes_two_link_ends_and_the_switch():
    for switch, traversal_pj in (("nvswitch", 8.0), ("torus", 1.0), ("mesh", 0.0)):
        assert float(H100.technology(switch=switch).far_pj_per_bit) == 5.0 + traversal_pj


def branches(limit, **entries):
    tree = technology(**entries)
    pairs = parallel_pairs(WORKLOAD, limit)
    return candidate_branches(
        Task({"": WORKLOAD}, {"usd_per_million_tokens": 1.0}),
        {"one": tree},
        pools=stacked_pools(WORKLOAD, pairs),
        aspect_ratios=[1.27],
        dies_per_package=[1],
        caps=Caps(),
        bounds={},
    )


@pytest.mark.parametrize(("switch", "largest"), [("mesh", 8), ("host", 8), ("nvswitch", 64)])
def test_degrees_beyond_the_domain_are_no_branches(switch, largest):
    degrees = {
        degree
        for choice, _ in branches(64, switch=switch)
        for pair in choice.pairs
        for degree in pair
    }
    assert max(degrees) == largest
    assert degrees == {1, 2, 4, 8, 16, 32, 64} & set(range(largest + 1))


def test_the_smaller_of_link_and_switch_limits_the_domain():
    assert float(technology(interconnect="nvlink5", switch="ethernet").largest_domain) == 72
    assert float(technology(interconnect="cpo", switch="mesh").largest_domain) == 8


@pytest.mark.parametrize(("switch", "tp", "joined"), [("mesh", 8, True), ("mesh", 16, False)])
def test_evaluate_reports_a_group_that_cannot_be_joined(switch, tp, joined):
    m = run(tp=tp, switch=switch)
    at = LIMIT_NAMES.index("scale_up_domain")
    assert (float(m.uses[at]), float(m.limits[at])) == (tp, 8)
    assert bool(m.uses[at] <= m.limits[at]) == joined


def test_an_accelerator_cannot_promise_a_larger_group(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "h100-sxm"\nlargest_group = 73\n')
    with pytest.raises(UserError) as caught:
        load_accelerator(path)
    assert str(caught.value) == (
        f"{path}:largest_group: 73 devices are more than switch.largest_domain joins; "
        "allowed: 1 to 72"
    )


def test_switches_are_branches_of_a_study(tmp_path):
    panel = (catalog.tables.embedded("studies", "panel.toml")).read_text("utf-8")
    path = tmp_path / "switches.toml"
    path.write_text(
        panel.replace('switch = "nvswitch"', 'switch = ["nvswitch", "mesh"]').replace(
            "tensor_parallel_max = 64", "tensor_parallel_max = 16"
        )
    )
    study = load_study(path)
    assert [choice["switch"] for choice in study.technology_choices()] == [
        *("nvswitch", "nvswitch"),
        *("mesh", "mesh"),
    ]
    group = study_groups(study, study_workloads(study))[0]
    reached = {
        name.split("/")[3]: max(max(c.pairs[0]) for c, _ in group.branches if c.technology == name)
        for name in {choice.technology for choice, _ in group.branches}
    }
    assert reached == {"nvswitch": 16, "mesh": 8}
    assert load_study().technology.switch == ("nvswitch",)


def test_slopes_to_every_leaf_of_the_network_are_finite():
    tree = H100.technology(interconnect="pluggable", switch="ethernet")
    way = Parallelism(tp=8)
    deployment = Deployment(way, way, *(scalar(v) for v in (1, 64, 1.83, 1.83)))

    def usd(technology):
        return evaluate(H100.design(), deployment, technology, WORKLOAD).usd_per_token

    slopes = eqx.filter_grad(usd)(tree)
    for leaf in jax.tree.leaves((slopes.interconnect, slopes.switch)):
        assert np.isfinite(leaf)
    for leaf in (slopes.switch.hop_us, slopes.switch.pj_per_bit, slopes.interconnect.hop_us):
        assert float(leaf) > 0.0


def test_the_report_names_a_switch_that_joins_fewer_devices_than_asked():
    inputs = {
        "space.tensor_parallel_max": {"value": 16, "origin": "file"},
        "technology.interconnect": {"value": ["cpo"], "origin": "default"},
        "technology.switch": {"value": ["nvswitch", "mesh"], "origin": "file"},
        "technology.overrides": {"value": {}, "origin": "default"},
    }
    assert _domains(inputs) == [("  domain", "mesh joins 8 devices", "file")]
    changed = {"value": {"switch.largest_domain": 32.0}, "origin": "file"}
    assert _domains(inputs | {"technology.overrides": changed}) == []
