"""Several checkpoints side by side."""

import csv
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysl.leaderboard.comparison import Comparison, compare, unique
from raysl.leaderboard.page.comparison import comparison_page, write_comparison
from raysl.report.contents import RunReport, Score
from raysl.report.report_json import parse_report_json, report_json
from raysl.storage.folder import Folder
from tests.report.test_page import HOSTILE, Outline


def top1(trained: float, **changes: Any) -> Score:
    fields: dict[str, Any] = {"title": "Probe, top-1", "untrained": 40.0, "pixels": 30.0, **changes}
    return Score(benchmark="probe", metric="top1", trained=trained, **fields)


RANK = Score(benchmark="geometry", metric="rankme", title="RankMe", trained=90.0, unit="", is_headline=False)
LOSS = Score(benchmark="mine", metric="loss", trained=0.5, unit="nats", is_lower_better=True, deviation=0.125)


def report(name: str, *scores: Score, step: int = 0, **changes: Any) -> RunReport:
    fields: dict[str, Any] = {
        "method": "SimCLR",
        "backbone": "resnet18",
        "dataset": "digits",
        "scores": list(scores),
        "step": step,
        "checkpoint": f"s3://bucket/{name}/checkpoint_{step:09d}",
        **changes,
    }
    return RunReport(name=name, **fields)


def pair() -> Comparison:
    return compare(
        [
            report("first", top1(80.0, interval=(79.0, 81.5)), LOSS, RANK),
            report("second", top1(85.25, untrained=42.0), replace(LOSS, trained=0.25)),
        ]
    )


def test_rows_hold_the_numbers_of_all_checkpoints_and_the_best_is_marked() -> None:
    found = pair()
    numbers = {row.first_score.metric: [own and own.trained for own in row.scores] for row in found.rows}
    assert numbers == {"top1": [80.0, 85.25], "loss": [0.5, 0.25], "rankme": [90.0, None]}
    assert {row.first_score.metric: row.best for row in found.rows} == {"top1": [1], "loss": [1], "rankme": []}


def test_scores_of_one_protocol_share_a_row_whatever_their_runs_have() -> None:
    own = top1(80.0, protocol="temperature=0.1")
    special = replace(top1(85.0, protocol="temperature=0.1"), benchmark="probe@1f3a2c", note="temperature=0.1")
    found = compare([report("first", own), report("second", special)])
    (row,) = found.rows
    assert [score and score.trained for score in row.scores] == [80.0, 85.0]
    assert (row.best, row.first_score.heading) == ([1], "Probe, top-1")


def test_scores_of_other_protocols_have_rows_that_name_them() -> None:
    found = compare([report("first", top1(80.0)), report("second", top1(85.0, protocol="temperature=0.1"))])
    assert [row.first_score.heading for row in found.rows] == [
        "Probe, top-1 (default settings)",
        "Probe, top-1 (temperature=0.1)",
    ]
    assert [row.best for row in found.rows] == [[], []]
    lines = list(csv.DictReader(io.StringIO(found.csv())))
    keys = [(line["benchmark"], line["metric"], line["protocol"]) for line in lines]
    assert keys == [("probe", "top1", ""), ("probe", "top1", "temperature=0.1")]
    assert len(set(keys)) == len(keys)


def test_what_shows_the_same_number_is_best_together_and_nan_never() -> None:
    found = compare([report(str(turn), top1(value)) for turn, value in enumerate((85.001, 85.002, math.nan, 80.0))])
    assert found.rows[0].best == [0, 1]


def test_of_numbers_without_a_unit_only_headlines_have_a_best_one() -> None:
    ranks = [replace(RANK, trained=value) for value in (20.0, 30.0)]
    alone = compare([report(str(turn), own) for turn, own in enumerate(ranks)])
    leading = compare([report(str(turn), replace(own, is_headline=True)) for turn, own in enumerate(ranks)])
    assert [found.rows[0].best for found in (alone, leading)] == [[], [1]]


def test_rivals_stand_where_all_agree() -> None:
    assert pair().rows[0].rivals == {"pixels": 30.0}
    text = Outline(comparison_page(pair())).text
    assert "Untrained networks and raw pixels have a number where all checkpoints have the same one." in text
    agreed = compare([report("a", top1(1.0)), report("b", top1(2.0, untrained=None))])
    assert agreed.rows[0].rivals == {"untrained": 40.0, "pixels": 30.0}
    assert "Untrained networks" not in Outline(comparison_page(agreed)).text


def test_numbers_of_other_titles_are_not_compared() -> None:
    found = compare([report("a", top1(1.0, title="kNN, k = 20")), report("b", top1(2.0, title="kNN, k = 200"))])
    assert [[own and own.trained for own in row.scores] for row in found.rows] == [[1.0, None], [None, 2.0]]


def test_numbers_of_a_benchmark_stand_together_whoever_has_them() -> None:
    found = compare([report("a", top1(1.0), RANK), report("b", replace(top1(2.0), metric="top5", title="Top-5"))])
    assert [row.first_score.metric for row in found.rows] == ["top1", "top5", "rankme"]


def test_names_tell_checkpoints_apart() -> None:
    reports = [report("a", step=10), report("a", step=1200), report("b", step=10), report("b")]
    assert compare([*reports, report("a", step=10)]).names == ["a @ 10", "a @ 1,200", "b @ 10", "b", "a @ 10 (2)"]
    assert unique(["a", "a", "a (2)"]) == ["a", "a (2)", "a (2) (2)"]


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(ValueError, match="no report"):
        compare([])


def test_settings_that_differ_are_told_and_those_that_make_no_difference_not() -> None:
    tree = {"name": "a", "seed": 0, "optim": {"lr": 0.3}, "train": {"workers": 1, "epochs": 5}, "benchmarks": {}}
    other = {**tree, "name": "b", "optim": {"lr": 0.6, "momentum": 0.9}, "benchmarks": {"knn": {"k": [5]}}}
    found = compare([report("a", config=tree), report("b", config=other)])
    assert found.settings == {
        "optim.lr": ["0.3", "0.6"],
        "benchmarks": ["{}", None],
        "optim.momentum": [None, "0.9"],
        "benchmarks.knn.k": [None, "[5]"],
    }
    assert "optim.lr0.30.6" in Outline(comparison_page(found)).text
    same = compare([report("a", config=tree), report("b", config={**tree, "name": "b"})])
    assert "Settings that differNone." in Outline(comparison_page(same)).text


def test_the_page_shows_values_intervals_and_deviations() -> None:
    full = comparison_page(pair())
    text = Outline(full).text
    assert "Comparison of 2 checkpoints" in text
    assert "Probe, top-1 (%)80.0079.00 to 81.5085.2530.00" in text
    assert '<td class="number best">85.25' in full
    assert "Mine, loss (nats), less is better0.5 ± 0.1250.25 ± 0.125" in text
    assert "All 3 numbers" in text
    assert "may not be compared" not in text
    ids = re.findall(r'\bid="([^"]+)"', full)
    assert len(ids) == len(set(ids))


def test_other_images_are_warned_of() -> None:
    found = compare([report("a", top1(1.0)), report("b", top1(2.0), dataset="cifar10")])
    assert "not all measured on the same images" in Outline(comparison_page(found)).text


def test_checkpoints_of_one_run_are_drawn_against_their_steps() -> None:
    later = [report("run", top1(60.0 + step, title="Probe"), replace(RANK, trained=step), step=step) for step in (9, 3)]
    found = compare([*later, report("other", top1(1.0), step=5)])
    assert found.runs == {"run": [1, 0]}
    drawn = re.findall(r'aria-label="([^"]* over step)"', comparison_page(found))
    assert drawn == ["probe: Probe: % over step", "geometry: RankMe:  over step"]
    assert not compare([later[0], report("other", step=3)]).runs
    assert "Against the steps" not in comparison_page(pair())


def stages(*names: str) -> list[Score]:
    inner = [
        replace(top1(50.0 + turn), metric=f"top1_{name}", title=f"Probe of {name}, top-1")
        for turn, name in enumerate(names)
    ]
    return [top1(90.0), *inner]


def test_stages_share_a_drawing_by_name_or_by_relative_depth() -> None:
    alike = comparison_page(compare([report("a", *stages("s1", "s2")), report("b", *stages("s1", "s2"))]))
    assert "probe: Top-1 by stage: % over stage" in alike
    assert {"s1", "s2", "features"} <= set(re.findall(r"<text[^>]*>([^<]*)</text>", alike))
    others = comparison_page(compare([report("a", *stages("s1", "s2")), report("b", *stages("block3"))]))
    assert "probe: Top-1 by stage: % over relative depth" in others


def test_a_csv_has_each_number_once_under_its_checkpoint() -> None:
    rows = list(csv.DictReader(io.StringIO(pair().csv())))
    assert [row["metric"] for row in rows] == ["top1", "loss", "rankme"]
    first = rows[0]
    assert [first[name] for name in ("first", "first: low", "first: high", "second", "untrained", "pixels")] == [
        *("80.0", "79.0", "81.5"),
        *("85.25", "", "30.0"),
    ]
    assert list(first) == [
        *("benchmark", "metric", "title", "unit", "protocol"),
        *("first", "first: low", "first: high", "first: deviation"),
        *("second", "second: low", "second: high", "second: deviation"),
        *("untrained", "pixels"),
    ]
    assert rows[1]["second: deviation"] == "0.125"
    assert rows[2]["second"] == ""


def test_latex_has_the_best_in_bold() -> None:
    lines = pair().latex().splitlines()
    assert lines[1] == r"\begin{tabular}{lrrr}"
    assert lines[3] == r" & first & second & raw pixels \\"
    assert lines[5] == r"Probe, top-1 & 80.00 {\scriptsize 79.00 to 81.50} & \textbf{85.25} & 30.00 \\"
    assert lines[7].endswith(r"\textbf{0.25} {\scriptsize $\pm$ 0.125} &  \\")
    assert compare([report("a_b%", top1(1.0))]).latex().splitlines()[3].startswith(r" & a\_b\% &")


def test_four_files_are_written_and_hold_the_same(tmp_path: Path) -> None:
    reports = [parse_report_json(report_json(own), "x") for own in pair().reports]
    uri = write_comparison(reports, Folder(str(tmp_path / "new")))
    assert uri == str(tmp_path / "new" / "comparison.html")
    content = json.loads((tmp_path / "new" / "comparison.json").read_text())
    assert [own["name"] for own in content["checkpoints"]] == ["first", "second"]
    assert content["rows"][0]["values"] == [80.0, 85.25]
    assert content["rows"][0]["intervals"] == [[79.0, 81.5], None]
    assert content["rows"][0]["best"] == ["second"]
    assert content["rows"][2]["values"] == [90.0, None]
    assert (tmp_path / "new" / "comparison.csv").read_text() == pair().csv()
    assert (tmp_path / "new" / "comparison.tex").read_text() == pair().latex()
    assert Outline(Path(uri).read_text()).text == Outline(comparison_page(pair())).text


def test_hostile_text_stays_text_and_credentials_stay_out() -> None:
    key = "s3://me:SeCrEt@bucket/run/checkpoint_000000003"
    hostile = report(
        HOSTILE, top1(1.0, title=HOSTILE), config={HOSTILE: HOSTILE}, dataset=HOSTILE, checkpoint=key, step=3
    )
    found = compare([hostile, report("b", top1(2.0), config={"path": key}), replace(hostile, step=4)])
    full = comparison_page(found)
    outline = Outline(full)
    assert "script" not in outline.tags
    assert not [name for name, _ in outline.attributes if name.startswith("on")]
    assert "SeCrEt" not in full + found.csv() + found.latex()


def test_where_there_are_many_numbers_each_benchmark_has_a_bar() -> None:
    names = ["a"] * 9 + ["b"]
    scores = [
        Score(benchmark=name, metric=f"m{turn}", title=f"N{turn} of {name}", trained=1.0 + turn)
        for turn, name in enumerate(names)
    ]
    full = comparison_page(compare([report("x", *scores, step=1), report("x", *scores, step=2)]))
    drawn = full[full.index('class="bars"') : full.index('id="steps"')]
    assert re.findall(r">(N\d of \w)</text>", drawn) == [
        "N0 of a",
        "N9 of b",
        *(f"N{turn} of a" for turn in range(1, 7)),
    ]
    shown, folded = full[full.index('id="steps"') :].split("Further numbers")
    assert re.findall(r"<h3>\w: (N\d of \w)</h3>", shown) == ["N0 of a", "N9 of b"]
    assert "<h3>a: N1 of a</h3>" in folded


def test_many_checkpoints_are_all_in_the_table_and_the_first_ten_in_the_drawings() -> None:
    found = compare([report(f"run{turn}", top1(50.0 + turn)) for turn in range(12)])
    text = Outline(comparison_page(found)).text
    assert "The first 10 of 12 checkpoints." in text
    assert "60.0061.00" in text


def test_lines_by_stage_say_how_many_checkpoints_they_leave_out() -> None:
    full = comparison_page(compare([report(f"run{turn}", *stages("s1")) for turn in range(12)]))
    assert "The first 10 of 12 checkpoints." in full[full.index('id="lines"') :]
    few = comparison_page(compare([report(f"run{turn}", *stages("s1")) for turn in range(3)]))
    assert "The first" not in few


def test_one_checkpoint_without_numbers_has_a_page() -> None:
    outline = Outline(comparison_page(compare([report("alone")])))
    assert outline.headings == ["Checkpoints"]
