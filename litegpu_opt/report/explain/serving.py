"""Formulas of a deployment: time of every operator, latencies, energy, dollars per token."""

import operator
import re
from typing import Any

import jax
import numpy as np

from ...execution.phase import moved_gb
from ...execution.roofline import HardRoof
from ...machine.power import JOULE_PER_GB_PJ_BIT
from ...serving import MOST_STATIC_SHARE, POWER_SHARPNESS
from ...workload.counts import operator_names
from ...workload.phases import PHASES
from ...workload.pool import Pool, build_pools
from ..serving import Deployed
from .formulas import Constant, Quantity


LARGEST_PLAIN_EXPONENT = 32.0
"""Above it a power of a short time is no longer a number, and the larger time is divided out."""

USABLE = {
    "usable_bf16_tflop_s": Quantity(
        "execution.compute_efficiency_bf16 * bf16_tflop_s", "TFLOP/s", "reached in bf16"
    ),
    "usable_fp8_tflop_s": Quantity(
        "execution.compute_efficiency_fp8 * fp8_tflop_s", "TFLOP/s", "reached in fp8"
    ),
    "usable_attention_tflop_s": Quantity(
        "execution.attention_efficiency * bf16_tflop_s", "TFLOP/s", "reached in attention"
    ),
    "usable_memory_tb_s": Quantity(
        "execution.memory_efficiency * memory_tb_s", "TB/s", "bandwidth reached"
    ),
    "usable_network_gb_s": Quantity(
        "execution.network_efficiency * design.network_gb_s", "GB/s", "network reached"
    ),
    "relative_hop": Quantity(
        "(interconnect.hop_us + switch.hop_us) / execution.reference_hop_us",
        "",
        "latency of a hop over that of the network on which collectives were measured",
    ),
    "usable_memory_gb": Quantity(
        "execution.memory_usable_share * design.memory_gb", "GB", "memory for weights and cache"
    ),
}

TOTALS = {
    "ttft_ms": Quantity(
        "prefill_through_ms + handover_ms + execution.request_ms", "ms", "time to first token"
    ),
    "handover_ms": Quantity(
        "1000 * prefill.batch * prefill.handover_gb_per_seq / usable_network_gb_s",
        "ms",
        "the KV cache on its way to the decode pool",
    ),
    "joules_per_token": Quantity(
        "1000 * (prefill_seconds_per_token * (prefill_device_j + prefill_cluster_j)"
        " / prefill_time_ms"
        " + decode_seconds_per_token * (decode_device_j + decode_cluster_j) / decode_time_ms)",
        "J",
        "energy of an output token, both pools",
    ),
    "electricity_usd_per_hour": Quantity(
        "3600 * usd_per_joule * joules_per_token * prices.load_factor"
        " / (prefill_seconds_per_token + decode_seconds_per_token)",
        "USD/h",
        "electricity of an owned device, on average over both pools",
    ),
    "device_hour_usd": Quantity(
        "ownership_usd_per_hour + electricity_usd_per_hour", "USD/h", "an owned device"
    ),
    "usd_per_million_tokens": Quantity(
        "1e6 * (prefill_usd_per_token + decode_usd_per_token + nre_usd_per_token)",
        "USD",
        "cost of a million output tokens",
    ),
    "tokens_per_dollar": Quantity(
        "1e6 / usd_per_million_tokens", "1/USD", "output tokens of a dollar"
    ),
}


def serving_formulas(
    deployed: Deployed,
) -> tuple[dict[str, Quantity], dict[str, Constant], dict[str, Any]]:
    """Quantities, what they start from, and values from the functions of the model."""
    deployment, workload = deployed.deployment, deployed.workload
    metrics = deployed.metrics()
    services = metrics.services
    pools = build_pools(workload, deployment.prefill, deployment.decode)
    quantities = dict(USABLE)
    constants: dict[str, Constant] = {}
    values: dict[str, Any] = {}
    for index, phase in enumerate(PHASES):
        pool = jax.tree.map(operator.itemgetter(index), pools)
        batch = float(getattr(deployment, f"batch_{phase}"))
        way = getattr(deployment, phase)
        names = operator_names(workload.transformer, way, decode=phase == "decode")
        constants |= _pool_constants(phase, pool, batch, workload.transformer.name)
        of_operators, counts = _operators(phase, names, pool, batch, deployed)
        quantities |= of_operators
        constants |= counts
        quantities |= _phase(
            phase,
            pool,
            [name for name in of_operators if _is_total(name)],
            capped=bool(deployed.technology.execution.power_capped),
        )
        times = services.times
        rows = {f"{phase}_{slug}": row for row, slug in enumerate(_slugs(names))}
        for name, row in rows.items():
            values[f"{name}_compute_ms"] = times.compute_ms[index, row]
            values[f"{name}_memory_ms"] = times.memory_ms[index, row]
        for field in ("time_ms", "device_j", "cluster_j", "usd_per_token", "memory_gb"):
            values[f"{phase}_{field}"] = getattr(services, field)[index]
        values[f"{phase}_seconds_per_token"] = services.device_seconds_per_token[index]
    values |= {
        "relative_hop": deployed.technology.relative_hop,
        "ttft_ms": services.latency_ms[0],
        "handover_ms": services.handover_ms[0],
        "joules_per_token": metrics.joules_per_token,
        "electricity_usd_per_hour": 3600.0 * metrics.electricity_usd_per_second,
        "usd_per_million_tokens": 1e6 * metrics.usd_per_token,
        "tokens_per_dollar": metrics.tokens_per_dollar,
    }
    quantities |= TOTALS
    known = {name: value for name, value in values.items() if name in quantities}
    return quantities, constants, known


def _is_total(name: str) -> bool:
    return not name.endswith(("_compute_ms", "_memory_ms"))


def _slugs(names: tuple[str, ...]) -> list[str]:
    """Names of operators as they stand in a formula; the kind of stage tells twins apart."""
    slugs: list[str] = []
    for name in names:
        plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        twins = sum(re.sub(r"_again\d*$", "", slug) == plain for slug in slugs)
        slugs.append(f"{plain}_again{twins}" if twins else plain)
    return slugs


def _pool_constants(phase: str, pool: Pool, batch: float, model: str) -> dict[str, Constant]:
    counted = f"counted from the configuration of {model}"
    part = batch / float(pool.microbatches)
    operators = pool.operators
    runs = np.asarray(operators.device_share * operators.repeats)
    bf16 = operators.tflop_bf16_per_seq + operators.tflop_attention_per_seq
    stated = {
        "batch": (batch, "", "sequences of a group: chosen"),
        "microbatches": (pool.microbatches, "", "parts of the batch: chosen"),
        "devices": (pool.devices, "", "devices of a group: chosen"),
        "executions_per_token": (pool.executions_per_token, "", "per sequence, from the lengths"),
        "weights_gb": (pool.weights_gb, "GB", counted),
        "kv_gb_per_seq": (pool.kv_gb_per_seq, "GB", counted),
        "sent_gb_per_seq": (pool.sent_gb_per_seq, "GB", counted),
        "handover_gb_per_seq": (pool.handover_gb_per_seq, "GB", counted),
        "tflop_bf16": (part * np.sum(runs * bf16), "TFLOP", counted),
        "tflop_fp8": (part * np.sum(runs * operators.tflop_fp8_per_seq), "TFLOP", counted),
        "moved_gb": (np.sum(runs * moved_gb(operators, np.float64(part))), "GB", counted),  # pyright: ignore[reportArgumentType]
        "wire_gb": (part * np.sum(runs * operators.wire_gb_per_seq), "GB", counted),
    }
    return {
        f"{phase}.{name}": Constant(float(value), unit, source, "")
        for name, (value, unit, source) in stated.items()
    }


_TIMES = (
    ("tflop_bf16", "tflop_bf16_per_seq", "TFLOP"),
    ("tflop_fp8", "tflop_fp8_per_seq", "TFLOP"),
    ("tflop_attention", "tflop_attention_per_seq", "TFLOP"),
    ("tflop_attention_key", "tflop_attention_per_key_and_seq", "TFLOP"),
    ("repeats", "repeats", ""),
    ("launches", "launches", ""),
    ("depth_k", "depth_k", ""),
    ("attentions", "attentions", ""),
    ("passes", "passes", ""),
    ("pass_gb", "pass_gb_per_seq", "GB"),
    ("sampled", "sampled", ""),
    ("collectives", "collectives", ""),
    ("steps", "steps", ""),
    ("message_mb", "message_mb_per_seq", "MB"),
    ("wire_gb", "wire_gb_per_seq", "GB"),
)
"""Name in a formula, field of `OperatorCounts`, unit."""


_FIXED = (
    ("launches", "launch_us"),
    ("depth_k", "launch_us_per_k"),
    ("attentions", "attention_us"),
    ("passes", "pass_us"),
)
"""Count of an operator and its leaf in the fixed times of kernels."""


def _operators(
    phase: str, names: tuple[str, ...], pool: Pool, batch: float, deployed: Deployed
) -> tuple[dict[str, Quantity], dict[str, Constant]]:
    """Compute, memory and total time of every operator over the phase, without terms of nothing."""
    part = batch / float(pool.microbatches)
    moved = np.asarray(moved_gb(pool.operators, np.float64(part)))  # pyright: ignore[reportArgumentType]
    counted = f"counted from the configuration of {deployed.workload.transformer.name}"
    quantities: dict[str, Quantity] = {}
    constants: dict[str, Constant] = {}
    for row, (title, slug) in enumerate(zip(names, _slugs(names), strict=True)):
        table = f"{phase}_{slug}"
        counts = {
            name: (float(getattr(pool.operators, field)[row]), unit) for name, field, unit in _TIMES
        } | {"moved_gb": (float(moved[row]), "GB")}
        constants |= {
            f"{table}.{name}": Constant(value, unit, counted, "")
            for name, (value, unit) in counts.items()
            if value
        }
        given = {name for name, (value, _) in counts.items() if value}
        quantities |= _operator(phase, table, title, given, deployed)
    return quantities, constants


def _operator(
    phase: str, table: str, title: str, given: set[str], deployed: Deployed
) -> dict[str, Quantity]:
    """**Arguments:** `given`: counts of the operator that are not zero."""
    part = f"{phase}.batch / {phase}.microbatches"
    quantities: dict[str, Quantity] = {}
    flops = [
        f"{table}.tflop_{kind} / usable_{kind}_tflop_s"
        for kind in ("bf16", "fp8", "attention")
        if f"tflop_{kind}" in given
    ]
    if "tflop_attention_key" in given:
        flops.append(
            f"execution.attention_extra_keys * {table}.tflop_attention_key"
            " / usable_attention_tflop_s"
        )
    if flops:
        quantities[f"{table}_compute_ms"] = Quantity(
            f"{table}.repeats * 1000 * {part} * ({' + '.join(flops)})",
            "ms",
            f"{title}: compute",
            f"{phase} compute",
        )
    if "moved_gb" in given:
        quantities[f"{table}_memory_ms"] = Quantity(
            f"{table}.repeats * {table}.moved_gb / usable_memory_tb_s",
            "ms",
            f"{title}: memory",
            f"{phase} memory",
        )
    terms = [_roof(list(quantities), deployed)] if quantities else []
    fixed = [f"{table}.{count} * execution.{leaf}" for count, leaf in _FIXED if count in given]
    if fixed:
        kernels = " + ".join(fixed)
        terms.append(f"{table}.repeats * execution.fixed_time_factor * ({kernels}) / 1000")
    if "sampled" in given:
        terms.append(f"{table}.repeats * {part} * {table}.sampled * execution.sequence_us / 1000")
    if "pass_gb" in given:
        terms.append(
            f"{table}.repeats * {part} * execution.pass_slowdown * {table}.pass_gb / memory_tb_s"
        )
    if "collectives" in given:
        terms.append(
            f"{table}.repeats * {table}.collectives * (execution.fixed_time_factor"
            " * (execution.collective_us"
            f" + execution.collective_us_per_step * relative_hop * {table}.steps)"
            f" + execution.collective_us_per_sqrt_mb * sqrt({part} * {table}.message_mb"
            " * execution.reference_network_gb_s / design.network_gb_s)) / 1000"
        )
    if "wire_gb" in given:
        terms.append(f"{table}.repeats * 1000 * {part} * {table}.wire_gb / usable_network_gb_s")
    total = " + ".join(terms) or f"0 * {table}.repeats"
    return quantities | {f"{table}_ms": Quantity(total, "ms", title, f"{phase} operator")}


def _roof(times: list[str], deployed: Deployed) -> str:
    """Compute and memory time joined as the roof of the deployment joins them."""
    if len(times) == 1:
        return times[0]
    compute, memory = times
    if isinstance(deployed.roof, HardRoof):
        return f"max({compute}, {memory})"
    q = "execution.overlap_exponent"
    if float(deployed.technology.execution.overlap_exponent) <= LARGEST_PLAIN_EXPONENT:
        return f"({compute} ** {q} + {memory} ** {q}) ** (1 / {q})"
    return _sharp_norm(compute, memory, q)


def _sharp_norm(one: str, other: str, q: str) -> str:
    """The q-norm of two times, for any q."""
    larger, smaller = f"max({one}, {other})", f"min({one}, {other})"
    return f"{larger} * (1 + ({smaller} / {larger}) ** {q}) ** (1 / {q})"


def _phase(phase: str, pool: Pool, operators: list[str], *, capped: bool) -> dict[str, Quantity]:
    """Time, energy, memory and dollars of a phase."""
    microbatches = f"{phase}.microbatches"
    batch = f"{phase}.batch"
    return _time(phase, pool, operators, capped=capped) | {
        f"{phase}_dynamic_j": Quantity(
            f"{microbatches} * ("
            f"{phase}.tflop_bf16 * bf16_j_per_tflop + {phase}.tflop_fp8 * fp8_j_per_tflop"
            f" + {phase}.moved_gb * memory_j_per_gb + {phase}.wire_gb * network_j_per_gb)"
            f" + network_j_per_gb * {batch} * {phase}.sent_gb_per_seq",
            "J",
            f"{phase}: the work of a device, for a batch",
        ),
        f"{phase}_owned_s": Quantity(
            f"{phase}_time_ms / 1000 / prices.load_factor", "s", "a device is owned, idle or not"
        ),
        f"{phase}_device_j": Quantity(
            f"static_w * {phase}_time_ms / 1000 + {phase}_dynamic_j",
            "J",
            f"{phase}: a device, for a batch",
        ),
        f"{phase}_power_w": Quantity(
            f"1000 * {phase}_device_j / {phase}_time_ms", "W", f"{phase}: a busy device"
        ),
        f"{phase}_cluster_j": Quantity(
            f"prices.host_power_share * tdp_w * {phase}_owned_s"
            f" + idle_w * ({phase}_owned_s - {phase}_time_ms / 1000)"
            f" + {JOULE_PER_GB_PJ_BIT} * far_pj_per_bit"
            f" * ({microbatches} * {phase}.wire_gb + {batch} * {phase}.sent_gb_per_seq)",
            "J",
            f"{phase}: host, idle time, far link ends, switches",
        ),
        f"{phase}_memory_gb": Quantity(
            f"{phase}.weights_gb + {batch} * {phase}.kv_gb_per_seq", "GB", f"{phase}: on a device"
        ),
        f"{phase}_seconds_per_token": Quantity(
            f"{phase}.devices * {phase}.executions_per_token / {batch} * {phase}_time_ms / 1000",
            "s",
            f"{phase}: busy device-seconds of an output token",
        ),
        f"{phase}_usd_per_busy_hour": Quantity(
            f"ownership_usd_per_hour / prices.load_factor + 3600 * usd_per_joule"
            f" * ({phase}_device_j + {phase}_cluster_j) / ({phase}_time_ms / 1000)",
            "USD/h",
            f"{phase}: an hour of a busy device",
        ),
        f"{phase}_usd_per_token": Quantity(
            f"{phase}_usd_per_busy_hour / 3600 * {phase}_seconds_per_token",
            "USD",
            f"{phase}: part of the cost of an output token",
        ),
    }


def _time(phase: str, pool: Pool, operators: list[str], *, capped: bool) -> dict[str, Quantity]:
    """How long a batch keeps the devices, and how long it takes to come through."""
    m = f"{phase}.microbatches"
    kinds = np.asarray(pool.operators.stage)
    kept, through = f"{phase}_time_ms", f"{phase}_through_ms"
    if len(kinds) == 1:
        return _kept(phase, f"{m} * ({' + '.join(operators)})", capped=capped) | {
            through: Quantity(kept, "ms", f"{phase}: a batch from end to end"),
        }
    stages: dict[str, Quantity] = {}
    weighted = []
    for kind, (members, count) in enumerate(zip(kinds, pool.operators.stages, strict=True)):
        own = [name for name, member in zip(operators, members, strict=False) if member]
        if not own:  # padding
            continue
        name = f"{phase}_stage{kind}_ms"
        stages[name] = Quantity(" + ".join(own), "ms", f"{phase}: a stage of kind {kind}")
        weighted.append(f"{int(count)} * {name}")
    slowest = f"max({', '.join(stages)})" if len(stages) > 1 else next(iter(stages))
    whole = " + ".join(weighted)
    stages[f"{phase}_slowest_ms"] = Quantity(slowest, "ms", f"{phase}: the slowest stage")
    stages[f"{phase}_whole_ms"] = Quantity(whole, "ms", f"{phase}: all stages")
    again = float(pool.waits_for_itself)
    step = f"{m} * {phase}_slowest_ms"
    roof = f"max({phase}_whole_ms, {step})" if again else step
    end = kept if again else f"{kept} + {phase}_whole_ms - {phase}_slowest_ms"
    return (
        stages
        | _kept(phase, roof, capped=capped)
        | {through: Quantity(end, "ms", f"{phase}: a batch from end to end")}
    )


def _kept(phase: str, roof: str, *, capped: bool) -> dict[str, Quantity]:
    """How long a batch keeps the devices: as the operators say, or the power if it is capped."""
    kept = f"{phase}_time_ms"
    if not capped:
        return {kept: Quantity(roof, "ms", f"{phase}: a batch keeps the devices")}
    roof_ms, power_ms, share = f"{phase}_roof_ms", f"{phase}_power_ms", f"{phase}_static_share"
    inside = f"min({share}, {MOST_STATIC_SHARE})"
    slope = f"{MOST_STATIC_SHARE / (1.0 - MOST_STATIC_SHARE):g}"
    return {
        roof_ms: Quantity(roof, "ms", f"{phase}: a batch, as its operators say"),
        share: Quantity("static_w / tdp_w", "", f"{phase}: of the TDP before any work is done"),
        power_ms: Quantity(
            f"execution.power_capped * 1000 * {phase}_dynamic_j / tdp_w"
            f" / (1 - {inside}) * ({share} / {inside}) ** {slope}",
            "ms",
            f"{phase}: its work with what is left of the TDP, which caps the power; the last factor"
            " is 1 where something is left",
        ),
        kept: Quantity(
            _sharp_norm(roof_ms, power_ms, f"{POWER_SHARPNESS:g}"),
            "ms",
            f"{phase}: a batch keeps the devices: the longer of the two, smooth",
        ),
    }
