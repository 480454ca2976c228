"""Figures of trade-offs: readable with 100,000 points, and with the data beside them."""

import csv
import re

import numpy as np
import pytest

from litegpu_opt.report import figures
from litegpu_opt.report.figures import MOST_CLOUD_POINTS, MOST_LABELS, TradeOff, draw


COUNT = 100_000


def cloud():
    random = np.random.default_rng(5)
    x = 10 ** random.uniform(0, 3, COUNT)
    y = 10 ** random.uniform(0, 2, COUNT) + 100 / x
    return x, y, random.uniform(size=COUNT) < 0.3


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    limits = np.geomspace(1, 1000, 40)
    front = [(x, 1 + 100 / x, f"design {n}") for n, x in enumerate(limits)]
    figure = TradeOff("a <title> & more", "tbt, ms", "USD", front, limit=50.0, cloud=cloud())
    return draw(figure, tmp_path_factory.mktemp("figures"), "front"), front


def rows(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def test_png_svg_and_csv_are_written(drawn):
    (png, svg, table), _ = drawn
    assert png.read_bytes().startswith(b"\x89PNG") and svg.read_text().startswith("<?xml")
    assert {row["kind"] for row in rows(table)} == {"front", "feasible", "infeasible"}
    assert list(rows(table)[0]) == ["kind", "tbt, ms", "USD", "label"]


def test_the_picture_has_the_size_of_a_screen(drawn):
    png = drawn[0][0].read_bytes()
    assert [int.from_bytes(png[at : at + 4], "big") for at in (16, 20)] == [1000, 700]


def test_the_cloud_is_thinned_and_the_front_is_whole(drawn):
    (_, _, table), front = drawn
    kinds = [row["kind"] for row in rows(table)]
    assert kinds.count("front") == len(front)
    assert 0.9 * MOST_CLOUD_POINTS < len(kinds) - len(front) < 1.1 * MOST_CLOUD_POINTS
    # both kinds in proportion: nothing is hidden by which points are kept
    share = kinds.count("feasible") / (len(kinds) - len(front))
    assert share == pytest.approx(0.3, abs=0.05)


def test_labels_are_few_and_the_ends_have_one():
    for count in (1, 2, 9, 10, 11, 500):
        chosen = figures._labelled([str(row) for row in range(count)])
        assert len(chosen) <= MOST_LABELS and {0, count - 1} <= set(chosen)
    assert figures._labelled(["a", "a", "b", "b", "c"]) == [0, 2, 4]


def test_infeasible_points_are_grey_and_below_and_the_limit_is_drawn(drawn):
    svg = drawn[0][1].read_text().lower()
    assert figures.LIMIT.lower() in svg and figures.FRONT.lower() in svg
    # the legend has both kinds of points, infeasible ones first
    assert svg.index(figures.INFEASIBLE.lower()) < svg.index(figures.FEASIBLE.lower())


def test_what_cannot_be_drawn_is_left_out(tmp_path):
    x = np.array([1.0, np.nan, np.inf, -1.0, 2.0])
    y = np.array([1.0, 1.0, 1.0, 1.0, 0.0])
    figure = TradeOff("t", "x", "y", [(1.0, 2.0, "a")], cloud=(x, y, np.ones(5, bool)))
    table = draw(figure, tmp_path, "odd")[2]
    assert [row["kind"] for row in rows(table)] == ["front", "feasible"]


def test_the_same_figure_is_the_same_file(tmp_path):
    figure = TradeOff("t", "x", "y", [(1.0, 2.0, "a"), (2.0, 1.0, "b")])
    first = [path.read_bytes() for path in draw(figure, tmp_path, "one")]
    again = [path.read_bytes() for path in draw(figure, tmp_path, "one")]
    assert first[0] == again[0] and first[2] == again[2]
    # identifiers inside an SVG are random
    strip = lambda text: re.sub(rb'(id="|url\(#|href="#)[^")]*', b"", text)  # noqa: E731
    assert strip(first[1]) == strip(again[1])


def test_a_name_in_a_title_is_text(drawn):
    svg = drawn[0][1].read_text()
    assert "<title> & more" not in svg
