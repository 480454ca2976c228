"""Time and energy of one phase: where operator counts meet rates.

    t_i = repeats_i ( fixed_i + roof(flops_i/(e_c F), bytes_i/(e_m W)) + pass_i + collective_i )
    fixed = k (launches t0 + w K/1024 + attentions t_a + passes t_p) + c_s sequences
    pass = Q pass bytes/W
    collective = k (a0 + a1 h steps) + s sqrt(S N_ref/N) + wire/(e_n N)

with K the depth of a matrix product, and S0 keys more for every query of a prompt in the FLOPs of
attention. Every term is a posynomial of the design and the batch inside a norm, so the phase time
is a generalised posynomial. Efficiencies enter as reciprocals. The same function is fitted to
measured kernels (`calibration/`): a kernel is a phase of one operator.
"""

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from ..machine.power import EnergyCosts
from ..machine.rates import Rates
from ..machine.technology import Execution
from ..numerics import TINY, AnyArray
from ..workload.counts import OperatorCounts
from .roofline import Roof


MS_PER_S = 1e3
MS_PER_US = 1e-3


class OperatorTimes(eqx.Module):
    """Time of every operator over the whole phase, ms, arrays over the operator axis `(ops,)`."""

    compute_ms: Array
    memory_ms: Array
    launch_ms: Array
    """Fixed times of kernels, and of the sequences of a step."""
    pass_ms: Array
    """Bytes of separate elementwise passes."""
    hop_ms: Array
    """Fixed and size-dependent latency of collectives."""
    wire_ms: Array

    def total_ms(self, roof: Roof) -> Array:
        """Operator times with compute and memory joined by a roof; nothing hides the rest."""
        beside = self.launch_ms + self.pass_ms + self.hop_ms + self.wire_ms
        return roof(self.compute_ms, self.memory_ms) + beside


def operator_times(
    operators: OperatorCounts,
    batch: Array,
    rates: Rates,
    execution: Execution,
    relative_hop: AnyArray | float = 1.0,
) -> OperatorTimes:
    """Time of every operator of a phase for a batch of sequences.

    A step of a collective costs its measured time in proportion to the latency of a hop:
    `relative_hop` is 1 for the network on which it was measured.
    """
    attention_tflop = (
        operators.tflop_attention_per_seq
        + execution.attention_extra_keys * operators.tflop_attention_per_key_and_seq
    )
    compute_s = batch * (
        operators.tflop_bf16_per_seq / (execution.compute_efficiency_bf16 * rates.bf16_tflop_s)
        + operators.tflop_fp8_per_seq / (execution.compute_efficiency_fp8 * rates.fp8_tflop_s)
        + attention_tflop / (execution.attention_efficiency * rates.bf16_tflop_s)
    )
    # GB / (TB/s) is ms
    memory_ms = moved_gb(operators, batch) / (execution.memory_efficiency * rates.memory_tb_s)
    fixed_us = execution.fixed_time_factor * (
        operators.launches * execution.launch_us
        + operators.depth_k * execution.launch_us_per_k
        + operators.attentions * execution.attention_us
        + operators.passes * execution.pass_us
    )
    host_us = execution.sequence_us * operators.sampled * batch
    pass_ms = execution.pass_slowdown * operators.pass_gb_per_seq * batch / rates.memory_tb_s
    # one device has no collectives: the tiny message keeps the square root differentiable
    message_mb = operators.message_mb_per_seq * batch + TINY
    relative_message_mb = message_mb * execution.reference_network_gb_s / rates.network_gb_s
    hop_us = operators.collectives * (
        execution.fixed_time_factor
        * (
            execution.collective_us
            + execution.collective_us_per_step * relative_hop * operators.steps
        )
        + execution.collective_us_per_sqrt_mb * jnp.sqrt(relative_message_mb)
    )
    wire_s = operators.wire_gb_per_seq * batch / (execution.network_efficiency * rates.network_gb_s)
    return OperatorTimes(
        compute_ms=operators.repeats * MS_PER_S * compute_s,
        memory_ms=operators.repeats * memory_ms,
        launch_ms=operators.repeats * MS_PER_US * (fixed_us + host_us),
        pass_ms=operators.repeats * pass_ms,
        hop_ms=operators.repeats * MS_PER_US * hop_us,
        wire_ms=operators.repeats * MS_PER_S * wire_s,
    )


def total_tflop_per_seq(operators: OperatorCounts) -> Array:
    """Multiplications and additions of every operator, in whatever format."""
    return (
        operators.tflop_bf16_per_seq
        + operators.tflop_fp8_per_seq
        + operators.tflop_attention_per_seq
    )


def moved_gb(operators: OperatorCounts, batch: Array) -> Array:
    """Memory traffic of one run of each operator, GB: weights once, experts if a token is routed to
    them, the rest per sequence.
    """
    dense = operators.weight_gb + operators.traffic_gb_per_seq * batch
    if operators.experts is None:
        return dense
    return dense + operators.experts.gb * operators.experts.touched(batch)


def operator_energy_j(operators: OperatorCounts, batch: Array, energy: EnergyCosts) -> Array:
    """Energy of the FLOPs, memory bytes and wire bytes of every operator, J, `(ops,)`."""
    bf16_tflop = operators.tflop_bf16_per_seq + operators.tflop_attention_per_seq
    once_j = (
        batch * bf16_tflop * energy.bf16_j_per_tflop
        + batch * operators.tflop_fp8_per_seq * energy.fp8_j_per_tflop
        + moved_gb(operators, batch) * energy.memory_j_per_gb
        + batch * operators.wire_gb_per_seq * energy.network_j_per_gb
    )
    return operators.device_share * operators.repeats * once_j


def dynamic_energy_j(operators: OperatorCounts, batch: Array, energy: EnergyCosts) -> Array:
    """Energy of all operators of a phase on one device, J; with pipeline stages, on average over
    their devices.
    """
    return jnp.sum(operator_energy_j(operators, batch, energy))
