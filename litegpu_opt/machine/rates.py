"""Peak rates of a design: dense FLOP/s per dtype, memory and network bandwidth."""

import equinox as eqx
from jax import Array

from .design import Design
from .technology import Technology


class Rates(eqx.Module):
    """What a package can do per second at a given clock. Dense peaks, bandwidth per direction."""

    bf16_tflop_s: Array
    fp8_tflop_s: Array
    memory_tb_s: Array
    network_gb_s: Array


def peak_rates(design: Design, clock_ghz: Array, technology: Technology) -> Rates:
    """`F = SMs x FLOP/clk/SM x clock`, `W = stacks x bandwidth per stack`.

    H100 SXM: 132 x 4096 x 1.83 GHz = 989.4 TFLOP/s dense bf16; 5 x 0.67 = 3.35 TB/s.
    """
    process = technology.process
    tera_clocks = 1e-3 * design.sm_count * clock_ghz
    return Rates(
        bf16_tflop_s=tera_clocks * process.flop_per_clock_bf16,
        fp8_tflop_s=tera_clocks * process.flop_per_clock_fp8,
        memory_tb_s=design.memory_stacks * technology.memory.stack_tb_s,
        network_gb_s=design.network_gb_s,
    )
