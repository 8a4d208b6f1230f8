"""report.html."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysl.report.charts import whiskers
from raysl.report.contents import RunReport, Score
from raysl.report.record_sections import duration
from raysl.report.report_json import parse_report_json
from raysl.report.run_page import FILES, page, write_report
from raysl.report.score_sections import results_section
from raysl.report.summary import readable
from raysl.report.tables import score_csv, score_latex
from tests.report.run import SCORES, example

VOID = {"meta", "img", "input", "wbr"}


class Outline(HTMLParser):
    """Tags, attributes, text and headings of a page; fails on a tag that closes another."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.headings: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "h2":
            self.headings.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"style", "script"} & set(self.open):
            return
        self.text += data
        if "h2" in self.open:
            self.headings[-1] += data


@pytest.fixture(scope="module")
def full() -> str:
    return page(example())


@pytest.mark.thorough
def test_the_sections_come_in_the_order_of_interest(full: str) -> None:
    assert Outline(full).headings == [
        "Results",
        "Course of training",
        "Map of the embeddings",
        "Views",
        "Nearest neighbours",
        "Benchmarks",
        "Time and throughput",
        "Settings",
        "Environment",
        "Use it",
    ]


@pytest.mark.thorough
def test_nothing_is_loaded_from_elsewhere(full: str) -> None:
    outline = Outline(full)
    sources = [value for name, value in outline.attributes if name in ("src", "href", "xlink:href", "srcset", "data")]
    assert sources
    assert all(value.startswith(("#", "data:image/")) for value in sources)
    assert not re.search(r"https?://|@import|url\((?!#)", full)
    assert not outline.tags & {"script", "link", "iframe", "object", "embed"}


def test_ids_are_unique_and_every_reference_has_its_target(full: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', full)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', full)) <= set(ids)


def test_drawings_take_their_colours_from_the_style_sheet(full: str) -> None:
    drawn = set(re.findall(r"var\((--\w+)\)", full[full.index("<body>") :]))
    assert {"--ink", "--trained", "--untrained", "--pixels"} <= drawn
    for name in drawn:
        assert full.count(f" {name}:") == 2, f"{name} needs a light and a dark value"


HOSTILE = "<script>alert('1')</script>\"><img src=x onerror=alert(2)> $\\frac{$ & 100 %"


@pytest.mark.thorough
def test_hostile_text_stays_text() -> None:
    plain_report = example()
    assert plain_report.embeddings is not None
    report = example(
        **dict.fromkeys(("name", "method", "backbone", "dataset", "checkpoint", "command", "finished"), HOSTILE),
        config={HOSTILE: {HOSTILE: HOSTILE}},
        config_docs={f"{HOSTILE}.{HOSTILE}": HOSTILE},
        environment={HOSTILE: HOSTILE},
        times={HOSTILE: 1.0},
        history=[{"step": 1, "loss": 1.0, HOSTILE: 2.0}],
        scores=[Score(benchmark=HOSTILE, metric=HOSTILE, trained=1.0, note=HOSTILE)],
        embeddings=replace(plain_report.embeddings, class_names=[HOSTILE, "_hidden"]),
        events=[HOSTILE],
    )
    outline = Outline(page(report))
    assert "script" not in outline.tags
    assert not [name for name, _ in outline.attributes if name.startswith("on")]
    assert outline.text.count(HOSTILE) >= 15


def test_missing_parts_leave_no_heading() -> None:
    report = RunReport(name="bare", method="SimCLR", backbone="resnet18", dataset="digits")
    outline = Outline(page(report))
    assert outline.headings == []
    assert "None" not in outline.text
    assert not outline.tags & {"section", "table", "img", "svg", "h3"}


@pytest.mark.parametrize(
    ("part", "heading"),
    [
        ("history", "Course of training"),
        ("scores", "Results"),
        ("views", "Views"),
        ("neighbours", "Nearest neighbours"),
    ],
)
def test_each_part_goes_with_its_heading(part: str, heading: str) -> None:
    report = example(embeddings=None, **{part: [] if part in ("history", "scores") else None})
    assert heading not in Outline(page(report)).headings


@pytest.mark.thorough
def test_the_same_report_gives_the_same_page(full: str) -> None:
    assert page(example()) == full


@pytest.mark.thorough
def test_all_files_are_written_and_small(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    report = example()
    assert report.views is not None
    noise = draws.integers(0, 256, size=(8, 8, 96, 96, 3), dtype=np.uint8)
    large = replace(
        report,
        history=[{"step": step, "loss": float(draws.normal()), "lr": 0.1} for step in range(20_000)],
        views=replace(report.views, originals=list(noise[0]), views={"global": noise}),
    )
    path = write_report(large, tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "report.html"
    assert path.stat().st_size < 1_000_000
    assert parse_report_json(path.with_suffix(".json").read_bytes(), "report.json").metrics == report.metrics
    assert sorted(file.name for file in path.parent.iterdir()) == sorted(FILES)
    assert path.with_suffix(".csv").read_text() == score_csv(report.scores)
    assert path.with_suffix(".tex").read_text() == score_latex(report.scores)


@pytest.mark.thorough
def test_no_credentials_reach_a_title_a_note_or_a_figure(tmp_path: Path) -> None:
    uri = "s3://me:SeCrEt@bucket/images"
    score = Score(benchmark="knn", metric="top1", title=f"kNN (data={uri})", trained=1.0, note=f"data={uri}")
    path = write_report(example(scores=[score], figures={"knn": {"per_class": {"a": {"b": uri}}}}), tmp_path)
    assert all("SeCrEt" not in path.with_name(name).read_text() for name in FILES)


@pytest.mark.thorough
def test_saturated_pixels_are_named_and_others_are_not(full: str) -> None:
    assert "Raw pixels alone reach 98.1 % (kNN, top-1, k = 20)" in Outline(full).text
    assert "Go by: Low-shot, 5 per class; Linear, top1." in Outline(full).text
    top5 = Score(benchmark="knn", metric="top5", trained=99.0, untrained=98.0, pixels=99.9, is_headline=False)
    assert Outline(page(example(scores=[top5, *SCORES]))).text.count("99.9 %") == 0, "top-5 is near 100 soon"
    fair = [replace(score, pixels=96.9) for score in SCORES]
    assert "Raw pixels alone" not in page(example(scores=fair, embeddings=None))


def test_cards_name_the_gain_over_the_untrained_network_and_then_over_pixels(full: str) -> None:
    text = Outline(full).text
    assert "Low-shot, 5 per class90.1 % ± 0.8+19.7 vs untrained+12.6 vs raw pixels" in text
    assert "kNN, top-1, k = 2097.4 %+4.4 vs untrained−0.7 vs raw pixels" in text


def test_headlines_lead_what_pixels_solve_behind_them_and_others_last() -> None:
    def score(title: str, is_headline: bool, pixels: float = 50.0) -> Score:
        names = {"benchmark": "any", "metric": title, "title": title}
        return Score(**names, trained=60.0, untrained=40.0, pixels=pixels, is_headline=is_headline)

    further, solved, first, second = score("d", False), score("c", True, 98.0), score("a", True), score("b", True)
    assert card_titles([further, solved, first, second]) == ["a", "b", "c", "d"]
    assert card_titles([further, solved]) == ["c", "d"]


def test_a_number_has_its_own_title_and_unit() -> None:
    time = {"benchmark": "mine", "metric": "search", "title": "Search of <all> images", "unit": "s"}
    score = Score(**time, trained=0.0312, untrained=0.0501, pixels=0.02, deviation=0.004, is_lower_better=True)
    full = page(example(scores=[*SCORES, score], embeddings=None))
    text = Outline(full).text
    assert "Search of <all> images0.0312 s ± 0.004−0.0189 s vs untrained+0.0112 s vs raw pixels" in text
    assert '<div class="gain untrained better">−0.0189 s' in full
    assert '<div class="gain pixels worse">+0.0112 s' in full
    assert "mine/searchs0.0312 ± 0.0040.05010.02" in text, "the table"
    assert re.findall(r'aria-label="Bars of the scores in (.*?):', full) == ["%", "s"]


def test_a_table_has_as_many_digits_of_each_network() -> None:
    rank = {"benchmark": "geometry", "metric": "rankme", "title": "RankMe", "unit": ""}
    score = Score(**rank, trained=123.45, untrained=12.345, interval=(100.04, 1234.5), deviation=0.0)
    assert "RankMe123 ± 0100 to 1,23412.3" in Outline(page(example(scores=[score], embeddings=None))).text


def test_a_number_that_pixels_or_an_untrained_network_nearly_reach_gets_no_card() -> None:
    top5 = {"benchmark": "knn", "metric": "top5", "title": "kNN, top-5", "is_headline": False, "trained": 99.4}
    others = [
        replace(SCORES[2], metric=name, title=f"Number {name}", is_headline=name == "top1")
        for name in ("top1", "b", "c", "d")
    ]
    for rival in ("pixels", "untrained"):
        scores = [others[0], Score(**top5, **{rival: 97.8}), *others[1:]]
        text = page(example(scores=scores, embeddings=None))
        cards = re.findall(r'<div class="card"><h3>(.*?)</h3>', text)
        assert cards == ["Number top1", "Number b", "Number c", "Number d"]


@pytest.mark.thorough
def test_no_dot_stands_at_the_end_of_a_line_of_facts() -> None:
    text = page(example(finished="2026-11-23T10:00:00+00:00"))
    assert (
        "<span><b>resnet18</b></span> <span><b>digits</b></span> <span>written 2026-11-23 10:00:00 UTC</span>" in text
    )


def test_a_warning_of_many_saturated_numbers_names_four() -> None:
    solved = [replace(SCORES[1], title=f"Number {place}") for place in range(6)]
    text = Outline(page(example(scores=solved, embeddings=None))).text
    assert "98.1 % (Number 3) and as much of 2 further numbers on these images" in text


def test_a_note_that_the_heading_tells_is_not_told_again() -> None:
    special = replace(SCORES[1], title="kNN (k=[3])", note="k=[3]")
    other = replace(SCORES[2], note="something else")
    text = Outline(page(example(scores=[special, other], embeddings=None))).text
    assert text.count("k=[3]") == 5, "card, bars, both tables, the warning of raw pixels"
    assert text.count("something else") == 1


SURE = replace(SCORES[1], interval=(96.5, 98.2))


@pytest.mark.thorough
def test_an_interval_stands_on_the_card_in_the_tables_and_at_the_bar() -> None:
    text = Outline(page(example(scores=[SURE], embeddings=None))).text
    assert "97.4 %95 %: 96.5 to 98.2+4.4 vs untrained" in text, "the card"
    assert text.count("97.4096.50 to 98.2093.0098.10") == 2, "both tables"
    assert "Low-shot, 5 per class90.10 ± 0.8070.4077.50" in Outline(page(example(embeddings=None))).text
    assert text.count("It does not cover another training, another seed, or images of another kind.") == 2
    assert "Whiskers: 95 % interval over test images." in text
    assert "standard deviation" not in text
    bare = Outline(page(example(scores=[replace(SCORES[1], pixels=50.0)], embeddings=None))).text
    assert "95 %" not in bare
    assert "Whiskers" not in bare


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({"interval": (96.5, 98.2), "deviation": 0.5}, (96.5, 98.2)),
        ({"deviation": 0.5}, (96.9, 97.9)),
        ({"interval": (98.0, 99.0)}, None),
        ({"interval": (98.0, 99.0), "deviation": 0.5}, (96.9, 97.9)),
        ({"interval": (-math.inf, math.nan)}, None),
        ({"deviation": math.nan}, None),
        ({}, None),
    ],
)
def test_whiskers_are_the_interval_or_else_the_deviation(
    changes: dict[str, Any], ends: tuple[float, float] | None
) -> None:
    assert whiskers(replace(SCORES[1], **changes)) == (None if ends is None else pytest.approx(ends))


def test_bars_share_an_axis_only_within_a_unit_that_has_a_name() -> None:
    rank = Score(benchmark="geometry", metric="rankme", title="RankMe", trained=312.4, untrained=20.0, unit="")
    full = page(example(scores=[SCORES[0], rank], embeddings=None))
    assert re.findall(r'aria-label="Bars of the scores in (.*?):', full) == ["%"]
    assert "RankMe312+292 vs untrained" in Outline(full).text
    assert "Bars of the scores" not in page(example(scores=[rank], embeddings=None))


def many(num: int, num_each: int = 3) -> list[Score]:
    """The first of each benchmark and its second are headlines."""
    return [
        Score(benchmark=f"b{place}", metric=f"m{own}", trained=50.0, untrained=40.0, is_headline=own < 2)
        for place in range(num)
        for own in range(num_each)
    ]


def test_of_many_benchmarks_each_shows_one_number_first() -> None:
    assert card_titles(many(16)) == [f"B{place}, m0" for place in range(8)]
    assert card_titles(many(3)) == ["B0, m0", "B0, m1", "B1, m0", "B1, m1", "B2, m0", "B2, m1"]


def test_all_numbers_stand_under_their_benchmark_and_a_long_table_is_folded() -> None:
    scattered = many(3)
    full = page(example(scores=[*scattered[::2], *scattered[1::2]], embeddings=None))
    section = full[full.index('<section id="benchmarks">') :]
    assert re.findall(r'scope="rowgroup" colspan="\d">(b\d)<|<code>(b\d)/', section) == [
        pair for name in ("b0", "b1", "b2") for pair in [(name, ""), *[("", name)] * 3]
    ]
    assert "All 9 numbers" not in full
    assert "<details><summary>All 48 numbers of 16 benchmarks</summary>" in page(
        example(scores=many(16), embeddings=None)
    )


def test_two_of_one_title_are_told_apart() -> None:
    one = Score(benchmark="knn", metric="top1", title="kNN", trained=1.0)
    assert card_titles([one, replace(one, benchmark="cold")]) == ["kNN (knn)", "kNN (cold)"]


def test_numbers_without_a_title_go_by_their_names() -> None:
    assert card_titles([Score(benchmark="low_shot", metric="5_shot", trained=1.0)]) == ["Low shot, 5 shot"]


def test_the_own_task_on_held_out_images_has_its_curve(full: str) -> None:
    assert "Heldout rotation top1last 71.5" in Outline(full).text
    assert 'aria-label="Heldout rotation top1 over the steps of training"' in full


def card_titles(scores: list[Score]) -> list[str]:
    return re.findall(r'<div class="card"><h3>(.*?)</h3>', page(example(scores=scores, embeddings=None)))


@pytest.mark.thorough
def test_what_was_left_out_is_said_with_and_without_numbers() -> None:
    for scores in (SCORES, []):
        outline = Outline(page(example(scores=scores, notes=[f"knn is left out: {HOSTILE}"])))
        assert outline.headings[0] == "Results"
        assert f"knn is left out: {HOSTILE}" in outline.text


@pytest.mark.thorough
def test_training_images_are_called_so() -> None:
    sample = example().embeddings
    assert sample is not None
    seen = replace(sample, is_held_out=False, labels=np.full(40, -1), class_names=[])
    text = Outline(page(example(embeddings=seen))).text
    assert "N = 40 training images" in text
    assert "unlabelled" not in text


@pytest.mark.thorough
def test_where_no_accuracy_was_measured_the_classes_of_neighbours_are_counted() -> None:
    sample = example().embeddings
    assert sample is not None
    told = "have the class of the image nearest to them"
    assert told not in Outline(page(example())).text
    labels = sample.labels.copy()
    labels[:2] = 1 - labels[:2]
    seen = replace(sample, labels=labels, is_held_out=False)
    lengths = np.linalg.norm(seen.features, axis=1)
    num_same = 0
    for one in range(40):
        cosines = {n: seen.features[n] @ seen.features[one] / lengths[n] for n in range(40) if n != one}
        num_same += labels[max(cosines, key=cosines.__getitem__)] == labels[one]
    share = 100 * num_same / 40
    assert 0 < share < 100
    text = Outline(page(example(scores=[], embeddings=seen))).text
    assert f"Of 40 training images {share:.1f} % {told}, by cosine and among themselves; chance gives 50.0 %" in text
    assert "training has seen these images" in text
    alone = replace(sample, labels=np.zeros(40, np.int64))
    assert told not in Outline(page(example(scores=[], embeddings=alone))).text


def test_a_loss_that_is_not_finite_is_marked() -> None:
    history = [{"step": step, "loss": float("nan") if step == 7 else 1.0} for step in range(20)]
    full = page(example(history=history, embeddings=None))
    assert "Not finite at step 7." in Outline(full).text
    assert 'class="broken"' in full[full.index("<body>") :]


def test_collapsed_embeddings_are_called_so() -> None:
    sample = example().embeddings
    assert sample is not None
    collapsed = replace(sample, features=np.ones_like(sample.features))
    outline = Outline(page(example(embeddings=collapsed)))
    assert "the representation has collapsed" in outline.text
    assert "t-SNE" not in outline.text


@pytest.mark.thorough
def test_the_legend_has_every_class_up_to_twenty() -> None:
    sample = example().embeddings
    assert sample is not None
    for count, is_named in ((20, True), (21, False)):
        names = [f"kind-{label}-" for label in range(count)]
        outline = Outline(page(example(embeddings=replace(sample, labels=np.arange(40) % count, class_names=names))))
        assert all((name in outline.text) == is_named for name in names[2:])


def test_settings_carry_their_doc_line(full: str) -> None:
    assert "lr0.3Peak of the learning rate.betas[0.9, 0.999]" in Outline(full).text


def test_the_checkpoint_can_be_loaded_as_shown(full: str) -> None:
    assert 'raysl.load_backbone("s3://bucket/morning/checkpoint_000060")' in Outline(full).text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.416, "0.42 s"),
        (38.12, "38.1 s"),
        (59.97, "1 min 00 s"),
        (247, "4 min 07 s"),
        (3599.7, "1 h 00 min"),
        (11520, "3 h 12 min"),
    ],
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_numbers_keep_three_digits() -> None:
    assert [readable(value) for value in (0.00011284, 1.909, 12399.7, 3e12)] == ["0.000113", "1.91", "12,400", "3e+12"]


@pytest.mark.thorough
def test_the_record_tells_in_a_line_which_runs_it_was_forked_from() -> None:
    lineage = ["<b> at step 16 (epoch 2)", "old at step 8 (epoch 1)"]
    text = page(example(parents=lineage, events=["forked from <b> at step 16", "resumed at step 20"]))
    line = "forked from &lt;b&gt; at step 16 (epoch 2), which was forked from old at step 8 (epoch 1)"
    assert f"<ul><li>{line}</li><li>resumed at step 20</li></ul>" in text
    assert "forked" not in page(example())


def test_many_notes_on_what_was_not_measured_are_folded_into_one() -> None:
    few = results_section([], ["a is left out: no <labels>", "b failed"])
    assert few.count('<p class="note">') == 2
    assert "no &lt;labels&gt;" in few
    many = results_section([], [f"part {number} is left out" for number in range(9)])
    assert "<summary>9 notes on what was not measured</summary>" in many
    assert many.count("<li>") == 9
    assert '<p class="note">' not in many
