"""Formulas of the power: voltage, peaks, energies, thermal design power."""

from ...machine.design import Design
from ...machine.power import (
    FLOOR_SHARPNESS,
    JOULE_PER_GB_PJ_BIT,
    energy_costs,
    junction_k_per_w,
    rated_power_w,
    relative_voltage,
    thermal_design_power_w,
)
from ...machine.rates import peak_rates
from ...machine.technology import Technology
from ...numerics import AnyArray
from .formulas import Quantity


def _rates_and_energies(prefix: str, clock: str) -> dict[str, Quantity]:
    """Voltage, peaks and energies at one clock."""
    line = f"1 - process.voltage_slope + process.voltage_slope * {clock} / "
    line += "process.reference_clock_ghz"
    sharp = f"{FLOOR_SHARPNESS:g}"
    logic = f"{prefix}voltage ** 2"
    return {
        f"{prefix}voltage": Quantity(
            f"((process.voltage_floor ** {sharp} + ({line}) ** {sharp})"
            f" / (process.voltage_floor ** {sharp} + 1)) ** (1 / {sharp})",
            "",
            "voltage over that at the reference clock: the larger of floor and line, smooth",
        ),
        f"{prefix}bf16_tflop_s": Quantity(
            f"design.sm_count * {clock} * process.flop_per_clock_bf16 / 1000",
            "TFLOP/s",
            "dense peak in bf16",
        ),
        f"{prefix}fp8_tflop_s": Quantity(
            f"design.sm_count * {clock} * process.flop_per_clock_fp8 / 1000",
            "TFLOP/s",
            "dense peak in fp8",
        ),
        f"{prefix}bf16_j_per_tflop": Quantity(
            f"process.pj_per_flop_bf16 * {logic}",
            "J/TFLOP",
            "energy of a FLOP in bf16, pJ",
        ),
        f"{prefix}fp8_j_per_tflop": Quantity(
            f"process.pj_per_flop_fp8 * {logic}",
            "J/TFLOP",
            "the same in fp8",
        ),
        f"{prefix}memory_j_per_gb": Quantity(
            f"{JOULE_PER_GB_PJ_BIT} * (memory.pj_per_bit + process.operand_pj_per_bit * {logic}"
            " + package.die_link_pj_per_bit * (design.dies_per_package - 1)"
            " / design.dies_per_package)",
            "J/GB",
            "memory, the way to the SM, and the link to other dies; 8e9 bit x 1e-12 J",
        ),
        f"{prefix}static_w": Quantity(
            "process.idle_w_per_mm2 * design.die_area_mm2 * design.dies_per_package"
            " + process.pj_per_sm_clock * design.sm_count"
            f" * {clock} * {logic} / 1000",
            "W",
            "idle silicon, and SMs that are clocked, at work or waiting",
        ),
    }


POWER = {
    "memory_tb_s": Quantity("design.memory_stacks * memory.stack_tb_s", "TB/s", "memory bandwidth"),
    "network_j_per_gb": Quantity(
        f"{JOULE_PER_GB_PJ_BIT} * interconnect.pj_per_bit", "J/GB", "the device's end of a link"
    ),
    "far_pj_per_bit": Quantity(
        "interconnect.pj_per_bit + switch.pj_per_bit", "pJ/bit", "far end of a link, and its switch"
    ),
    "idle_w": Quantity(
        "process.idle_w_per_mm2 * design.die_area_mm2 * design.dies_per_package",
        "W",
        "idle silicon",
    ),
    **_rates_and_energies("", "design.clock_ghz"),
    "rated_clock_ghz": Quantity(
        "rating.rated_clock_share * design.clock_ghz", "GHz", "clock held with all units busy"
    ),
    **_rates_and_energies("rated_", "rated_clock_ghz"),
    "rated_memory_w": Quantity(
        "1000 * memory_tb_s * rated_memory_j_per_gb", "W", "memory at its full bandwidth"
    ),
    "always_w": Quantity(
        "rated_static_w + design.network_gb_s * network_j_per_gb",
        "W",
        "waiting device, network at full bandwidth",
    ),
    "rated_bf16_phase_w": Quantity(
        "always_w + rating.compute_phase_memory * rated_memory_w"
        " + rated_bf16_tflop_s * rated_bf16_j_per_tflop",
        "W",
        "compute-heavy phase in bf16",
    ),
    "rated_fp8_phase_w": Quantity(
        "always_w + rating.compute_phase_memory * rated_memory_w"
        " + rating.compute_phase_fp8 * rated_fp8_tflop_s * rated_fp8_j_per_tflop",
        "W",
        "compute-heavy phase in fp8",
    ),
    "rated_memory_phase_w": Quantity(
        "always_w + rating.memory_phase_compute * rated_bf16_tflop_s * rated_bf16_j_per_tflop"
        " + rating.memory_phase_memory * rated_memory_w",
        "W",
        "memory-heavy phase",
    ),
    "tdp_w": Quantity(
        "max(rated_bf16_phase_w, rated_fp8_phase_w, rated_memory_phase_w)",
        "W",
        "thermal design power: the largest of the three",
    ),
    "junction_k_per_w": Quantity(
        "cooling.sink_k_per_w + cooling.spreading_k_mm2_per_w"
        " / (design.die_area_mm2 * design.dies_per_package)",
        "K/W",
        "junction over the air or coolant coming in, per watt: cooler, and way to it",
    ),
    "junction_rise_k": Quantity(
        "tdp_w * junction_k_per_w",
        "K",
        "the same at the TDP",
    ),
    "thermal_limit_w": Quantity(
        "cooling.max_junction_rise_k / junction_k_per_w",
        "W",
        "power at which the junction is as hot as allowed",
    ),
}


def power_values(design: Design, technology: Technology) -> dict[str, AnyArray]:
    """From the functions of the model; the rest of `POWER` is worked out from its text."""
    rated = rated_power_w(design, technology)
    values: dict[str, AnyArray] = {
        "rated_bf16_phase_w": rated[0],
        "rated_fp8_phase_w": rated[1],
        "rated_memory_phase_w": rated[2],
        "tdp_w": thermal_design_power_w(design, technology),
        "junction_k_per_w": junction_k_per_w(design, technology),
        "far_pj_per_bit": technology.far_pj_per_bit,
    }
    clock_ghz = design.clock_ghz
    for prefix, clock in (
        ("", clock_ghz),
        ("rated_", technology.rating.rated_clock_share * clock_ghz),
    ):
        rates = peak_rates(design, clock, technology)
        energy = energy_costs(design, clock, technology)
        values |= {
            f"{prefix}voltage": relative_voltage(clock, technology),
            f"{prefix}bf16_tflop_s": rates.bf16_tflop_s,
            f"{prefix}fp8_tflop_s": rates.fp8_tflop_s,
            f"{prefix}bf16_j_per_tflop": energy.bf16_j_per_tflop,
            f"{prefix}fp8_j_per_tflop": energy.fp8_j_per_tflop,
            f"{prefix}memory_j_per_gb": energy.memory_j_per_gb,
            f"{prefix}static_w": energy.static_w,
            "memory_tb_s": rates.memory_tb_s,
            "network_j_per_gb": energy.network_j_per_gb,
            "idle_w": energy.idle_w,
        }
    return values
