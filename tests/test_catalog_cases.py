"""Peaks and links of shipped chips: dense, per format, per direction."""

import pytest

from litegpu_opt.catalog import FORMATS, accelerator_names, load_accelerator
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
    """Not the figure with 2:4 sparsity, which is twice as large."""
    assert float(rates(name).bf16_tflop_s) == pytest.approx(tflop_s, rel=1e-3)


def test_ridge_of_the_h100():
    """989.4 TFLOP/s over 3.35 TB/s."""
    found = rates("h100-sxm")
    assert float(found.bf16_tflop_s / found.memory_tb_s) == pytest.approx(989.4 / 3.35, rel=1e-4)


@pytest.mark.parametrize("name", ["gh200", "gh200-144gb"])
def test_gh200_computes_as_h100(name):
    """The same die at the same clock, 989.4 TFLOP/s and not 1,979."""
    there, h100 = rates(name), rates("h100-sxm")
    assert float(there.bf16_tflop_s) == float(h100.bf16_tflop_s) == pytest.approx(989.4, rel=1e-3)
    assert float(there.fp8_tflop_s) == float(h100.fp8_tflop_s)
    memory = {"gh200": (96, 4.0), "gh200-144gb": (144, 4.9)}[name]
    assert load_accelerator(name).design_values["memory_gb"] == memory[0]
    assert float(there.memory_tb_s) == pytest.approx(memory[1], rel=0.01)


@pytest.mark.parametrize("name", ["h100-sxm", "h100-pcie", "h200-sxm", "gh200"])
def test_hopper_has_twice_the_rate_in_fp8(name):
    """Chips with the same die differ by their SMs and clocks alone."""
    found = rates(name)
    assert float(found.fp8_tflop_s) == pytest.approx(2.0 * float(found.bf16_tflop_s), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "number_format", "tflop_s"),
    [
        ("h100-sxm", "tf32", 494.7),
        ("h100-sxm", "bf16", 989.4),
        ("h100-sxm", "int8", 1979),
        ("b300-sxm", "bf16", 2250),
        ("b300-sxm", "fp4", 14_000),
        ("b300-sxm", "int8", 153.5),
        ("b200-sxm", "fp4", 9_000),
        ("a100-sxm", "tf32", 156),
        ("a100-sxm", "int8", 624),
        ("mi300x", "tf32", 653.7),
        ("mi300x", "fp8", 2614.9),
        ("tpu-v5e", "int8", 393),
        ("tpu-v5p", "int8", 918),
    ],
)
def test_every_format_has_a_peak_of_its_own(name, number_format, tflop_s):
    """Of a data sheet, dense; no fixed ratio between formats."""
    chip = load_accelerator(name)
    assert chip.peak_tflop_s(number_format) == pytest.approx(tflop_s, rel=2e-3)
    assert chip.flop_per_clock(number_format).unit == "FLOP"


@pytest.mark.parametrize(
    ("name", "number_format", "has"),
    [
        ("h100-sxm", "fp4", "tf32, bf16, fp8, int8"),
        ("a100-sxm", "fp8", "tf32, bf16, int8"),
        ("tpu-v5e", "fp8", "bf16, int8"),
        ("gaudi-3", "int8", "bf16, fp8"),
    ],
)
def test_format_that_a_chip_lacks_is_an_error(name, number_format, has):
    """Not a guess from another format."""
    with pytest.raises(UserError) as caught:
        load_accelerator(name).peak_tflop_s(number_format)
    assert str(caught.value) == f"no {number_format} rate of {name} is known; allowed: {has}"


def test_unknown_format():
    with pytest.raises(UserError, match="unknown number format 'fp16', did you mean"):
        load_accelerator("h100-sxm").peak_tflop_s("fp16")


@pytest.mark.parametrize("name", accelerator_names())
def test_rates_are_those_that_the_model_computes_with(name):
    chip, found = load_accelerator(name), rates(name)
    assert chip.peak_tflop_s("bf16") == pytest.approx(float(found.bf16_tflop_s), rel=1e-12)
    if "fp8" in chip.rates:
        assert chip.peak_tflop_s("fp8") == pytest.approx(float(found.fp8_tflop_s), rel=1e-12)
    assert set(chip.rates) <= set(FORMATS)


def test_rates_of_a_user_file(tmp_path):
    def load(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return load_accelerator(path)

    mine = load('extends = "h100-sxm"\nflop_per_clock.fp8 = "4096 FLOP"\n')
    assert mine.peak_tflop_s("fp8") == pytest.approx(989.4, rel=1e-3)
    assert float(mine.technology().process.flop_per_clock_fp8) == 4096
    assert mine.peak_tflop_s("tf32") == pytest.approx(494.7, rel=1e-3)
    # an override of what the model computes with is what counts
    mine = load(
        'extends = "h100-sxm"\ntechnology.overrides.process.flop_per_clock_bf16 = "8 kFLOP"\n'
    )
    assert mine.flop_per_clock("bf16").value == 8000
    with pytest.raises(
        UserError, match="mine.toml:flop_per_clock.bf16: the bf16 rate is stated twice"
    ):
        load(
            'extends = "h100-sxm"\nflop_per_clock.bf16 = "4096 FLOP"\n'
            "technology.overrides.process.flop_per_clock_bf16 = 4096\n"
        )
    with pytest.raises(UserError, match="did you mean fp8"):
        load('extends = "h100-sxm"\nflop_per_clock.fp9 = "1 FLOP"\n')


@pytest.mark.parametrize("name", ["tf32", "fp4", "fp64"])
def test_format_that_weights_cannot_have_is_refused(name):
    with pytest.raises(UserError, match="unknown number format"):
        Precision(name, "bf16", "bf16", "bf16")


@pytest.mark.parametrize(
    ("name", "gb_s"), [("h100-sxm", 450.0), ("h200-sxm", 450.0), ("a100-sxm", 300.0), ("l4", 32.0)]
)
def test_links_are_per_direction(name, gb_s):
    """Half of what data sheets quote for both directions; PCIe 4.0 x16 is half of 5.0."""
    assert load_accelerator(name).design_values["network_gb_s"] == gb_s


def test_a_link_says_that_it_is_per_direction(tmp_path):
    """An H800 is an H100 with 400 GB/s of both directions: 200 GB/s each."""
    path = tmp_path / "h800.toml"
    path.write_text('extends = "h100-sxm"\ndesign.network_per_direction = "200 GB/s"\n')
    assert load_accelerator(path).design_values["network_gb_s"] == 200.0
    path.write_text('extends = "h100-sxm"\ndesign.network = "400 GB/s"\n')
    with pytest.raises(UserError, match="did you mean network_per_direction"):
        load_accelerator(path)
