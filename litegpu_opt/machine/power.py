"""Power: voltage against clock, energy of the work done, thermal design power, cooling."""

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from .design import Design
from .rates import peak_rates
from .technology import Technology


JOULE_PER_GB_PJ_BIT = 8e-3
"""1 GB at 1 pJ/bit is 8e9 bit x 1e-12 J = 8 mJ; also W per (GB/s) (pJ/bit)."""

FLOOR_SHARPNESS = 64.0
"""Exponent of the norm that joins the voltage floor to the line: 1.1 % at the knee, nothing
measurable at the reference clock."""


def relative_voltage(clock_ghz: Array, technology: Technology) -> Array:
    """`V/V0 = max(v_min, 1 - k + k f/f0)` as a norm of two posynomials, 1 at the reference clock.

    A p-norm instead of a softplus keeps it log-log convex.
    """
    process = technology.process
    slope, floor = process.voltage_slope, process.voltage_floor
    line = 1.0 - slope + slope * clock_ghz / process.reference_clock_ghz

    def norm(value: Array) -> Array:
        return (floor**FLOOR_SHARPNESS + value**FLOOR_SHARPNESS) ** (1.0 / FLOOR_SHARPNESS)

    return norm(line) / norm(jnp.ones_like(line))


class EnergyCosts(eqx.Module):
    """Energy of a unit of work at one clock, and the power drawn whatever is done."""

    bf16_j_per_tflop: Array
    fp8_j_per_tflop: Array
    memory_j_per_gb: Array
    network_j_per_gb: Array
    idle_w: Array
    sm_clock_w: Array
    """SMs that are clocked, at work or waiting."""

    @property
    def static_w(self) -> Array:
        """Power of a busy device before any work is counted, W."""
        return self.idle_w + self.sm_clock_w


def energy_costs(design: Design, clock_ghz: Array, technology: Technology) -> EnergyCosts:
    """Energy coefficients of a package: 1 pJ/FLOP is 1 J/TFLOP; logic scales with V^2, DRAM and
    links do not.

    A clock of an SM costs `E_sm` whether it issues or waits for memory: `n f E_sm V^2`. Both `e` of
    a FLOP and `E_sm` are fitted to the TDPs of the catalogue; measured powers of decode are met
    without another coefficient (`litegpu validate machine`).
    """
    process, package = technology.process, technology.package
    v2 = relative_voltage(clock_ghz, technology) ** 2
    remote_share = (design.dies_per_package - 1.0) / design.dies_per_package
    memory_pj_per_bit = (
        technology.memory.pj_per_bit
        + process.operand_pj_per_bit * v2
        + package.die_link_pj_per_bit * remote_share
    )
    return EnergyCosts(
        bf16_j_per_tflop=process.pj_per_flop_bf16 * v2,
        fp8_j_per_tflop=process.pj_per_flop_fp8 * v2,
        memory_j_per_gb=JOULE_PER_GB_PJ_BIT * memory_pj_per_bit,
        network_j_per_gb=JOULE_PER_GB_PJ_BIT * technology.interconnect.pj_per_bit,
        idle_w=process.idle_w_per_mm2 * design.silicon_mm2,
        # 1e9 clocks per second at 1e-12 J
        sm_clock_w=1e-3 * process.pj_per_sm_clock * design.sm_count * clock_ghz * v2,
    )


def rated_power_w(design: Design, technology: Technology) -> tuple[Array, Array, Array]:
    """Sustained power at the rated clock, W: in a compute-heavy phase in bf16, the same in fp8,
    and in a memory-heavy phase.

    The thermal design power is the largest. The rated clock `f_r = share x clock` is the one held
    with all tensor units busy; the design's clock is reached below that. In bf16

        idle A + n f_r V(f_r)^2 (E_sm + e16 c16) + 8 u (e_mem + e_operand V^2) W + 8 e_net N

    with a use u of the memory beside it. Utilisations are those of `Rating`.
    """
    rating = technology.rating
    clock_ghz = rating.rated_clock_share * design.clock_ghz
    rates = peak_rates(design, clock_ghz, technology)
    energy = energy_costs(design, clock_ghz, technology)
    bf16_w = rates.bf16_tflop_s * energy.bf16_j_per_tflop
    fp8_w = rates.fp8_tflop_s * energy.fp8_j_per_tflop
    memory_w = 1e3 * rates.memory_tb_s * energy.memory_j_per_gb
    always_w = energy.static_w + rates.network_gb_s * energy.network_j_per_gb
    beside_w = always_w + rating.compute_phase_memory * memory_w
    return (
        beside_w + bf16_w,
        beside_w + rating.compute_phase_fp8 * fp8_w,
        always_w + rating.memory_phase_compute * bf16_w + rating.memory_phase_memory * memory_w,
    )


def thermal_design_power_w(design: Design, technology: Technology) -> Array:
    """TDP: the largest rated power, or what the design is specified for if that is more, W. An H100
    SXM comes to 711 W from the catalogue.
    """
    powers_w = jnp.stack(
        [*rated_power_w(design, technology), *([] if design.tdp_w is None else [design.tdp_w])]
    )
    # not `max`: its slope compares with a result that a fused program may round differently
    return powers_w[jnp.argmax(powers_w)]


def junction_k_per_w(design: Design, technology: Technology) -> Array:
    """Junction temperature over that of the air or coolant coming in, per watt of the package, K/W:

        R_sink + r / (k A)

    for k dies of area A that share a cooler and the power alike: the cooler sees all of it, a die
    its k-th. For a large package it is the cooler that limits the watts; a small die has more
    resistance per watt, and yet may run at more watts per mm2: `dT/(R A + r)`. The cooler does not
    shrink with the die. Memory is counted in, as in the powers that R and r are taken from; those
    are of 814 to 1,600 mm2, so that a die of a quarter is an extrapolation.
    """
    cooling = technology.cooling
    return cooling.sink_k_per_w + cooling.spreading_k_mm2_per_w / design.silicon_mm2
