"""What is said of a number beside the untrained network and raw pixels."""

import json
import re
from dataclasses import replace

import pytest

from raysl.report.contents import Score
from raysl.report.report_json import parse_report_json, report_json
from raysl.report.run_page import page
from raysl.report.verdict import RULE, gain, remarks, verdicts
from tests.report.run import example
from tests.report.test_page import Outline

KNN = Score(
    benchmark="knn",
    metric="k20/top1",
    trained=87.6,
    untrained=75.3,
    pixels=88.0,
    interval=(86.0, 89.1),
    over_untrained=(10.1, 14.5),
    over_pixels=(-2.0, 1.2),
)


def verdict(score: Score) -> str:
    return next(iter(verdicts([score]).values()), "")


def test_a_verdict_says_by_how_much_and_beyond_which_interval() -> None:
    assert verdict(KNN) == (
        "knn/k20/top1: better than the untrained network by 12.30 (95 %: +10.10 to +14.50), but no better than raw "
        "pixels (−0.40, 95 %: −2.00 to +1.20)."
    )
    lost = replace(KNN, pixels=96.06, over_pixels=(-9.9, -7.0))
    assert verdict(lost).endswith(", but worse than raw pixels by 8.46 (95 %: −9.90 to −7.00).")
    both = replace(KNN, pixels=50.0, over_pixels=(35.0, 40.0))
    assert " and better than raw pixels by 37.60" in verdict(both)
    assert verdict(replace(KNN, untrained=None, pixels=None)) == ""


def test_a_smaller_number_may_be_the_better_one() -> None:
    time = Score(
        benchmark="mine", metric="search", unit="s", trained=0.03, pixels=0.05, over_pixels=(-0.03, -0.01),
        is_lower_better=True,
    )  # fmt: skip
    assert verdict(time) == "mine/search: better than raw pixels by 0.02 s (95 %: −0.03 to −0.01)."


@pytest.mark.parametrize(
    ("changes", "tone"),
    [
        ({"over_pixels": (0.1, 2.0), "pixels": 87.0}, "better"),
        ({"over_pixels": (-0.1, 2.0)}, "level"),
        ({"over_pixels": (-2.0, -0.1), "pixels": 89.0}, "worse"),
        ({"over_pixels": None, "interval": None}, "level"),
        ({"over_pixels": None, "interval": None, "deviation": 4.8, "pixels": 87.2}, "level"),
        ({"over_pixels": None, "interval": None, "deviation": 0.1, "pixels": 87.2}, "better"),
        ({"over_pixels": None, "interval": (87.0, 88.0), "pixels": 86.9}, "level"),
        ({"over_pixels": None, "interval": (87.0, 88.0), "pixels": 86.5}, "better"),
    ],
)
def test_a_difference_has_a_colour_only_beyond_its_interval(changes: dict[str, object], tone: str) -> None:
    score = replace(KNN, **changes)  # type: ignore[arg-type]
    found = gain(score, "pixels")
    assert found is not None
    assert found.tone == tone
    assert f'<div class="gain pixels {tone}">' in page(example(scores=[score], embeddings=None))


@pytest.mark.thorough
def test_each_benchmark_has_one_sentence_on_the_page_in_the_json_and_in_the_terminal() -> None:
    scores = [
        replace(KNN, metric="top5", is_headline=False),
        KNN,
        replace(KNN, benchmark="knn@1f3a2c", is_headline=False, note="k=[5]"),
        Score(benchmark="geometry", metric="rankme", unit="", trained=30.0, untrained=20.0, is_headline=False),
    ]
    told = verdicts(scores)
    assert list(told) == ["knn", "knn@1f3a2c"]
    assert told["knn"].startswith("knn/k20/top1: ")
    report = example(scores=scores)
    text = report_json(report)
    assert json.loads(text)["verdicts"] == told
    assert parse_report_json(text, "report.json").scores == scores
    shown = Outline(page(report)).text
    assert all(shown.count(sentence) == 1 for sentence in told.values())
    assert RULE in shown
    assert remarks(scores) == [
        *(f"verdict     {sentence}" for sentence in told.values()),
        "note        knn@1f3a2c: k=[5]",
    ]


@pytest.mark.thorough
def test_a_note_of_a_number_stands_with_the_verdict_in_the_table_of_all_and_in_the_terminal() -> None:
    score = replace(KNN, note="12 of 360 test images are of a class <x> without a training image")
    full = page(example(scores=[score]))
    assert Outline(full).text.count(score.note) == 2
    assert re.search(r'<ul class="verdicts"><li>.*?12 of 360 .*?</li></ul>', full)
    assert json.loads(report_json(example(scores=[score])))["scores"][0]["note"] == score.note
    assert remarks([score])[-1] == f"note        knn: {score.note}"
    further = replace(score, metric="top5", note=f"{score.note}; another one")
    assert remarks([score, further])[-1] == f"note        knn: {score.note}; another one"


def test_an_older_report_without_intervals_of_differences_is_read() -> None:
    content = json.loads(report_json(example(scores=[KNN])))
    for name in ("over_untrained", "over_pixels"):
        del content["scores"][0][name]
    (old,) = parse_report_json(json.dumps(content), "report.json").scores
    assert (old.over_untrained, old.over_pixels, old.interval) == (None, None, (86.0, 89.1))
