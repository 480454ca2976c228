"""Junction temperature: the cooler's resistance, the die's, and what ships."""

import json

import equinox as eqx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from litegpu_opt.catalog import accelerator_names, load_accelerator, provenance, technology
from litegpu_opt.cli import main
from litegpu_opt.errors import UserError
from litegpu_opt.machine.design import Design
from litegpu_opt.machine.power import junction_k_per_w
from litegpu_opt.numerics import scalar


TREES = {name: technology(cooling=name) for name in ("liquid", "air")}


def die(area_mm2, dies=1):
    return Design(area_mm2, 100, 1.5, 4, 100, 50, dies_per_package=dies)


def allowed_w(design, tree):
    return float(tree.cooling.max_junction_rise_k / junction_k_per_w(design, tree))


@pytest.mark.parametrize(
    ("cooling", "area", "dies", "k_per_w"),
    [
        ("liquid", 814, 1, 0.02 + 0.0147420147420),
        ("liquid", 203.5, 1, 0.02 + 0.0589680589681),
        # two dies of 800 mm2 under one plate: each has half the watts through half the area
        ("liquid", 800, 2, 0.0275),
        ("air", 814, 1, 0.035 + 0.0307125307125),
        ("air", 400, 4, 0.035 + 0.015625),
    ],
)
def test_resistance_by_hand(cooling, area, dies, k_per_w):
    """R + r/(k A) with 0.02 and 12 for a cold plate, 0.035 and 25 for a heat sink."""
    assert float(junction_k_per_w(die(area, dies), TREES[cooling])) == pytest.approx(
        k_per_w, rel=1e-10
    )


def test_the_die_size_effect():
    """At 1 W/mm2 a quarter of a die has the same rise to the base and a quarter through the cooler;
    it has more resistance per watt.
    """
    tree = TREES["liquid"]
    whole, quarter = (float(junction_k_per_w(die(area), tree)) for area in (814.0, 203.5))
    assert quarter > whole
    assert 814 * whole == pytest.approx(814 * 0.02 + 12)  # 28.28 K
    assert 203.5 * quarter == pytest.approx(203.5 * 0.02 + 12)  # 16.07 K


@given(
    st.sampled_from(sorted(TREES)), st.floats(10.0, 858.0), st.floats(1.01, 10.0), st.integers(1, 4)
)
def test_a_larger_die_carries_more_watts_and_fewer_per_area(cooling, area, factor, dies):
    tree = TREES[cooling]
    small, large = (allowed_w(die(a, dies), tree) for a in (area, factor * area))
    assert small < large < factor * small
    # never more than the cooler or the way to it allows alone
    rise = float(tree.cooling.max_junction_rise_k)
    assert large < rise / float(tree.cooling.sink_k_per_w)
    assert large < rise / float(tree.cooling.spreading_k_mm2_per_w) * factor * area * dies


@pytest.mark.parametrize(
    ("cooling", "low", "high"),
    [
        # Chiplet Cloud allows 1.1 W/mm2 of die, GB200 has 1.5 on its hot spots (kenfatech.com)
        ("liquid", 1.0, 1.5),
        # 0.86 ships in air (H100 SXM), about 1 is the ceiling (Tom's Hardware 2024)
        ("air", 0.86, 1.0),
    ],
)
def test_on_a_reticle_die_the_ceilings_in_print_come_out(cooling, low, high):
    assert low <= allowed_w(die(814.0), TREES[cooling]) / 814 <= high


@pytest.mark.parametrize(
    ("cooling", "design", "watts", "low_k", "high_k"),
    [
        # simulated at 20 L/min over a front of pressure drops: toaiz.ai/cfd/gb300-cold-plate
        ("liquid", die(800, 2), 1400, 35, 49.3),
        # arXiv 2507.16781: 41 to 50 C and 54 to 72 C under load; 25 C coming in is assumed
        ("liquid", die(814), 700, 41 - 25, 50 - 25),
        ("air", die(814), 700, 54 - 25, 72 - 25),
    ],
)
def test_rise_of_what_was_simulated_or_measured(cooling, design, watts, low_k, high_k):
    assert low_k <= watts * float(junction_k_per_w(design, TREES[cooling])) <= high_k


WITHOUT_TDP = {
    name for name in accelerator_names() if "tdp_w" not in load_accelerator(name).datasheet
}
SHIPPED = sorted(set(accelerator_names()) - WITHOUT_TDP)
BEYOND_TYPICAL = {"gaudi-3"}
"""900 W in air on a die area that is assumed, and so within the range only."""


@pytest.mark.parametrize("name", SHIPPED)
def test_a_chip_that_ships_is_allowed_at_its_published_tdp(name):
    chip = load_accelerator(name)
    tree = chip.technology()
    rise = chip.datasheet["tdp_w"].value * float(junction_k_per_w(chip.design(), tree))
    limit = chip.provenance()["cooling.max_junction_rise_k"]
    assert rise <= limit.high
    assert (rise > limit.value) == (name in BEYOND_TYPICAL)


def test_the_chips_that_ship_are_compared():
    assert {"h100-sxm", "h200-sxm", "b200-sxm", "gb200", "mi300x", "l4"} <= set(SHIPPED)


def test_recalled_resistances_of_air_would_forbid_an_h100():
    """0.08 K/W, the high end, is more than an H100 at 700 W can have: 78 K."""
    sink = provenance(cooling="air")["cooling.sink_k_per_w"].high
    tree = eqx.tree_at(lambda t: t.cooling.sink_k_per_w, TREES["air"], scalar(sink))
    assert 700 * float(junction_k_per_w(die(814.0), tree)) == pytest.approx(77.5, abs=0.05)


def test_without_a_sink_it_is_a_limit_on_watts_per_area():
    tree = technology({"cooling.sink_k_per_w": 0, "cooling.spreading_k_mm2_per_w": 35})
    areas = np.array([50.0, 203.5, 814.0])
    watts = [allowed_w(die(area), tree) for area in areas]
    np.testing.assert_allclose(watts / areas, 42 / 35, rtol=1e-12)


@pytest.mark.parametrize("name", ["spreading_k_mm2_per_w", "max_junction_rise_k"])
def test_no_resistance_and_no_rise_are_refused(name):
    with pytest.raises(UserError, match="allowed: above 0"):
        technology({f"cooling.{name}": 0})


def test_a_design_too_hot_is_said_to_be(tmp_path, capsys, monkeypatch):
    """An H100 under a heat sink of 0.08 K/W."""
    monkeypatch.setenv("LITEGPU_CACHE", "off")
    path = tmp_path / "hot.toml"
    path.write_text('extends = "h100-sxm"\ntechnology.overrides.cooling.sink_k_per_w = "80 K/kW"\n')
    words = f"evaluate --accelerator {path} --model llama-3.1-8b --tp 1 --batch 8"
    with pytest.raises(SystemExit):
        main([*words.split(), "--prompt", "1500", "--output", "500", "--json"])
    content = json.loads(capsys.readouterr().out)
    [hot] = [row for row in content["violations"] if row["name"] == "junction_rise"]
    assert hot["unit"] == "K" and hot["limit"] == 52
    assert hot["use"] == pytest.approx(content["tdp_w"] * (0.08 + 25 / 814))
