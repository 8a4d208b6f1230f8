"""Charts as inline SVG."""

import re

import numpy as np
import pytest

from raysl.report.charts import Bar, bar_chart
from raysl.report.marks import Chart
from raysl.report.scales import Scale, spelled
from tests.report.test_page import HOSTILE, Outline


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("is_log", [False, True])
def test_all_values_and_ticks_lie_between_the_ends_of_an_axis(seed: int, is_log: bool) -> None:
    values = 10 ** np.random.default_rng(seed).uniform(-6, 6, 8)
    scale = Scale.fit(values.tolist(), 40.0, 400.0, 5, is_log)
    pixels = [scale(value) for value, _ in scale.ticks]
    assert all(40 <= pixel <= 400 for pixel in [*pixels, *map(scale, values)])
    assert 2 <= len(pixels) <= 12
    assert pixels == sorted(pixels)


def test_equal_distances_on_a_logarithmic_axis_are_equal_factors() -> None:
    scale = Scale.fit([1.0, 1000.0], 0.0, 300.0, 5, is_log=True, padding=0)
    assert [scale(value) for value in (1.0, 10.0, 100.0, 1000.0)] == pytest.approx([0.0, 100.0, 200.0, 300.0])
    assert [text for _, text in scale.ticks] == ["1", "10", "100", "1,000"]


def test_one_value_alone_and_none_at_all_have_an_axis() -> None:
    for values in ([5.0], [0.0], [-3.0], []):
        scale = Scale.fit(values, 0.0, 100.0, 5)
        assert scale.low < scale.high
        assert all(0 < scale(value) < 100 for value in values)


def test_an_axis_of_values_that_are_not_positive_is_not_logarithmic() -> None:
    assert not Scale.fit([0.0, 100.0], 0.0, 100.0, 5, is_log=True).is_log


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (-0.5, "-0.5"), (12.3456, "12.35"), (123_456.0, "123,456"), (2e7, "2e7"), (float("nan"), "–")],
)
def test_numbers_at_axes_are_short(value: float, text: str) -> None:
    assert spelled(value) == text


def test_hostile_text_stays_text_in_a_drawing() -> None:
    chart = Chart(100, 100, HOSTILE)
    chart.frame([0, 1], [0, 1], HOSTILE, HOSTILE)
    chart.dot((0, 0), 3, HOSTILE, data_row=0, class_=HOSTILE)
    outline = Outline(chart.svg())
    assert "script" not in outline.tags
    assert not [name for name, _ in outline.attributes if name.startswith("on")]
    assert outline.text.count(HOSTILE) == 3, "both axes and what is pointed at"


def test_bars_end_at_their_values_and_begin_at_zero() -> None:
    drawn = bar_chart([("a", [Bar(50.0, "red"), None]), ("b", [Bar(-25.0, "blue")])], "points", "bars")
    spans = [
        (float(x), float(width)) for x, width in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', drawn)
    ]
    (first, wide), (second, narrow) = spans
    assert wide == pytest.approx(2 * narrow, rel=0.01)
    assert first == pytest.approx(second + narrow, abs=0.2)
