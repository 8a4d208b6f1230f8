"""The table of scores: for the terminal, and for a notebook."""

import math
from dataclasses import replace

from raysl.benchmarks.suite.scores import Report
from raysl.report.contents import Score
from raysl.report.summary import score_html, score_table
from raysl.report.verdict import remarks
from tests.report.run import SCORES


def test_columns_are_aligned_and_gaps_stay_empty() -> None:
    assert score_table(SCORES) == "\n".join(
        [
            "benchmark  metric    trained     ±  untrained  pixels",
            "---------  --------  -------  ----  ---------  ------",
            "low_shot   5_shot      90.10  0.80      70.40   77.50",
            "knn        k20/top1    97.40            93.00   98.10",
            "linear     top1        96.00",
        ]
    )


def test_columns_that_no_score_fills_are_left_out() -> None:
    assert score_table([Score(benchmark="svm", metric="map", trained=math.nan)]) == "\n".join(
        ["benchmark  metric  trained", "---------  ------  -------", "svm        map         nan"]
    )


def test_units_have_a_column_where_one_is_not_percent() -> None:
    score = Score(benchmark="mine", metric="search", trained=0.03125, deviation=12.0, unit="s")
    assert score_table([SCORES[0], score]) == "\n".join(
        [
            "benchmark  metric  unit  trained     ±  untrained  pixels",
            "---------  ------  ----  -------  ----  ---------  ------",
            "low_shot   5_shot  %       90.10  0.80      70.40   77.50",
            "mine       search  s      0.0312    12",
        ]
    )


def test_intervals_have_a_column_and_give_way_to_deviations() -> None:
    sure = replace(SCORES[1], interval=(96.125, 98.375))
    assert score_table([replace(SCORES[0], interval=(89.0, 91.0)), sure]) == "\n".join(
        [
            "benchmark  metric    trained     ±            95 %  untrained  pixels",
            "---------  --------  -------  ----  --------------  ---------  ------",
            "low_shot   5_shot      90.10  0.80                      70.40   77.50",
            "knn        k20/top1    97.40        96.12 to 98.38      93.00   98.10",
        ]
    )


def test_no_scores_make_no_table() -> None:
    assert score_table([]) == ""
    assert score_html([]) == ""


def test_a_notebook_has_the_cells_of_the_terminal() -> None:
    score = Score(benchmark="a<b", metric="map", trained=12.5)
    assert score_html([score]) == (
        "<table><thead><tr><th>benchmark</th><th>metric</th><th>trained</th></tr></thead>"
        "<tbody><tr><td>a&lt;b</td><td>map</td><td>12.50</td></tr></tbody></table>"
    )


def test_a_report_is_a_table_in_a_notebook_in_pandas_and_as_text() -> None:
    report = Report({}, "report.html", SCORES, {"linear": "no <labels>"})
    told = "".join(f"<p>{line}</p>" for line in remarks(SCORES))
    assert report._repr_html_() == score_html(SCORES) + told + "<p>linear failed: no &lt;labels&gt;</p>"
    assert report.table() == score_table(SCORES)
    assert repr(report) == "\n".join(
        [score_table(SCORES), *remarks(SCORES), "linear failed: no <labels>", "report.html"]
    )
    assert report.frame["trained"].tolist() == [score.trained for score in SCORES]
    assert report.frame["benchmark"].tolist() == [score.benchmark for score in SCORES]


def test_a_report_of_nothing_says_so() -> None:
    report = Report({}, "report.html")
    assert report._repr_html_() == "<p>nothing was measured</p>"
    assert len(report.frame) == 0
    assert "trained" in report.frame
