"""Peaks and links of shipped chips: dense, per format, per direction (cases 30 to 32 and 47)."""

import pytest

from litegpu_opt.catalog import load_accelerator
from litegpu_opt.errors import UserError
from litegpu_opt.machine.rates import peak_rates
from litegpu_opt.workload.precision import Precision


def rates(name):
    chip = load_accelerator(name)
    design = chip.design()
    return peak_rates(design, design.clock_ghz, chip.technology())


@pytest.mark.parametrize(
    ("name", "tflop_s"), [("h100-sxm", 989.4), ("h200-sxm", 989.4), ("h100-pcie", 756.5)]
)
def test_peaks_are_dense(name, tflop_s):
    """Case 30: not the figure with 2:4 sparsity, which is twice as large."""
    assert float(rates(name).bf16_tflop_s) == pytest.approx(tflop_s, rel=1e-3)


def test_ridge_of_the_h100():
    """Case 30: 989.4 TFLOP/s over 3.35 TB/s."""
    found = rates("h100-sxm")
    assert float(found.bf16_tflop_s / found.memory_tb_s) == pytest.approx(989.4 / 3.35, rel=1e-4)


@pytest.mark.parametrize("name", ["h100-sxm", "h100-pcie", "h200-sxm"])
def test_hopper_has_twice_the_rate_in_fp8(name):
    """Case 31: chips with the same die differ by their SMs and clocks alone."""
    found = rates(name)
    assert float(found.fp8_tflop_s) == pytest.approx(2.0 * float(found.bf16_tflop_s), rel=1e-12)


@pytest.mark.parametrize("name", ["tf32", "fp4", "fp64"])
def test_format_without_a_peak_is_refused_not_guessed(name):
    """Case 32."""
    with pytest.raises(UserError, match="unknown number format"):
        Precision(name, "bf16", "bf16", "bf16")


@pytest.mark.parametrize(
    ("name", "gb_s"), [("h100-sxm", 450.0), ("h200-sxm", 450.0), ("a100-sxm", 300.0), ("l4", 32.0)]
)
def test_links_are_per_direction(name, gb_s):
    """Case 47: half of what data sheets quote for both directions; PCIe 4.0 x16 is half of 5.0."""
    assert load_accelerator(name).design_values["network_gb_s"] == gb_s
