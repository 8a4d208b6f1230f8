"""What the page draws of each benchmark."""

import json
import logging
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from raysl.benchmarks.suite.measured import confusion, reliability
from raysl.report.benchmark_figures import (
    confusion_figure,
    curves_figures,
    per_class_figure,
    reliability_figure,
    stages_figure,
)
from raysl.report.charts import line_chart, lines_of
from raysl.report.contents import Retrieved, Score
from raysl.report.families import families, stages_of
from raysl.report.figure_sections import figures_of
from raysl.report.images import CELL, FRAME, GAP, OTHER, SAME, WIDE_GAP, retrieved_sheet
from raysl.report.run_page import page
from tests.report.run import example
from tests.report.test_page import HOSTILE, Outline


def score(metric: str, trained: float = 50.0, title: str = "", **changes: Any) -> Score:
    return Score(benchmark="probe", metric=metric, trained=trained, title=title, **changes)


def as_json(found: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from report.json."""
    return dict(json.loads(json.dumps(found)))


CONFUSED = as_json(confusion(torch.tensor([0, 0, 0, 1, 2, 2]), torch.tensor([0, 1, 1, 1, 0, 2]), ["cat", "dog", "<b>"]))


def test_each_cell_of_the_confusion_tells_its_count_and_its_row() -> None:
    drawn = confusion_figure(CONFUSED)
    assert re.findall(r"<title>(.*?)</title>", drawn) == [
        "cat taken for cat: 1 of 3",
        "cat taken for dog: 2 of 3",
        "dog taken for dog: 1 of 1",
        "&lt;b&gt; taken for cat: 1 of 2",
        "&lt;b&gt; taken for &lt;b&gt;: 1 of 2",
    ]
    strengths = re.findall(r'fill="var\(--(\w+)\)" fill-opacity="([\d.]+)"', drawn)
    assert strengths == [
        ("trained", "0.33"),
        ("bad", f"{(2 / 3) ** 0.5:.2f}"),
        ("trained", "1.00"),
        ("bad", f"{0.5**0.5:.2f}"),
        ("trained", "0.50"),
    ]
    assert Outline(drawn).text.index("catdog2") < Outline(drawn).text.index("<b>cat1"), (
        "the most frequent mistake first"
    )


def test_of_many_classes_only_the_mistakes_are_told() -> None:
    names = [f"c{label}" for label in range(51)]
    drawn = confusion_figure(as_json(confusion(torch.tensor([7, 7]), torch.tensor([7, 50]), names)))
    assert "<svg" not in drawn
    assert "c7c501" in Outline(drawn).text


@pytest.mark.parametrize("num", [1, 2, 15, 50])
def test_the_cells_of_any_number_of_classes_lie_inside_the_drawing(num: int) -> None:
    labels = torch.arange(num)
    drawn = confusion_figure(as_json(confusion(labels, labels, [f"a class of length {label}" for label in range(num)])))
    width, height = map(int, re.findall(r'viewBox="0 0 (\d+) (\d+)"', drawn)[0])
    cells = re.findall(r'<rect x="(\d+)" y="(\d+)" width="(\d+)"', drawn)
    assert len(cells) == num
    assert max(int(left) + int(side) for left, _, side in cells) <= width
    assert max(int(top) + int(side) for _, top, side in cells) <= height


def test_reliability_tells_the_error_and_whether_it_is_sure_of_too_much() -> None:
    shares = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.3, 0.7], [0.3, 0.7]], dtype=torch.float64)
    drawn = reliability_figure(as_json(reliability(torch.tensor([0, 1, 1, 1]), shares)))
    text = Outline(drawn).text
    assert "Expected calibration error 35.0 %" in text, "|0.9 - 0.5| / 2 + |0.7 - 1| / 2"
    assert "Mean confidence 80.0 %, right 75.0 %" in text


def test_classes_stand_from_the_lowest_by_their_names() -> None:
    values = {"Accuracy (%)": {"0": 80.0, "1": 12.5, "2": None}}
    drawn = per_class_figure(values, ["cat", "dog", "bird"])
    assert "dog12.5cat80.0" in Outline(drawn).text
    assert re.findall(r"width:([\d.]+)%", drawn) == ["12.5", "80.0"]
    assert "112.5080.0" in Outline(per_class_figure(values, [])).text, "by number where names are not known"
    other = {"Seconds": {"0": 4.0, "cat": 2.0}}
    assert re.findall(r"width:([\d.]+)%", per_class_figure(other, ["a", "b"])) == ["50.0", "100.0"]
    assert "cat2" in Outline(per_class_figure(other, ["a", "b"])).text


def test_of_many_classes_the_lowest_and_the_highest_are_drawn() -> None:
    text = Outline(per_class_figure({"IoU, %": {f"c{value}.": float(value) for value in range(90)}}, [])).text
    assert "The 15 lowest and the 15 highest of 90 classes." in text
    assert [name in text for name in ("c14.", "c15.", "c74.", "c75.")] == [True, False, False, True]


def test_a_curve_leaves_out_what_is_no_number() -> None:
    lines = {"a": [[2, 5.0], [1, None], [None, 3.0], [0, 4.0]], "b": [], "c": [[1, float("nan")]]}
    drawn = curves_figures({"Some title": {"x": "place", "y": "value", "lines": lines}})
    assert "Some title" in Outline(drawn).text
    assert len(drawn_paths(drawn)) == 1
    assert "legend" not in drawn, "one line has no need of one"
    assert curves_figures({"None": {"x": "x", "y": "y", "lines": {"b": []}}}) == ""


def drawn_paths(svg: str) -> list[str]:
    """Lines of a chart, the axis apart."""
    return re.findall(r'<path d="M([^"]*)" fill="none" stroke="#', svg)


@pytest.mark.parametrize(
    ("places", "may_be_log", "is_log"),
    [
        ((1, 5, 10, 200), True, True),
        ((1, 10, 100, 200), False, False),
        ((0, 200), True, False),
        ((1, 2, 3), True, False),
    ],
)
def test_a_wide_span_has_a_logarithmic_axis(places: tuple[float, ...], may_be_log: bool, is_log: bool) -> None:
    svg = line_chart(lines_of([("a", [(place, place) for place in places])]), "x", "y", "t", may_be_log)
    lefts = [float(part.split()[0]) for part in drawn_paths(svg)[0].split("L")]
    spread = np.log(places) if is_log else np.array(places, dtype=float)
    share = (spread - spread[0]) / (spread[-1] - spread[0])
    assert np.allclose((np.array(lefts) - lefts[0]) / (lefts[-1] - lefts[0]), share, atol=1e-3)


def test_accuracy_against_k_has_every_k_in_order() -> None:
    scores = [
        score("k20/top1", 80.0, "kNN, top-1, k = 20"),
        score("k20/top5", 95.0, "kNN, top-5, k = 20"),
        score("k200/top1", 78.0, "kNN, top-1, k = 200"),
        score("k5/top1", 79.0, "kNN, top-1, k = 5"),
    ]
    (family,) = families(scores)
    assert family.title == "Top-1 against k"
    assert {k: own.trained for k, own in family.scores.items()} == {5: 79.0, 20: 80.0, 200: 78.0}
    assert list(family.scores) == [5, 20, 200]


def test_shots_and_shares_of_labels_are_families_and_single_numbers_none() -> None:
    names = (
        "1_shot",
        "5_shot",
        "top1_0_1pct",
        "top1_10pct",
        "1_shot_min",
        "precision_at_1",
        "precision_at_10",
        "recall_at_1",
        "top1",
    )
    found = families([score(name) for name in names])
    assert [family.title for family in found] == [
        "By labelled images of each class",
        "Top-1 against labelled images, %",
        "Precision against k",
    ]
    assert [list(family.scores) for family in found] == [[1, 5], [0.1, 10], [1, 10]]


STAGES = [
    score("top1", 89.0, "Linear probe, top-1", untrained=46.0, pixels=39.0, interval=(88.0, 90.0)),
    score("top5", 99.0, "Linear probe, top-5"),
    score("top1_layer1", 58.5, "Linear probe of layer1, top-1", untrained=50.0),
    score("top1_layer2_1", 71.25, "Linear probe of layer2_1, top-1"),
    score("top1_best", 89.5, "Linear probe, top-1 of the best epoch"),
    score("k5/top1", 80.0, "kNN, top-1, k = 5"),
]


def test_stages_are_those_that_the_title_names_and_the_features_come_last() -> None:
    (found,) = stages_of(STAGES)
    assert {stage: own.trained for stage, own in found.scores.items()} == {
        "layer1": 58.5,
        "layer2_1": 71.25,
        "features": 89.0,
    }
    assert list(found.scores)[-1] == "features"


@pytest.mark.parametrize(
    ("name", "title", "stage"),
    [
        ("top1_res4", "Augmented probe, top-1, res4", "res4"),
        ("top1_res4_2", "Augmented probe, top-1, res4_2 (epochs=3)", "res4_2"),
        ("top1_best", "Augmented probe, top-1, best epoch", None),
        ("top1_validation", "Retrieval, instre, validation, mean average precision", None),
        ("top1_min", "Low-shot SVM, mAP of 1 per class, worst draw", None),
        ("top1_2", "Probe of 2nd, top-1", None),
    ],
)
def test_a_title_tells_whether_a_number_is_of_a_stage(name: str, title: str, stage: str | None) -> None:
    found = stages_of([score("top1", title="Probe, top-1"), score(name, title=title)])
    assert [list(own.scores) for own in found] == ([] if stage is None else [[stage, "features"]])


def test_bars_by_stage_bear_their_numbers() -> None:
    drawn = stages_figure(stages_of(STAGES)[0])
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert [text for text in texts if text in ("58.5", "71.2", "89.0")] == ["58.5", "71.2", "89.0"]
    assert {"layer1", "layer2_1", "features"} <= set(texts)
    assert drawn.count('fill="var(--untrained)"') == 2
    assert drawn.count('fill="var(--pixels)"') == 1


GOOD: dict[str, Any] = {
    "confusion": CONFUSED,
    "reliability": {"bins": [[0.5, 0.4, 10]], "ece": 10.0},
    "per_class": {"Accuracy (%)": {"0": 80.0, "1": 20.0}},
    "curves": {"Curve": {"x": "x", "y": "y", "lines": {"a": [[0, 1], [1, 2]]}}},
}


def test_the_page_folds_what_each_benchmark_found_behind_its_name() -> None:
    figures = {"knn": GOOD, "linear": {"per_class": GOOD["per_class"], "unheard_of": 3}}
    full = page(example(figures=figures, embeddings=None, history=[]))
    outline = Outline(full)
    assert "Benchmark by benchmark" in outline.headings
    assert "knn confusion, reliability, classes, curves" in outline.text
    assert "linear classes" in outline.text
    assert "cat80.0" in outline.text, "numbered classes have the names of the confusion"
    assert full.count("<details") - full.count("<details open") > 0
    assert re.findall(r'<details id="of-(\w+)"( open)?>', full) == [("knn", " open"), ("linear", "")]
    assert '<a href="#of-knn">knn</a>' in full
    ids = re.findall(r'\bid="([^"]+)"', full)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("kind", sorted(GOOD))
@pytest.mark.parametrize("damage", [None, 3, "text", [], {}, [[1]], {"bins": [[1]]}, {"a": 1}, {"pairs": [[1, 2]]}])
def test_a_damaged_figure_leaves_the_page_whole(kind: str, damage: object, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "raysl"):
        drawn = figures_of(example(figures={"knn": {**GOOD, kind: damage}, "b": damage}))["knn"]
    other = {"classes" if name == "per_class" else name for name in GOOD if name != kind}
    assert set(drawn) == other
    if damage != {} or kind not in ("per_class", "curves"):
        assert f"knn: {kind} cannot be drawn" in caplog.text


@pytest.mark.parametrize(
    "damage",
    [
        {"classes": ["a", "b"], "counts": [[1, 2]], "pairs": []},
        {"classes": ["a", "b"], "counts": [[1, 2], [3]], "pairs": []},
        {"classes": ["a", "b"], "counts": [[1, 2], [3, -1]], "pairs": []},
        {"classes": ["a"], "counts": [["many"]], "pairs": []},
    ],
)
def test_a_confusion_that_is_no_square_of_counts_is_not_drawn(damage: dict[str, Any]) -> None:
    assert "probe" not in figures_of(example(scores=[], figures={"probe": {"confusion": damage}}))


def test_hostile_names_stay_text() -> None:
    hostile = {
        "confusion": {"classes": [HOSTILE], "counts": [[3]], "pairs": [[HOSTILE, HOSTILE, 1]]},
        "per_class": {HOSTILE: {HOSTILE: 1.0}},
        "curves": {HOSTILE: {"x": HOSTILE, "y": HOSTILE, "lines": {HOSTILE: [[0, 1]], f"{HOSTILE}2": [[0, 2]]}}},
        HOSTILE: HOSTILE,
    }
    scores = [Score(benchmark=HOSTILE, metric="top1_" + HOSTILE, title=f"x of {HOSTILE}", trained=1.0)]
    scores.append(replace(scores[0], metric="top1"))
    outline = Outline(page(example(figures={HOSTILE: hostile}, scores=scores, embeddings=None)))
    assert "script" not in outline.tags
    assert not [name for name, _ in outline.attributes if name.startswith("on")]


def test_right_images_have_the_frame_and_the_mark_of_right_ones() -> None:
    dark = np.zeros((8, 8, 3), np.uint8)
    sample = Retrieved(
        queries=dark[None],
        query_labels=np.array([1]),
        images=np.stack([[dark, dark]]),
        right=np.array([[True, False]]),
    )
    image = np.asarray(retrieved_sheet(sample, ["cat", "dog"]).picture)
    first = CELL + 2 * FRAME + WIDE_GAP
    lefts = [first, first + CELL + 2 * FRAME + GAP]
    assert [tuple(image[1, left + 1, :3].tolist()) for left in lefts] == [SAME, OTHER]
    text = Outline(page(example(retrieved={"retrieval": sample}, embeddings=None, history=[]))).text
    assert "✔ and green: right (1 of 2)" in text
