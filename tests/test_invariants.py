"""What holds at every point of the search box: monotony, scale, signs, sums, finite gradients."""

import dataclasses
import functools
import math
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litegpu_opt.catalog import technology
from litegpu_opt.deployment import Deployment
from litegpu_opt.evaluation import assess, evaluate
from litegpu_opt.execution.roofline import HardRoof, MeanRoof, SoftRoof
from litegpu_opt.limits import LIMIT_NAMES, Caps
from litegpu_opt.machine.cost import YearlyCost
from litegpu_opt.machine.design import Design
from litegpu_opt.machine.power import energy_costs
from litegpu_opt.machine.rates import peak_rates
from litegpu_opt.machine.technology import TABLES
from litegpu_opt.numerics import scalar
from litegpu_opt.optimizer.layout import BOX, VARIABLES
from litegpu_opt.report.metrics_json import device_hour
from litegpu_opt.space import DESIGN_VARIABLES
from litegpu_opt.workload.counts import operator_names
from litegpu_opt.workload.huggingface import read_transformer
from litegpu_opt.workload.parallelism import Parallelism
from litegpu_opt.workload.pool import build_pools
from litegpu_opt.workload.precision import Precision
from litegpu_opt.workload.traffic import make_workload
from litegpu_opt.workload.transformer import DenseMlp, Experts, LatentAttention, Layer, Transformer


FP8 = Precision("fp8", "fp8", "bf16", "bf16")
MODEL = read_transformer("llama-3.1-70b")
DEFAULT = technology()
WORKLOAD = make_workload(MODEL, FP8, prompt_tokens=1500, output_tokens=500, ttft_ms=1000, tbt_ms=50)
DECODE_ONLY = make_workload(
    MODEL, FP8, prompt_tokens=1500, output_tokens=500, tbt_ms=15, pools="decode"
)
ONE_TOKEN = make_workload(MODEL, FP8, prompt_tokens=1500, output_tokens=1, ttft_ms=1000)

_LATENT = LatentAttention(16, 768, 512, 128, 64, 128)
_EXPERTS = Experts(64, 6, 1024, shared_width=2048)
EXPERTS = make_workload(
    Transformer(
        name="experts",
        family="none",
        hidden=2048,
        vocab=100_000,
        layers=(Layer(_LATENT, DenseMlp(8192, True)), *[Layer(_LATENT, _EXPERTS)] * 23),
        norm_parameters=2048,
        tied_embeddings=False,
    ),
    FP8,
    prompt_tokens=1500,
    output_tokens=500,
)
"""Latents, experts, a dense layer first."""
WIDE = Parallelism(tp=2, dp=2, pp=3, ep=4, kv_parallel=2, microbatches=4, collective="two-shot")

WORKLOADS = {
    "both": WORKLOAD,
    "decode-only": DECODE_ONLY,
    "one-token": ONE_TOKEN,
    "experts": EXPERTS,
}

WIDEST = np.log([BOX[name] for name in VARIABLES])
"""Bounds in logarithms, (variables, 2)."""


def ways(tps):
    """Tensor-parallel degrees, or any ways of parallelism, of the two pools."""
    return [Parallelism(tp) if isinstance(tp, int) else tp for tp in tps]


def split(x, tps=(1, 1), *, dies=1.0, aspect_ratio=1.27, tdp_w=None):
    """Design and deployment at logarithms in the order of `VARIABLES`; the TDP follows, unless a
    larger one is given.
    """
    values = dict(zip(VARIABLES, jnp.exp(x), strict=True))
    design = Design(
        **{name: values[name] for name in DESIGN_VARIABLES},
        aspect_ratio=aspect_ratio,
        dies_per_package=dies,
        tdp_w=tdp_w,
    )
    return design, Deployment(
        *ways(tps),
        values["batch_prefill"],
        values["batch_decode"],
        values["clock_prefill_ghz"],
        values["clock_decode_ghz"],
    )


@eqx.filter_jit
def _metrics_at(x, tree, tps, dies, workload, tdp_w):
    return evaluate(*split(x, tps, dies=dies, tdp_w=tdp_w), tree, workload)


def metrics_at(x, tree, tps=(1, 1), dies=1.0, workload=WORKLOAD, tdp_w=None):
    tdp_w = None if tdp_w is None else scalar(tdp_w)
    return jax.device_get(_metrics_at(jnp.asarray(x), tree, tps, scalar(dies), workload, tdp_w))


@eqx.filter_jit
def _machine_at(x, tree, dies):
    design, deployment = split(x, dies=dies)
    clocks = (deployment.clock_prefill_ghz, deployment.clock_decode_ghz)
    return [(peak_rates(design, c, tree), energy_costs(design, c, tree)) for c in clocks]


def machine_at(x, tree, dies=1.0):
    """Rates and energy costs in prefill and in decode."""
    return jax.device_get(_machine_at(jnp.asarray(x), tree, scalar(dies)))


@functools.cache
def pools_of(tps, workload_name="both"):
    """Both pools on a leading axis, with NumPy leaves."""
    return jax.device_get(build_pools(WORKLOADS[workload_name], *ways(tps)))


def each_pool(tps, workload_name="both"):
    """The prefill and the decode pool."""
    pools = pools_of(tps, workload_name)
    return [jax.tree.map(lambda leaf, p=p: leaf[p], pools) for p in range(2)]


TPS = [(1, 1), (2, 8)]

points = st.lists(st.floats(0, 1), min_size=len(VARIABLES), max_size=len(VARIABLES)).map(
    lambda shares: WIDEST[:, 0] + np.array(shares) * (WIDEST[:, 1] - WIDEST[:, 0])
)
degrees = st.sampled_from(TPS)
dies = st.sampled_from([1.0, 2.0, 4.0])


def replaced(tree, name, value):
    table, field = name.split(".")
    return eqx.tree_at(lambda t: getattr(getattr(t, table), field), tree, scalar(value))


def leaf(tree, name):
    table, field = name.split(".")
    return float(getattr(getattr(tree, table), field))


LEAVES = tuple(
    f"{table}.{field}" for table, cls in TABLES.items() for field in cls.__dataclass_fields__
)

UNCAPPED = replaced(DEFAULT, "execution.power_capped", 0.0)
"""Power limits no phase."""

DOLLARS = tuple(name for name in LEAVES if "usd" in name)

# Everything whose rise can only cost more, whatever the design: prices, losses and rents. An
# energy also raises the TDP that follows from it, and with it the power that other work may draw:
# so the TDP is kept, or power limits nothing.
DEARER = (
    *DOLLARS,
    "process.defects_per_cm2",
    "process.sort_share",
    "package.interposer_defects_per_cm2",
    "package.interposer_per_area",
    "package.substrate_per_area",
    "memory.footprint_mm2_per_stack",
    "memory.pj_per_bit",
    "interconnect.pj_per_bit",
    "interconnect.hop_us",
    "switch.pj_per_bit",
    "switch.hop_us",
    "switch.ends_per_port",
    "process.pj_per_flop_bf16",
    "process.pj_per_flop_fp8",
    "process.operand_pj_per_bit",
    "process.idle_w_per_mm2",
    "process.pj_per_sm_clock",
    "prices.host_power_share",
    "prices.interest",
    "prices.opex_share",
    "cooling.pue",
)


@pytest.mark.parametrize("verb", ["evaluate", "optimize"])
def test_the_verbs_of_the_package_are_functions(verb):
    # both are also names of modules, which an import in a fresh interpreter must not return
    code = f"from litegpu_opt import {verb}; assert callable({verb}), {verb}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- monotony ----------------------------------------------------------------------------------


def test_every_dollar_leaf_is_known():
    assert len(DOLLARS) == 17 and "process.nre_musd" in DOLLARS
    assert set(DEARER) <= set(LEAVES)


@pytest.mark.parametrize("name", [name for name in DEARER if leaf(DEFAULT, name) > 0])
@settings(max_examples=12)
@given(points, st.floats(1.0, 3.0), dies)
def test_cost_never_falls_when_a_price_rises(name, x, factor, dies):
    dearer = replaced(DEFAULT, name, factor * leaf(DEFAULT, name))
    tdp_w = 1.001 * float(metrics_at(x, dearer, dies=dies).tdp_w)
    before, after = (metrics_at(x, tree, dies=dies, tdp_w=tdp_w) for tree in (DEFAULT, dearer))
    assert float(before.tdp_w) == float(after.tdp_w) == tdp_w
    assert float(after.usd_per_token) >= float(before.usd_per_token) * (1 - 1e-14)
    dearer = replaced(UNCAPPED, name, factor * leaf(DEFAULT, name))
    before, after = (metrics_at(x, tree, dies=dies) for tree in (UNCAPPED, dearer))
    assert float(after.usd_per_token) >= float(before.usd_per_token) * (1 - 1e-14)


@given(points, st.floats(0, 0.9), st.floats(0, 100))
def test_cost_rises_with_margin_and_with_network_host_price(x, margin, usd_per_gb_s):
    before = float(metrics_at(x, DEFAULT).usd_per_token)
    for name, value in (
        ("prices.gross_margin", margin),
        ("prices.host_usd_per_gb_s", usd_per_gb_s),
    ):
        after = float(metrics_at(x, replaced(DEFAULT, name, value)).usd_per_token)
        assert after >= before * (1 - 1e-14)


@given(points, st.floats(0.05, 1.0), dies)
def test_cost_never_falls_when_devices_stand_idle(x, load, dies):
    before = float(metrics_at(x, DEFAULT, dies=dies).usd_per_token)
    idle = replaced(DEFAULT, "prices.load_factor", load)
    assert float(metrics_at(x, idle, dies=dies).usd_per_token) >= before * (1 - 1e-14)


# SMs and clocks draw power of their own, which a cap takes from the work
@pytest.mark.parametrize(
    ("names", "tree"),
    [
        (("sm_count",), UNCAPPED),
        (("clock_prefill_ghz", "clock_decode_ghz"), UNCAPPED),
        (("memory_stacks",), DEFAULT),
        (("network_gb_s",), DEFAULT),
    ],
    ids=["sm_count", "clocks", "memory_stacks", "network_gb_s"],
)
@given(points, st.floats(1.0, 4.0), degrees)
def test_time_never_rises_with_a_resource(names, tree, x, factor, tps):
    more = x + math.log(factor) * np.array([name in names for name in VARIABLES])
    before, after = (metrics_at(y, tree, tps).services for y in (x, more))
    for name in ("time_ms", "latency_ms"):
        fall = np.asarray(getattr(after, name)) / np.asarray(getattr(before, name))
        assert np.all(fall <= 1 + 1e-13)


@given(points, st.floats(1.0, 4.0), degrees)
def test_time_and_memory_rise_with_the_batch_but_less_than_it(x, factor, tps):
    batches = [name.startswith("batch") for name in VARIABLES]
    before = metrics_at(x, DEFAULT, tps).services
    after = metrics_at(x + math.log(factor) * np.array(batches), DEFAULT, tps).services
    for name in ("time_ms", "memory_gb"):
        rise = np.asarray(getattr(after, name)) / np.asarray(getattr(before, name))
        assert np.all(rise >= 1 - 1e-13) and np.all(rise <= factor * (1 + 1e-13))


# --- roofs -------------------------------------------------------------------------------------


times = st.floats(-30, 15).map(math.exp)


@given(times, times, st.floats(1, 1e4))
def test_soft_roof_lies_between_the_hard_one_and_its_corner(a, b, q):
    soft = float(SoftRoof(q)(scalar(a), scalar(b)))
    hard = float(HardRoof()(scalar(a), scalar(b)))
    # logarithms of up to 30 carry 30 ulp
    assert hard * (1 - 1e-13) <= soft <= hard * 2 ** (1 / q) * (1 + 1e-13)


@given(times, times, st.floats(1, 1e3), st.floats(1, 10))
def test_soft_roof_falls_with_its_exponent(a, b, q, factor):
    low, high = (float(SoftRoof(p)(scalar(a), scalar(b))) for p in (q, q * factor))
    assert high <= low * (1 + 1e-13)


@given(times, times)
def test_soft_roof_of_exponent_one_adds(a, b):
    assert float(SoftRoof(1.0)(scalar(a), scalar(b))) == pytest.approx(a + b, rel=1e-13)


@given(times, times, st.floats(0, 1))
def test_mean_roof_never_exceeds_the_hard_one(a, b, weight):
    mean = float(MeanRoof(scalar(weight))(scalar(a), scalar(b)))
    assert mean <= max(a, b) * (1 + 1e-13)


@given(times, times, st.sampled_from([1.0, 2.0, 4.0, 64.0, 1024.0]))
def test_mean_roof_has_the_slope_of_the_soft_one(a, b, q):
    soft, mean_weight = SoftRoof(q), SoftRoof(q).compute_weight(scalar(a), scalar(b))
    log_slope = jax.grad(lambda u: jnp.log(soft(jnp.exp(u), scalar(b))))(scalar(math.log(a)))
    assert float(mean_weight) == pytest.approx(float(log_slope), abs=1e-11)


def test_tied_roofs():
    # T = max(10 ms, 10 ms), gradient one half each; p-norm of 8 gives 10.905 ms
    ten = scalar(10.0)
    value, slopes = jax.value_and_grad(HardRoof(), argnums=(0, 1))(ten, ten)
    assert float(value) == 10.0
    assert [float(slope) for slope in slopes] == [0.5, 0.5]
    soft, slopes = jax.value_and_grad(SoftRoof(8.0), argnums=(0, 1))(ten, ten)
    assert float(soft) == pytest.approx(10 * 2 ** (1 / 8), rel=1e-14)
    assert float(slopes[0]) == pytest.approx(float(slopes[1]), rel=1e-14)


@pytest.mark.parametrize("roof", [SoftRoof(1.0), SoftRoof(2.0), SoftRoof(1024.0), HardRoof()])
@pytest.mark.parametrize("pair", [(0.0, 0.0), (0.0, 3.0), (3.0, 0.0)])
def test_roofs_of_absent_resources_are_finite(roof, pair):
    # zero bytes or no FLOPs
    value, slopes = jax.value_and_grad(roof, argnums=(0, 1))(*map(scalar, pair))
    assert float(value) == pytest.approx(max(pair), abs=1e-29)
    assert np.all(np.isfinite(slopes))


# --- scale -------------------------------------------------------------------------------------


@given(points, degrees, dies)
def test_doubling_every_price_doubles_the_cost(x, tps, dies):
    doubled = DEFAULT
    for name in DOLLARS:
        doubled = replaced(doubled, name, 2 * leaf(DEFAULT, name))
    one, two = (metrics_at(x, tree, tps, dies=dies) for tree in (DEFAULT, doubled))
    assert float(two.usd_per_token) == pytest.approx(2 * float(one.usd_per_token), rel=1e-14)
    lines = zip(
        jax.tree.leaves((one.bill_of_materials, one.yearly_cost)),
        jax.tree.leaves((two.bill_of_materials, two.yearly_cost)),
        strict=True,
    )
    for before, after in lines:
        assert float(after) == pytest.approx(2 * float(before), rel=1e-14)


@given(points, degrees)
def test_a_machine_twice_as_fast_takes_half_the_time(x, tps):
    fast = DEFAULT
    for name in (
        "process.flop_per_clock_bf16",
        "process.flop_per_clock_fp8",
        "memory.stack_tb_s",
        "execution.reference_network_gb_s",
    ):
        fast = replaced(fast, name, 2 * leaf(DEFAULT, name))
    # energies as well: it does its work with the same power
    for name in (
        "execution.launch_us",
        "execution.launch_us_per_k",
        "execution.attention_us",
        "execution.pass_us",
        "execution.sequence_us",
        "execution.request_ms",
        "execution.collective_us",
        "execution.collective_us_per_step",
        "execution.collective_us_per_sqrt_mb",
        "process.pj_per_flop_bf16",
        "process.pj_per_flop_fp8",
        "process.operand_pj_per_bit",
        "memory.pj_per_bit",
        "interconnect.pj_per_bit",
    ):
        fast = replaced(fast, name, leaf(DEFAULT, name) / 2)
    wider = x + math.log(2) * np.array([name == "network_gb_s" for name in VARIABLES])
    slow, quick = metrics_at(x, DEFAULT, tps), metrics_at(wider, fast, tps)
    for name in ("time_ms", "latency_ms"):
        before, after = (np.asarray(getattr(m.services, name)) for m in (slow, quick))
        assert after == pytest.approx(before / 2, rel=1e-12)
    assert float(quick.tokens_per_s) == pytest.approx(2 * float(slow.tokens_per_s), rel=1e-12)


@given(points)
def test_a_longer_answer_only_thins_out_the_prefill(x):
    # decode at the same mean context: S + T/2 fixed
    longer = make_workload(
        MODEL, FP8, prompt_tokens=1250, output_tokens=1000, ttft_ms=1000, tbt_ms=50
    )
    services = [metrics_at(x, DEFAULT, workload=w).services for w in (WORKLOAD, longer)]
    steps = [float(s.time_ms[1]) for s in services]
    assert steps[0] == pytest.approx(steps[1], rel=1e-13)
    shares = [float(s.usd_per_token[1]) for s in services]
    assert shares[1] / shares[0] == pytest.approx((999 / 1000) / (499 / 500), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "with_unit", "bare"),
    [
        ("cooling.limit_package_w", "1.4 kW", 1400.0),
        ("process.wafer_diameter_mm", "30 cm", 300.0),
        ("interconnect.floor_gb_s", "400 Gbit/s", 50.0),
        ("execution.launch_us", "0.004 ms", 4.0),
        ("process.max_clock_ghz", "2520 MHz", 2.52),
    ],
)
def test_a_unit_changes_nothing(name, with_unit, bare):
    x = WIDEST.mean(axis=1)
    trees = [technology({name: value}) for value in (with_unit, bare)]
    assert leaf(trees[0], name) == pytest.approx(bare, rel=1e-15)
    one, two = (jax.tree.leaves(metrics_at(x, tree)) for tree in trees)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


# --- sums --------------------------------------------------------------------------------------


@given(points, degrees, dies, st.floats(0.1, 1.0))
def test_energy_is_positive_and_the_sum_of_its_parts(x, tps, dies, load):
    tree = replaced(DEFAULT, "prices.load_factor", load)
    m = metrics_at(x, tree, tps, dies=dies)
    services, machine = m.services, machine_at(x, tree, dies)
    for p, pool in enumerate(each_pool(tps)):
        batch, energy = math.exp(x[VARIABLES.index("batch_prefill") + p]), machine[p][1]
        ops, time_s = pool.operators, float(services.time_ms[p]) / 1e3

        def total(per_operator, ops=ops):
            return float(np.sum(np.asarray(ops.repeats) * np.asarray(per_operator)))

        flop = ops.tflop_bf16_per_seq + ops.tflop_attention_per_seq
        parts = [
            float(energy.idle_w) * time_s,
            float(energy.sm_clock_w) * time_s,
            float(energy.bf16_j_per_tflop) * total(batch * flop),
            float(energy.fp8_j_per_tflop) * total(batch * ops.tflop_fp8_per_seq),
            float(energy.memory_j_per_gb) * total(ops.weight_gb + batch * ops.traffic_gb_per_seq),
            float(energy.network_j_per_gb) * total(batch * ops.wire_gb_per_seq),
        ]
        assert min(parts) >= 0
        handed_over = batch * float(pool.sent_gb_per_seq)
        # the hand-over leaves through a link end of the device as every other byte does
        own_end = float(energy.network_j_per_gb) * handed_over
        device_j = float(services.device_j[p])
        far = total(batch * ops.wire_gb_per_seq) + handed_over
        outside = [
            0.38 * float(m.tdp_w) * time_s / load,
            float(energy.idle_w) * time_s * (1 / load - 1),
            8e-3 * (5.6 + 8.0) * far,
        ]
        cluster_j = float(services.cluster_j[p])
        assert device_j > 0 and cluster_j > 0
        whole = sum(parts) + own_end + sum(outside)
        assert device_j + cluster_j == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("tps", [(1, 1), (2, 8), (8, 1), (8, 2)])
def test_the_hand_over_is_paid_once_for_every_byte(tps):
    """The prefill group sends its cache of a prompt once, however it is spread over devices."""
    free = DEFAULT
    for name in ("interconnect.pj_per_bit", "switch.pj_per_bit"):
        free = replaced(free, name, 0.0)
    x = WIDEST.mean(axis=1)
    batch = math.exp(x[VARIABLES.index("batch_prefill")])
    group_j = []
    for tree in (DEFAULT, free):
        s = metrics_at(x, tree, tps).services
        group_j.append(tps[0] * float(s.device_j[0] + s.cluster_j[0]))
    m = metrics_at(x, DEFAULT, tps), metrics_at(x, free, tps)
    host_j = 0.38 * tps[0] * float(m[0].tdp_w - m[1].tdp_w) * float(m[0].services.time_ms[0]) / 1e3
    ops = each_pool(tps)[0].operators
    collectives_gb = tps[0] * batch * float(np.sum(ops.repeats * ops.wire_gb_per_seq))
    # fp8 cache of llama-3.1-70b: 2 x 80 layers x 8 heads x 128 bytes a token
    cache_gb = batch * 1500 * 2 * 80 * 8 * 128 / 1e9
    two_ends_and_a_switch = 8e-3 * (2 * 5.6 + 8.0)
    assert group_j[0] - group_j[1] - host_j == pytest.approx(
        two_ends_and_a_switch * (collectives_gb + cache_gb), rel=1e-6
    )


@given(points, degrees, dies)
def test_joules_watts_and_tokens_agree(x, tps, dies):
    m = metrics_at(x, DEFAULT, tps, dies=dies)
    s = m.services
    batches = np.exp(x[[VARIABLES.index("batch_prefill"), VARIABLES.index("batch_decode")]])
    executions = np.array(tps) * np.array([1 / 500, 499 / 500]) / batches
    device_j = executions * np.asarray(s.device_j)
    seconds = executions * np.asarray(s.time_ms) / 1e3
    assert np.asarray(s.device_seconds_per_token) == pytest.approx(seconds, rel=1e-12)
    assert float(m.power_w) * seconds.sum() == pytest.approx(device_j.sum(), rel=1e-12)
    whole_j = device_j.sum() + (executions * np.asarray(s.cluster_j)).sum()
    assert float(m.joules_per_token) == pytest.approx(whole_j, rel=1e-12)
    sms = float(np.exp(x[VARIABLES.index("sm_count")]))
    per_s = batches[1] / (float(s.time_ms[1]) / 1e3)
    assert float(m.tokens_per_s) == pytest.approx(per_s, rel=1e-12)
    assert float(m.tokens_per_s_per_sm) == pytest.approx(per_s / (tps[1] * sms), rel=1e-12)
    prompt = 1500 * batches[0] / (float(s.time_ms[0]) / 1e3) / (tps[0] * sms)
    assert float(m.prefill_tokens_per_s_per_sm) == pytest.approx(prompt, rel=1e-12)
    assert float(m.tokens_per_dollar) == pytest.approx(1 / float(m.usd_per_token), rel=1e-12)


@given(points, degrees)
def test_a_device_at_work_draws_no_more_than_everything_at_its_peak(x, tps):
    m = metrics_at(x, DEFAULT, tps)
    for p, (rates, energy) in enumerate(machine_at(x, DEFAULT)):
        most = (
            energy.static_w
            + max(
                rates.bf16_tflop_s * energy.bf16_j_per_tflop,
                rates.fp8_tflop_s * energy.fp8_j_per_tflop,
            )
            + 1e3 * rates.memory_tb_s * energy.memory_j_per_gb
            + rates.network_gb_s * energy.network_j_per_gb
        )
        drawn = 1e3 * float(m.services.device_j[p]) / float(m.services.time_ms[p])
        assert drawn <= float(most) * (1 + 1e-12)


@given(points, degrees, st.floats(0.1, 1.0), st.floats(0.0, 0.5))
def test_an_owned_hour_pays_for_its_tokens(x, tps, load, spares):
    # lines of a device-hour x hours owned per token, and the design cost, are the cost of a token
    tree = replaced(replaced(DEFAULT, "prices.load_factor", load), "prices.spare_share", spares)
    m = metrics_at(x, tree, tps)
    hour = device_hour(m.yearly_cost, m.electricity_usd_per_second)
    total = hour.pop("total_usd")
    assert total == pytest.approx(math.fsum(hour.values()), rel=1e-12)
    assert set(hour) == {f.name for f in dataclasses.fields(YearlyCost)} | {"electricity_usd"}
    hours = float(m.services.device_seconds_per_token.sum()) / load / 3600
    expected = total * hours + float(m.nre_usd_per_token)
    assert float(m.usd_per_token) == pytest.approx(expected, rel=1e-12)
    it = sum(hour[f"{line}_usd"] for line in ("accelerator", "host", "network", "operations"))
    assert hour["spares_usd"] == pytest.approx(spares * it, rel=1e-12)


@given(points, degrees, st.floats(0.1, 1.0))
def test_cost_of_two_pools_by_hand(x, tps, load):
    tree = replaced(DEFAULT, "prices.load_factor", load)
    m = metrics_at(x, tree, tps)
    s = m.services
    prefill, decode = (float(b) for b in np.exp(x[[7, 8]]))
    output = 500
    y = m.yearly_cost
    per_year = sum(vars(y).values())
    per_s = float(per_year) / (365 * 24 * 3600) / load
    per_j = 0.075 * 1.1 / 3.6e6
    usd = [
        per_s * float(s.time_ms[p]) / 1e3 + per_j * float(s.device_j[p] + s.cluster_j[p])
        for p in range(2)
    ]
    expected = (
        tps[0] * usd[0] / prefill + tps[1] * usd[1] * (output - 1) / decode
    ) / output + 400e6 / 50e15
    assert float(m.usd_per_token) == pytest.approx(expected, rel=1e-12)


def headroom_w(static_w, tdp_w):
    """What the TDP leaves for work; above 95 % by the tangent of its logarithm at 95 %."""
    share = min(static_w / tdp_w, 0.95)
    return tdp_w * (1 - share) * (static_w / tdp_w / share) ** (-0.95 / 0.05)


@given(points)
def test_phase_time_is_the_sum_over_operators_by_hand(x):
    tps = (2, 8)
    m = metrics_at(x, DEFAULT, tps)
    s, machine = m.services, machine_at(x, DEFAULT)
    values = dict(zip(VARIABLES, np.exp(x), strict=True))
    for p, phase in enumerate(("prefill", "decode")):
        pool = each_pool(tps)[p]
        ops = pool.operators
        batch, clock = values[f"batch_{phase}"], values[f"clock_{phase}_ghz"]
        bf16 = values["sm_count"] * 4096 * clock * 1e9 / 1e12
        compute_s = batch * (
            ops.tflop_bf16_per_seq / (0.765 * bf16)
            + ops.tflop_fp8_per_seq / (0.739 * 2 * bf16)
            + (ops.tflop_attention_per_seq + 221 * ops.tflop_attention_per_key_and_seq)
            / (0.544 * bf16)
        )
        moved = ops.weight_gb + batch * ops.traffic_gb_per_seq
        memory_s = moved / (0.913 * values["memory_stacks"] * 1000)
        link = 0.734 * values["network_gb_s"]
        # on a ring, an all-reduce passes every rank twice, the gather of the logits once
        rounds = {"embedding": 2, "output": 2, "down": 2, "lm_head": 1}
        names = operator_names(MODEL, Parallelism(tps[p]), decode=phase == "decode")
        steps = np.array([rounds.get(name, 0) * (tps[p] - 1) for name in names])
        message_mb = batch * ops.message_mb_per_seq * 450 / values["network_gb_s"]
        hop_us = 1.16 * (3.8 + 0.0769 * steps) + 3.46 * np.sqrt(message_mb)
        launch_us = 3.01 * ops.launches + 0.213 * ops.depth_k
        launch_us += 9.37 * ops.attentions + 2.47 * ops.passes
        seconds = ops.repeats * (
            (compute_s**4.2 + memory_s**4.2) ** (1 / 4.2)
            + 1.16e-6 * launch_us
            + 17e-6 * ops.sampled * batch
            + 1.7 * ops.pass_gb_per_seq * batch / (values["memory_stacks"] * 1000)
            + ops.collectives * hop_us * 1e-6
            + batch * ops.wire_gb_per_seq / link
        )
        # and the time in which the TDP delivers the energy of the work, in a norm of exponent 64
        energy = machine[p][1]
        flop = ops.tflop_bf16_per_seq + ops.tflop_attention_per_seq
        work_j = ops.repeats * (
            batch * flop * energy.bf16_j_per_tflop
            + batch * ops.tflop_fp8_per_seq * energy.fp8_j_per_tflop
            + moved * energy.memory_j_per_gb
            + batch * ops.wire_gb_per_seq * energy.network_j_per_gb
        )
        sent_j = batch * float(pool.sent_gb_per_seq) * float(energy.network_j_per_gb)
        rest_w = headroom_w(float(energy.static_w), float(m.tdp_w))
        log_powered = math.log(work_j.sum() + sent_j) - math.log(rest_w)
        log_s = np.logaddexp(64 * math.log(seconds.sum()), 64 * log_powered) / 64
        assert float(s.time_ms[p]) == pytest.approx(1e3 * math.exp(log_s), rel=1e-12)
        wait = math.exp(log_s) + batch * float(pool.handover_gb_per_seq) / link
        wait += 0.0191 if phase == "prefill" else 0.0
        assert float(s.latency_ms[p]) == pytest.approx(1e3 * wait, rel=1e-12)


@eqx.filter_jit
def _assessed(x, pools, tree, dies, workload, caps):
    """What the optimiser sees: everything traced, one compilation for all pools and degrees."""
    design, deployment = split(x, dies=dies)
    return assess(
        pools,
        jnp.stack([deployment.batch_prefill, deployment.batch_decode]),
        jnp.stack([deployment.clock_prefill_ghz, deployment.clock_decode_ghz]),
        SoftRoof(jnp.broadcast_to(tree.execution.overlap_exponent, (2,))),
        design,
        tree,
        workload.traffic.prompt_tokens,
        caps,
    )


@pytest.mark.parametrize(
    ("tps", "name"),
    [
        ((1, 1), "both"),
        ((2, 8), "both"),
        ((1, 1), "decode-only"),
        ((WIDE, WIDE), "experts"),
        ((4, WIDE), "experts"),
    ],
)
@given(points, dies)
def test_assess_is_evaluate(tps, name, x, dies):
    workload = WORKLOADS[name]
    direct = metrics_at(x, DEFAULT, tps, dies=dies, workload=workload)
    pools = pools_of(tps, name)
    staged = _assessed(jnp.asarray(x), pools, DEFAULT, scalar(dies), workload, Caps())
    for a, b in zip(jax.tree.leaves(direct), jax.tree.leaves(staged), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@given(points, dies)
def test_the_rated_limits_say_what_the_tdp_is(x, dies):
    m = metrics_at(x, DEFAULT, dies=dies)
    uses = dict(zip(LIMIT_NAMES, np.asarray(m.uses), strict=True))
    rated = max(value for name, value in uses.items() if name.startswith("rated_"))
    assert float(m.tdp_w) == uses["package_power"]
    # the compiler rounds the two places where it is computed on its own
    assert float(m.tdp_w) == pytest.approx(rated, rel=1e-15, abs=0.0)


# --- one device, and phases that are not there --------------------------------------------------


@given(points)
def test_one_device_has_exactly_no_network_time(x):
    times = metrics_at(x, DEFAULT).services.times
    assert np.all(np.asarray(times.wire_ms) == 0.0)
    assert np.all(np.asarray(times.hop_ms) == 0.0)


@given(points)
def test_a_pool_without_prefill_costs_what_its_decode_costs(x):
    both = metrics_at(x, DEFAULT).services
    alone = metrics_at(x, DEFAULT, workload=DECODE_ONLY)
    assert float(alone.services.usd_per_token[0]) == 0.0
    # decode makes 499 of 500 tokens of a request, or all of them
    assert float(alone.services.usd_per_token[1]) == pytest.approx(
        float(both.usd_per_token[1]) * 500 / 499, rel=1e-12
    )


@given(points)
def test_one_output_token_is_all_prefill(x):
    m = metrics_at(x, DEFAULT, workload=ONE_TOKEN)
    assert float(m.services.usd_per_token[1]) == 0.0
    assert float(m.services.device_seconds_per_token[1]) == 0.0
    assert np.isfinite(float(m.usd_per_token))


# --- finite gradients ---------------------------------------------------------------------------


CORNERS = np.array(
    [
        [WIDEST[i, (number >> i) & 1] for i in range(len(VARIABLES))]
        for number in range(2 ** len(VARIABLES))
    ]
)
CHUNK = 256


@eqx.filter_jit
def slopes_at(points, trees, pools, dies):
    """Value and gradient of the sum of all metrics in x and in every technology leaf, per lane.

    A sum of terms is finite only where each of them is.
    """

    def total(x, tree):
        # `workload` gives the prompt length alone
        m = _assessed(x, pools, tree, dies, WORKLOAD, Caps(die_area_max_mm2=500.0))
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(m))

    return jax.vmap(jax.value_and_grad(total, argnums=(0, 1)))(points, trees)


def lanes_with_infinities(points, trees, pools, dies):
    """Which lanes have a metric or a gradient that is not finite, in chunks of one size."""
    bad = []
    for first in range(0, len(points), CHUNK):
        rows = np.minimum(np.arange(first, first + CHUNK), len(points) - 1)
        part, part_trees = points[rows], jax.tree.map(lambda leaf, rows=rows: leaf[rows], trees)
        leaves = jax.tree.leaves(jax.device_get(slopes_at(part, part_trees, pools, scalar(dies))))
        finite = [np.isfinite(leaf).reshape(CHUNK, -1).all(axis=1) for leaf in leaves]
        bad.append(~np.all(finite, axis=0))
    return np.concatenate(bad)[: len(points)]


def same_tree(count):
    return jax.tree.map(lambda leaf: np.broadcast_to(leaf, (count,)), DEFAULT)


@pytest.mark.parametrize(
    ("tps", "name", "dies"),
    [
        ((1, 1), "both", 1.0),
        ((2, 8), "both", 2.0),
        ((1, 1), "decode-only", 1.0),
        ((1, 1), "one-token", 4.0),
        ((1, 1), "experts", 1.0),
        ((4, WIDE), "experts", 2.0),
    ],
)
def test_gradients_are_finite_at_every_corner_of_the_box(tps, name, dies):
    # every metric, in every variable and every technology leaf, at 2^11 corners
    bad = lanes_with_infinities(CORNERS, same_tree(len(CORNERS)), pools_of(tps, name), dies)
    assert bad.sum() == 0


def test_the_check_of_finite_gradients_can_fail():
    broken = eqx.tree_at(lambda t: t.prices.load_factor, same_tree(8), np.zeros(8))
    assert lanes_with_infinities(CORNERS[:8], broken, pools_of((1, 1)), 1.0).all()


ZEROS = tuple(
    name
    for name in LEAVES
    if name not in ("prices.gross_margin", "prices.host_usd_per_gb_s")
    # a divisor: nothing is made without it, and infinite cost is the right answer
    and name
    not in (
        "process.clustering",
        "process.reference_clock_ghz",
        "process.flop_per_clock_bf16",
        "process.flop_per_clock_fp8",
        "process.wafer_diameter_mm",
        "process.voltage_floor",
        "memory.stack_tb_s",
        "interconnect.edge_gb_s_per_mm",
        "package.die_link_gb_s_per_mm",
        "package.bond_yield",
        "prices.it_life_years",
        "prices.facility_life_years",
        "prices.load_factor",
        "prices.fleet_lifetime_tokens_e15",
        "execution.compute_efficiency_bf16",
        "execution.compute_efficiency_fp8",
        "execution.attention_efficiency",
        "execution.memory_efficiency",
        "execution.network_efficiency",
        "execution.overlap_exponent",
        "execution.reference_hop_us",
        "execution.reference_network_gb_s",
        "execution.fixed_time_factor",
    )
)


def test_a_leaf_of_zero_leaves_everything_finite():
    # overrides may be zero, where derivatives are absolute
    trees = jax.device_get([replaced(DEFAULT, name, 0.0) for name in ZEROS])
    trees = jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
    points = np.broadcast_to(WIDEST.mean(axis=1), (len(ZEROS), len(VARIABLES)))
    bad = lanes_with_infinities(points, trees, pools_of((2, 8)), 2.0)
    assert [name for name, is_bad in zip(ZEROS, bad, strict=True) if is_bad] == []
