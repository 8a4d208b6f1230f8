"""Leaderboards: seeds together, ranks, the Pareto front, and what they read back as."""

import csv
import io
import math
import statistics
from dataclasses import replace

import pytest

from raysl.errors import ConfigError
from raysl.leaderboard.choice import number_of
from raysl.leaderboard.entry import Objective
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.leaderboard.leaderboard_json import parse
from tests.leaderboard.boards import LOSS, asha, board, entry, population, zoo


def test_seeds_of_a_choice_are_one_row_with_mean_deviation_and_students_interval() -> None:
    runs = [entry(seed, value, settings={"optim.lr": 0.5}, seed=seed) for seed, value in enumerate((90.0, 92.0, 97.0))]
    (row,) = board(runs).rows
    deviation = statistics.stdev((90.0, 92.0, 97.0))
    reach = 4.302652729911275 * deviation / math.sqrt(3)  # of two degrees of freedom, from tables
    assert row["knn_k20_top1"] == pytest.approx(93.0)
    assert row["knn_k20_top1: deviation"] == pytest.approx(deviation)
    assert (row["knn_k20_top1: low"], row["knn_k20_top1: high"]) == pytest.approx((93 - reach, 93 + reach))
    assert (row["n"], row["status"], row["trial"]) == (3, "finished", " ".join(run.trial for run in runs))


def test_one_seed_has_the_interval_that_was_measured_and_several_have_not() -> None:
    measured = {"intervals": {"knn_k20_top1": (88.0, 93.0)}}
    (alone,) = board([entry(0, 90.0, **measured)]).rows
    assert (alone["knn_k20_top1: low"], alone["knn_k20_top1: high"]) == (88.0, 93.0)
    assert "knn_k20_top1: deviation" not in alone
    assert number_of([1.0, 1.0], (0.0, 9.0)).interval == (1.0, 1.0)
    assert number_of([99.0, 99.8], None, (0.0, 100.0)).interval == (pytest.approx(94.3, abs=0.1), 100.0)


def test_a_seed_that_is_half_done_is_not_averaged_with_whole_ones() -> None:
    alike = {"settings": {"optim.lr": 0.5}}
    runs = [
        entry(0, 90.0, **alike),
        entry(1, 20.0, status="running", epoch=1.0, **alike),
        entry(2, 10.0, status="failed", epoch=1.0, **alike),
        entry(3, 94.0, **alike),
    ]
    (row,) = board(runs).rows
    assert (row["knn_k20_top1"], row["n"], row["epoch"]) == (92.0, 2, 4.0)
    assert row["status"] == "1 failed, 2 finished, 1 running"
    (row,) = board(runs[1:3]).rows
    assert row["knn_k20_top1"] == 20.0, "while none has ended, those that go on are what is known"


def test_seeds_are_those_behind_the_objective_and_runs_of_one_seed_count_once() -> None:
    alike = {"settings": {"optim.lr": 0.5}}
    pair = [entry(0, 50.0, **alike), entry(1, 60.0, **alike)]
    (row,) = board([*pair, entry(2, math.nan, **alike)]).rows
    assert (row["n"], row["knn_k20_top1"], row["knn_k20_top1: deviation"]) == (2, 55.0, pytest.approx(50**0.5))
    assert "0.5 & 2 & " in board([*pair, entry(2, math.nan, **alike)]).latex(), "the setting, and the seeds"
    again = entry(2, 70.0, **alike, seed=1)
    (row,) = board([*pair, again]).rows
    assert (row["n"], row["knn_k20_top1"]) == (2, 57.5), "the mean of 50 and of 65"
    measured = {"units": {"knn_k20_top1": "%"}, "intervals": {"knn_k20_top1": (66.0, 74.0)}}
    (row,) = board([entry(0, 70.0, **alike, **measured), entry(1, 70.0, **alike, **measured, seed=0)]).rows
    assert (row["n"], row["knn_k20_top1: low"], row["knn_k20_top1: high"]) == (1, 66.0, 74.0)
    assert row.get("knn_k20_top1: deviation") is None


def test_the_best_leads_those_without_the_number_come_last_and_equals_as_they_were_drawn() -> None:
    runs = [entry(0), entry(1, 80.0), entry(2, math.nan), entry(3, 90.0), entry(4, 80.0)]
    assert [row["trial"][-1] for row in board(runs).rows] == ["3", "1", "4", "0", "2"]
    assert [row["trial"][-1] for row in board(runs[::-1]).rows] == ["3", "1", "4", "0", "2"], "in any order"
    assert [row["rank"] for row in board(runs).rows] == [1, 2, 3, 4, 5]
    worst = board(runs, Objective("knn_k20_top1", "min"))
    assert [row["trial"][-1] for row in worst.rows] == ["1", "4", "3", "0", "2"]


def test_the_best_run_is_the_best_seed_of_the_best_row() -> None:
    pair = [entry(index, value, settings={"optim.lr": 0.5}) for index, value in enumerate((91.0, 93.0))]
    lucky = [entry(2, 99.0), entry(3, 70.0, settings={"optim.lr": 2.1})]
    best = board([*pair, *lucky]).best
    assert best is not None
    assert best.metrics["knn_k20_top1"] == 93.0, "one lucky seed does not make a row the best"
    assert board([entry(0)]).best is None
    assert board([]).best is None


def test_whole_runs_lead_those_that_were_stopped_whatever_their_numbers() -> None:
    runs = [
        entry(0, 99.0, status="stopped", epoch=1.0),
        entry(1, 95.0, status="stopped", epoch=3.0),
        entry(2, 60.0),
        entry(3, 70.0),
        entry(4, 98.0, status="running", epoch=2.0),
        entry(5, 99.0, status="failed"),
    ]
    assert [row["trial"][-1] for row in board(runs).rows] == ["3", "2", "4", "1", "0", "5"]


def test_the_pareto_front_is_what_nobody_beats_in_all() -> None:
    points = [(90.0, 3.0), (80.0, 1.0), (85.0, 2.0), (84.0, 2.5), (90.0, 3.5), (85.0, 2.0)]
    runs = [entry(place, a, metrics={"knn_k20_top1": a, "loss": b}) for place, (a, b) in enumerate(points)]
    found = board([*runs, entry(9, 99.0)], Objective("knn_k20_top1"), LOSS)
    assert [row["trial"][-1] for row in found.pareto] == ["0", "2", "5", "1"], "of equals none beats the other"
    assert [row["trial"][-1] for row in found.rows if row["pareto"]] == ["0", "2", "5", "1"]
    assert [row["knn_k20_top1"] for row in board(runs).pareto] == [90.0, 90.0]
    assert "pareto" not in board(runs).rows[0]


def test_equal_settings_that_began_with_other_weights_are_rows_of_their_own() -> None:
    alike = {"settings": {"optim.lr": 0.5}}
    runs = [entry(0, 80.0, **alike), entry(1, 90.0, parents=[("trial_00000000", 2.0)], **alike)]
    assert len(board(runs).rows) == 2
    assert len(board([runs[0], entry(1, 90.0, **alike)]).rows) == 1


def test_rows_have_what_untrained_networks_reach_the_measurements_and_the_costs() -> None:
    found = zoo(["simclr", "moco"])
    keys = list(found.rows[0])
    assert keys[:7] == ["rank", "trial", "status", "draws", "epoch", "n", "pareto"]
    at = keys.index("low_shot/5_shot/untrained")
    assert keys[at - 4 : at] == [
        "low_shot/5_shot",
        *(f"low_shot/5_shot: {part}" for part in ("deviation", "low", "high")),
    ]
    assert keys.index("config") < keys.index("knn/k20/top1") < keys.index("geometry/rankme") < keys.index("seconds")
    assert "knn/k20/top1/untrained" not in keys
    assert keys[-3:] == ["memory_gb", "effective_rank", "path"]
    assert all(list(row) == keys for row in found.rows)


def test_the_frame_and_the_csv_hold_the_rows() -> None:
    found = zoo(["simclr", "moco", "sinkhorn"])
    assert list(found.frame.columns) == list(found.rows[0])
    assert found.frame["low_shot/5_shot"].is_monotonic_decreasing
    read = list(csv.DictReader(io.StringIO(found.csv())))
    assert [float(row["low_shot/5_shot"]) for row in read] == [row["low_shot/5_shot"] for row in found.rows]
    assert board([]).csv() == ""


def test_the_text_has_deviations_beside_numbers_and_no_column_that_says_nothing() -> None:
    alike = {"settings": {"optim.lr": 0.5}}
    lines = board([entry(0, 91.0, **alike), entry(1, 92.0, **alike), entry(2, 70.0)]).table().splitlines()
    assert lines[0].split() == ["rank", "trial", "status", "draws", "epoch", "n", "knn_k20_top1", "optim.lr"]
    assert "91.5 ± 0.71" in lines[1]
    assert "trial_00000000 +1" in lines[1]
    alone = board([entry(0, 91.0)]).table().splitlines()
    assert alone[0].split() == ["rank", "trial", "status", "epoch", "knn_k20_top1", "optim.lr"]
    assert board([]).table() == "no trial yet"


@pytest.mark.parametrize(
    "found", [asha(), zoo(["simclr", "sinkhorn"]), population(), board([])], ids=lambda b: b.facts.name
)
def test_a_leaderboard_reads_back_equal(found: Leaderboard) -> None:
    again = Leaderboard(*parse(found.json(), "x.json"))
    assert again == found
    assert again.rows == found.rows
    assert again.json() == found.json()


def test_numbers_that_are_not_finite_are_null_and_read_back_as_nan() -> None:
    text = board([entry(0, math.inf, course={"loss": [(1.0, math.nan)]})]).json()
    assert "NaN" not in text
    assert "Infinity" not in text
    ((again,), _) = parse(text, "x.json")
    assert math.isnan(again.metrics["knn_k20_top1"])
    assert math.isnan(again.course["loss"][0][1])


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"format": 9}', "x", '{"format": 1, "facts": {"name": "s"}, "entries": []}']
)
def test_what_is_no_leaderboard_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"x\.json is no leaderboard\.json of format 1"):
        parse(text, "x.json")


def test_no_credentials_are_in_a_leaderboard() -> None:
    uri = "s3://me:SeCrEt@bucket/images"
    secret = entry(0, 90.0, settings={"data.path": uri}, reason=f"cannot read {uri}", path=uri, checkpoint=uri)
    found = board([secret], path=uri, command=f"raysl sweep data.path={uri}", space=f"data.path: {uri}")
    texts = [found.json(), found.csv(), found.table(), found._repr_html_(), found.path, repr(found)]
    assert not [text for text in texts if "SeCrEt" in text]
    assert all("***" in text for text in (texts[0], texts[1]))


def test_a_notebook_shows_the_first_rows_and_a_link_and_escapes_what_it_shows() -> None:
    runs = [entry(index, 50.0 + index, settings={"<b>": "<script>"}, seed=0, config=f"c{index}") for index in range(12)]
    html = board(runs)._repr_html_()
    assert html.count("<tr>") == 11
    assert "and 2 more" in html
    assert '<a href="/runs/s/leaderboard.html">' in html
    assert "<script>" not in html
    assert html.index("c11") < html.index("c10")


def test_a_shell_shows_the_first_rows_with_what_varies_and_the_objective() -> None:
    numbers = {"low_shot/5_shot": 40.0, "effective_rank": 3.0}
    runs = [
        entry(index, 90.0 - index, metrics={"knn_k20_top1": 90.0 - index, **numbers}, costs={"seconds": 9.0})
        for index in range(12)
    ]
    lines = repr(board(runs)).splitlines()
    assert lines[0].split() == ["rank", "trial", "status", "epoch", "knn_k20_top1", "optim.lr"]
    assert (len(lines), lines[-1]) == (12, "and 2 more")
    assert "seconds" in board(runs).table()


def test_courses_are_thinned_to_both_ends_and_then_stay_as_they_are() -> None:
    line = [(float(step), float(step)) for step in range(5000)]
    found = board([entry(0, 90.0, course={"loss": line}), entry(1, 80.0, course={"loss": line[:7]})])
    thin, whole = (run.course["loss"] for run in found.entries)
    assert len(thin) == 300
    assert (thin[0], thin[-1]) == (line[0], line[-1])
    assert whole == line[:7]
    assert Leaderboard(found.entries, found.facts) == found
    many = board([entry(index, 1.0, course={"loss": line, "lr": line}) for index in range(2000)])
    assert sum(len(points) for run in many.entries for points in run.course.values()) <= 300_000


def test_of_what_is_logged_and_a_cost_the_cost_of_the_whole_run_ranks() -> None:
    runs = [entry(place, 1.0, costs={"step_s": cost}) for place, cost in enumerate((0.3, 0.1, 0.2))]
    runs = [replace(run, metrics={"step_s": 0.5 - run.costs["step_s"]}) for run in runs]
    found = board(runs, Objective("step_s", "min"))
    assert [row["step_s"] for row in found.rows] == [0.1, 0.2, 0.3]
    assert found.best == found.entries[1]


def test_whole_runs_lead_then_those_that_run_then_the_stopped_by_how_far_they_came() -> None:
    runs = [
        entry(0, 99.0, status="stopped", epoch=1.0),
        entry(1, 60.0),
        entry(2, 70.0, status="stopped", epoch=2.0),
        entry(3, 80.0, status="running", epoch=1.0),
        entry(4, 98.0, status="failed", epoch=3.0),
        entry(5, 75.0, status="stopped", epoch=2.0),
        entry(6, 61.0),
        entry(7),
    ]
    found = board(runs)
    assert [row["trial"][-1] for row in found.rows] == ["6", "1", "3", "5", "2", "0", "4", "7"]
    assert [row["trial"][-1] for row in found.pareto] == ["6"]


def test_a_row_that_failed_does_not_lead_whatever_it_had() -> None:
    broken = entry(0, 99.0, status="failed", epoch=2.0)
    found = board([broken, entry(1, 50.0), entry(2)])
    assert [row["trial"][-1] for row in found.rows] == ["1", "0", "2"]
    assert [row["trial"][-1] for row in found.pareto] == ["1"]
    assert found.best == found.entries[1]
    assert board([broken]).best is None


def test_intervals_of_shares_end_where_shares_do() -> None:
    runs = [
        entry(index, value, settings={}, seed=index, units={"knn_k20_top1": "%"})
        for index, value in enumerate((90.0, 99.0))
    ]
    (row,) = board(runs).choices
    low, high = row.numbers["knn_k20_top1"].interval or (0.0, 0.0)
    assert (round(low, 1), high) == (37.3, 100.0)


def test_accuracies_over_all_images_stand_before_means_over_classes_and_those_before_other_numbers() -> None:
    names = [
        "knn/k20/macro_f1",
        "knn/k20/mean_per_class",
        "knn/k20/top1",
        "knn/k200/top1",
        "linear/macro_f1",
        "linear/top1",
        "geometry/rankme",
    ]
    metrics, units = dict.fromkeys(names, 50.0), {name: "%" for name in names if name != "geometry/rankme"}
    row = board([entry(0, 80.0, metrics={"knn_k20_top1": 80.0, **metrics}, units=units)]).rows[0]
    assert [name for name in row if name in names] == [
        "knn/k20/top1", "knn/k20/macro_f1", "knn/k20/mean_per_class", "knn/k200/top1", "linear/top1", "linear/macro_f1",
        "geometry/rankme",
    ]  # fmt: skip
