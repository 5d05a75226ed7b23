"""Pictures from the lab: drawn the same each time, and what they show."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from docs.generate.pictures import EXPERIMENTS, FOLDER
from docs.generate.pictures.axis import linear, logarithmic
from docs.generate.pictures.draw import svg
from docs.generate.pictures.placement import across_changes

from heatsink.lab.report import Chart, Series

SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_is_what_the_code_draws_today() -> None:
    """The quickest of them; `./dev docs --pictures` draws all anew."""
    assert svg(across_changes()) == (FOLDER / "closed-time.svg").read_text()


def test_all_pictures_are_there() -> None:
    names = {name for wanted in EXPERIMENTS.values() for name in wanted}
    assert {picture.stem for picture in FOLDER.glob("*.svg")} == names | {"closed-time"}


def test_a_row_is_in_a_bucket_of_its_own_epoch() -> None:
    one, four, two = across_changes().series
    assert set(one.y) == {0.0}
    assert set(four.y) == {1.0, 2.0, 3.0, 4.0}
    assert set(two.y) == {1.0, 2.0}
    assert sum(len(series.x) for series in (one, four, two)) == 13 * 60


def test_bars_are_as_high_as_their_values() -> None:
    series = [Series("a", ["1", "2"], [10.0, 100.0]), Series("b", ["1", "2"], [50.0, 50.0])]
    drawn = ET.fromstring(svg(Chart("t", "y", series, kind="bars")))  # noqa: S314
    heights = [float(bar.attrib["height"]) for bar in drawn.iter(f"{SVG}rect")]
    assert heights[2] > heights[1] == heights[3] > heights[0]


def test_ticks_are_round_and_inside() -> None:
    axis = linear(0.0, 19_036.0, (300.0, 40.0))
    assert axis.ticks == [0.0, 5_000.0, 10_000.0, 15_000.0, 20_000.0]
    assert (axis.place(0.0), axis.place(20_000.0)) == (300.0, 40.0)
    assert logarithmic(10, 1_000, (0.0, 2.0)).place(100) == 1.0
