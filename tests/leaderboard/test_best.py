"""Raw pixels and untrained networks on a leaderboard."""

import re
from dataclasses import replace

import pytest

from raysl.leaderboard.best import gains, references, verdict
from raysl.leaderboard.entry import Objective
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.leaderboard.page.leaderboard_page import page
from tests.leaderboard.boards import board, entry
from tests.report.test_page import Outline

TOP1 = Objective("knn/k20/top1")


def digits(*values: float, metric: str = "knn/k20/top1", **changes: object) -> Leaderboard:
    """Runs by kNN beside raw pixels, which have 96.06, and untrained networks of another seed each."""
    runs = []
    for place, value in enumerate(values):
        metrics = {
            metric: value,
            "knn/k20/top1": value,
            "knn/k20/top1/pixels": 96.06,
            "knn/k20/top1/untrained": 75.0 + place,
        }
        runs.append(
            entry(
                place, value, metrics=metrics, units={"knn/k20/top1": "%"},
                intervals={"knn/k20/top1": (value - 1, value + 1)},
                course={metric: [(1.0, value - 5), (2.0, value)]},
            )
        )  # fmt: skip
    return board([replace(run, **changes) for run in runs], Objective(metric))  # type: ignore[arg-type]


def foot(text: str) -> list[list[str]]:
    """Cells of the last lines of the table that are not empty."""
    lines = re.findall(r'<tr class="rival">(.*?)</tr>', text[text.index("<tfoot>") : text.index("</tfoot>")])
    return [[cell for cell in re.findall(r"<td[^>]*>(.*?)</td>", line) if cell] for line in lines]


def test_raw_pixels_and_untrained_networks_have_a_line_in_the_table_and_in_the_charts() -> None:
    text = page(digits(87.6, 85.0))
    assert foot(text) == [["raw pixels", "96.06"], ["untrained", "75.00 to 76.00"]]
    curves = text[text.index('<section id="curves"') :]
    assert re.findall(
        r'class="halo rival"[^>]*>([^<]*)<', curves[: curves.index("</svg>", curves.index("halo rival"))]
    ) == [
        "raw pixels 96.06",
        "untrained 75.5",
    ]
    assert "<tfoot>" not in page(board([entry(0, 80.0)]))


def test_the_best_that_raw_pixels_beat_is_told_so() -> None:
    found = digits(87.6, 85.0)
    assert verdict(found) == (
        "The best by knn/k20/top1 is better than the untrained network by 12.60 (95 %: +11.19 to +14.01), but worse "
        "than raw pixels by 8.46 (95 %: −9.87 to −7.05)."
    )
    text = page(found)
    assert verdict(found) in Outline(text).text
    assert '<div class="gain pixels worse">−8.5 vs raw pixels</div>' in text
    assert "no better than raw pixels (−1.06" in verdict(digits(95.0))


def test_the_online_knn_is_held_against_the_benchmark() -> None:
    found = digits(87.6, metric="knn_k20_top1", intervals={})
    assert [(own.rival, own.metric, own.mean) for own in references(found.choices, "knn_k20_top1")] == [
        ("pixels", "knn/k20/top1", 96.06),
        ("untrained", "knn/k20/top1", 75.0),
    ]
    assert verdict(found) == (
        "The best by knn_k20_top1 is 12.60 above the untrained network (no interval) and 8.46 below raw pixels "
        "(no interval), by knn/k20/top1."
    )
    measured = digits(87.6, metric="knn_k20_top1")
    assert "worse than raw pixels by 8.46 (95 %: −9.87 to −7.05), by knn/k20/top1." in verdict(measured)
    assert foot(page(found))[0] == ["raw pixels", "96.06", "96.06"]


def test_several_seeds_are_held_by_the_interval_of_their_mean() -> None:
    runs = [
        entry(place, settings={"a": 1}, seed=place, status="finished", epoch=4.0,
              metrics={"knn/k20/top1": value, "knn/k20/top1/pixels": 90.0})
        for place, value in enumerate((92.0, 93.0, 94.0))
    ]  # fmt: skip
    (row,) = board(runs, TOP1).choices
    found = gains(row, "knn/k20/top1", "%")["pixels"]
    assert found.interval == pytest.approx((3 - 2.484, 3 + 2.484), abs=0.001), "Student's t of two degrees of freedom"
    assert found.tone == "better"


def test_rows_have_what_raw_pixels_reach() -> None:
    found = digits(87.6)
    assert found.rows[0]["knn/k20/top1/pixels"] == 96.06
    assert "96.06" in found.table()


def test_nothing_is_said_where_no_rival_was_measured() -> None:
    assert verdict(board([entry(0, 80.0)])) == ""
    assert verdict(board([])) == ""
    assert references(board([entry(0, 80.0)]).choices, "loss") == []
