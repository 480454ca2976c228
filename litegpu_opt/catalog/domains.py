"""Domains: where a technology value makes sense at all, whoever states it.

Outside them a formula divides by zero or a term stops being log-log convex, and
then a certificate would claim what does not hold.
"""

import math
from collections.abc import Mapping

from ..errors import UserError
from .records import Record


_SHARE = (0.0, 1.0)
_FURTHEST = 1000.0
_RIM_ROOM = 1.1
"""A die of the whole field must stay this much clear of where the wafer holds none."""

_CLOSED = {
    "process.sm_repairable": _SHARE,
    "process.sram_repairable": _SHARE,
    "process.memory_phy_repairable": _SHARE,
    "process.voltage_slope": _SHARE,
    "prices.interest": _SHARE,
    "prices.nre_charged": _SHARE,
}
"""Lowest and highest value, both allowed."""

_ABOVE_ZERO_UP_TO = {
    "process.usable_edge_share": 1.0,
    "process.voltage_floor": 1.0,
    "package.bond_yield": 1.0,
    "prices.load_factor": 1.0,
    "rating.rated_clock_share": 1.0,
    "rating.compute_phase_fp8": 1.0,
    "rating.memory_phase_memory": 1.0,
    "execution.compute_efficiency_bf16": 1.0,
    "execution.compute_efficiency_fp8": 1.0,
    "execution.attention_efficiency": 1.0,
    "execution.memory_efficiency": 1.0,
    "execution.network_efficiency": 1.0,
    "execution.memory_usable_share": 1.0,
}
"""Above 0 and at most this."""

_AT_LEAST = {
    "process.sm_built_per_enabled": 1.0,
    "memory.sites_per_stack": 1.0,
    "cooling.pue": 1.0,
    "interconnect.largest_domain": 1.0,
    "switch.largest_domain": 1.0,
    "process.wafer_diameter_mm": 150.0,
    "execution.overlap_exponent": 1.0,
}

_ABOVE_ZERO = (
    "process.clustering",
    "process.wafer_usd",
    "process.field_long_mm",
    "process.field_short_mm",
    "process.sm_mm2",
    "process.flop_per_clock_bf16",
    "process.flop_per_clock_fp8",
    "process.reference_clock_ghz",
    "process.max_clock_ghz",
    "memory.stack_tb_s",
    "memory.stack_min_gb",
    "memory.stack_max_gb",
    "interconnect.edge_gb_s_per_mm",
    "interconnect.floor_gb_s",
    "interconnect.port_gb_s",
    "package.die_link_gb_s_per_mm",
    "execution.reference_hop_us",
    "cooling.spreading_k_mm2_per_w",
    "cooling.max_junction_rise_k",
    "execution.reference_network_gb_s",
    "execution.fixed_time_factor",
    "cooling.limit_package_w",
    "prices.it_life_years",
    "prices.facility_life_years",
    "prices.fleet_lifetime_tokens_e15",
)


_POWER = (
    "process.idle_w_per_mm2",
    "process.pj_per_sm_clock",
    "process.pj_per_flop_bf16",
    "process.pj_per_flop_fp8",
    "memory.pj_per_bit",
)
"""Above 0 as well: 0 would stand for a power that is not known, and meet every limit on it."""


def check_domain(name: str, value: float, where: str) -> None:
    """Refuse a value outside its domain. **Raises:** `UserError` with what is allowed."""
    if name in _CLOSED:
        low, high = _CLOSED[name]
        good, allowed = low <= value <= high, f"{low:g} to {high:g}"
    elif name == "prices.gross_margin":
        good, allowed = 0.0 <= value < 1.0, "0 or more and below 1"
    elif name in _ABOVE_ZERO_UP_TO:
        high = _ABOVE_ZERO_UP_TO[name]
        good, allowed = 0.0 < value <= high, f"above 0 and at most {high:g}"
    elif name in _AT_LEAST:
        good, allowed = value >= _AT_LEAST[name], f"{_AT_LEAST[name]:g} or more"
    elif name in _POWER and value == 0.0:
        raise UserError(
            "0 is no power: what is not known is not modelled, and no limit on it can be held",
            where=where,
            allowed="above 0",
        )
    elif name in _ABOVE_ZERO:
        good, allowed = value > 0.0, "above 0"
    else:
        good, allowed = value >= 0.0, "0 or more"
    if not good:
        raise UserError(f"{value:g} is out of range", where=where, allowed=allowed)


def is_allowed(name: str, value: float) -> bool:
    """Whether a value is in its domain."""
    try:
        check_domain(name, value, "")
    except UserError:
        return False
    return True


def check_scale(value: float, catalogued: Record, where: str) -> None:
    """Refuse a value that is not 0 and further than a factor of 1000 outside the catalogue's range:
    a unit slip, or beyond what double precision carries. **Raises:** `UserError`.
    """
    low, high = catalogued.low / _FURTHEST, max(catalogued.high, 1.0) * _FURTHEST
    if value != 0.0 and not low <= value <= high:
        raise UserError(
            f"{value:g} is far outside the known range",
            where=where,
            allowed=f"{low:g} to {high:g} {catalogued.unit}",
        )


def check_together(values: Mapping[str, float]) -> None:
    """Refuse values that only make sense together. **Raises:** `UserError`."""
    radius_mm = values["process.wafer_diameter_mm"] / 2.0 - values["process.wafer_edge_mm"]
    field_mm2 = values["process.field_long_mm"] * values["process.field_short_mm"]
    pitch_mm = math.sqrt(field_mm2) + values["process.scribe_mm"]
    if radius_mm <= _RIM_ROOM * math.sqrt(2.0) * pitch_mm:
        raise UserError(
            f"a reticle field of {field_mm2:g} mm2 does not fit on a wafer of radius "
            f"{radius_mm:g} mm inside its edge",
            where="process",
            allowed="a larger wafer_diameter_mm, or a smaller wafer_edge_mm or field",
        )
    if values["memory.stack_min_gb"] > values["memory.stack_max_gb"]:
        raise UserError("stack_min_gb is above stack_max_gb", where="memory", allowed="at most it")
