"""report.json."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raysl.report.contents import RunReport, Score
from raysl.report.report_json import PICTURES, parse_report_json, plain, report_json
from tests.report.run import example


def load_report(path: Path) -> RunReport:
    return parse_report_json(path.read_bytes(), str(path))


def test_a_report_comes_back_from_json_without_its_pictures(tmp_path: Path) -> None:
    report = example()
    (tmp_path / "report.json").write_text(report_json(report))
    assert load_report(tmp_path / "report.json") == replace(report, **dict.fromkeys(PICTURES))


def test_metrics_are_flat_and_hold_only_what_was_measured() -> None:
    assert json.loads(report_json(example()))["metrics"] == {
        "low_shot/5_shot": 90.1,
        "low_shot/5_shot/untrained": 70.4,
        "low_shot/5_shot/pixels": 77.5,
        "low_shot/5_shot/deviation": 0.8,
        "knn/k20/top1": 97.4,
        "knn/k20/top1/untrained": 93.0,
        "knn/k20/top1/pixels": 98.1,
        "linear/top1": 96.0,
    }


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    report = example(
        scores=[Score(benchmark="knn", metric="k20/top1", trained=math.nan)],
        history=[{"step": 1, "loss": math.inf}],
        times={"training": np.float64("nan")},
    )
    path = tmp_path / "report.json"
    path.write_text(report_json(report))
    content = json.loads(path.read_text())
    assert content["metrics"] == {"knn/k20/top1": None}
    assert content["history"] == [{"step": 1, "loss": None}]
    assert content["times"] == {"training": None}
    assert math.isnan(load_report(path).scores[0].trained)


def test_intervals_come_back_and_half_a_one_counts_for_nothing(tmp_path: Path) -> None:
    bounds = [(1.5, 2.5), (1.5, math.nan), None]
    scores = [Score(benchmark="knn", metric=str(row), trained=2.0, interval=own) for row, own in enumerate(bounds)]
    (tmp_path / "report.json").write_text(report_json(example(scores=scores)))
    found = load_report(tmp_path / "report.json").scores
    assert [score.interval for score in found] == [(1.5, 2.5), None, None]


def test_settings_of_any_type_become_json() -> None:
    class Epochs:
        def __str__(self) -> str:
            return "10ep"

    given = {"warmup": Epochs(), "mean": (0.5, np.float32(0.25)), 3: np.int64(4), "on": np.bool_(True), "none": None}
    assert plain(given) == {"warmup": "10ep", "mean": [0.5, 0.25], "3": 4, "on": True, "none": None}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format": 99}', r"report.json of format 1"),
        ("{}", r"report.json of format 1"),
        ("[]", r"report.json is damaged: it is \[\], not an object"),
    ],
)
def test_another_format_is_refused_by_name(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        load_report(path)


def test_a_report_of_almost_nothing_comes_back(tmp_path: Path) -> None:
    report = RunReport(name="a", method="b", backbone="c", dataset="d")
    (tmp_path / "report.json").write_text(report_json(report))
    assert load_report(tmp_path / "report.json") == report
