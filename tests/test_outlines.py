"""Outlines of dies: which are worth a branch, and what fits on their edges."""

import itertools

import numpy as np
import pytest

from litegpu_opt.catalog import technology
from litegpu_opt.machine.design import Design
from litegpu_opt.machine.silicon import edge_available_mm, field_area_mm2
from litegpu_opt.numerics import scalar
from litegpu_opt.optimizer.branches import undominated_aspects
from litegpu_opt.optimizer.lattice import fits_on_edges


RATIOS = (1.0, 1.27, 1.6, 2.0)
NO_LIMIT = 1e9


def design(**changes):
    values = dict(
        die_area_mm2=214.5,
        sm_count=30,
        clock_ghz=1.8,
        memory_stacks=2,
        memory_gb=72,
        network_gb_s=50,
        aspect_ratio=2.0,
    )
    return Design(**(values | changes))


def test_a_small_die_takes_the_longest_outline():
    # a quarter of the field fits in every outline, and the perimeter grows with the ratio
    assert undominated_aspects(RATIOS, technology(), 214.5) == [2.0]


def test_a_large_die_trades_perimeter_for_area():
    # the fields: 676, 857, 681 and 544 mm2; the square is smaller than 1.6 in both respects
    assert undominated_aspects(RATIOS, technology(), NO_LIMIT) == [1.27, 1.6, 2.0]


@pytest.mark.parametrize("largest", [100.0, 214.5, 560.0, 700.0, NO_LIMIT])
def test_every_design_of_a_dominated_outline_is_possible_in_one_that_is_kept(largest):
    tree = technology()
    kept = undominated_aspects(RATIOS, tree, largest)
    for ratio, area in itertools.product(RATIOS, (50.0, 200.0, 540.0, 670.0, 850.0)):
        if area > min(largest, float(field_area_mm2(scalar(ratio), tree))):
            continue
        here = design(die_area_mm2=area, aspect_ratio=ratio)
        assert any(
            area <= float(field_area_mm2(scalar(other), tree))
            and edge_available_mm(design(die_area_mm2=area, aspect_ratio=other), tree)
            >= edge_available_mm(here, tree)
            for other in kept
        )


def test_two_stacks_fit_on_a_quarter_die_and_four_do_not_leave_room():
    tree = technology()
    assert fits_on_edges(design(), tree)
    # a side of 14.6 mm has 12.9 mm to use: one stack of 11 mm each, and 5 mm are left over
    square = dict(aspect_ratio=1.0, memory_stacks=4)
    assert not fits_on_edges(design(**square), tree)
    assert fits_on_edges(design(**square | {"memory_stacks": 3}), tree)


def test_a_piece_cannot_be_split_between_sides():
    tree = technology()
    narrow = design(die_area_mm2=100.0, aspect_ratio=1.0, memory_stacks=1)
    # 4 sides of 8.8 mm are 35 mm in all, but none takes a stack of 11 mm
    assert float(edge_available_mm(narrow, tree)) > 30
    assert not fits_on_edges(narrow, tree)


def test_ports_take_edge():
    tree = technology()
    most = max(
        gb_s for gb_s in range(50, 5000, 50) if fits_on_edges(design(network_gb_s=gb_s), tree)
    )
    used_mm = np.ceil(most / 50) * 50 / 93.75 + 2 * 11 + 5
    assert used_mm <= float(edge_available_mm(design(), tree)) < used_mm + 4 * 50 / 93.75 + 1


def test_a_die_outside_the_field_fits_nowhere():
    # a square die ends at 26 x 26 mm
    assert fits_on_edges(design(die_area_mm2=670.0, aspect_ratio=1.0), technology())
    assert not fits_on_edges(design(die_area_mm2=690.0, aspect_ratio=1.0), technology())
