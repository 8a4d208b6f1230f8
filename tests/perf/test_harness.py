from pathlib import Path

import pytest

from perf.harness import (
    check_writable,
    child_numbers,
    each_ratio,
    goal_line,
    interleaved,
    medians,
    ratios,
    rotated,
    verdict,
)
from raysl.errors import ConfigError, RunFailed

REPEATS = [{"a": 10.0, "b": 9.0}, {"a": 100.0, "b": 50.0}, {"a": 20.0, "b": 20.0}]


def test_a_median_is_taken_of_each_number() -> None:
    assert medians(REPEATS) == {"a": 20.0, "b": 20.0}
    assert medians(REPEATS[:2]) == {"a": 55.0, "b": 29.5}


def test_a_ratio_is_taken_inside_each_repeat_before_the_median() -> None:
    assert ratios(REPEATS, ["b/a"]) == {"b/a": 0.9}  # of .9, .5 and 1; the medians alone would give 1


def test_a_ratio_with_a_side_that_was_not_measured_is_left_out() -> None:
    assert list(ratios(REPEATS, ["b/a", "c/a", "b/d"])) == ["b/a"]


def test_every_contender_comes_first_and_last_as_repeats_go_on() -> None:
    orders = ["".join(rotated("abc", repeat)) for repeat in range(6)]
    assert orders == ["abc", "acb", "cab", "cba", "bca", "bac"]
    for position in (0, -1):
        assert {order[position] for order in orders} == set("abc")


def test_contenders_take_turns_and_results_keep_their_order(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    def measure(name: str, repeat: int) -> float:
        calls.append(name)
        return repeat + ord(name)

    with caplog.at_level("INFO", logger="raysl"):
        results = interleaved("ab", 2, measure, "speed")
    assert calls == ["a", "b", "a", "b"]  # the second repeat starts with b, and is reversed
    assert [list(repeat.items()) for repeat in results] == [[("a", 97), ("b", 98)], [("a", 98), ("b", 99)]]
    assert "speed, repeat 2 of 2, b: 99.0" in caplog.text


def test_a_ratio_of_each_repeat_is_kept() -> None:
    assert each_ratio(REPEATS, "b/a") == [0.9, 0.5, 1.0]


def add(first: int, second: int) -> dict[str, int]:
    return {"sum": first + second}


@pytest.mark.cluster
def test_a_function_is_called_in_a_process_of_its_own() -> None:
    assert child_numbers(add, {"first": 1, "second": 2}, "the sum") == {"sum": 3}
    with pytest.raises(RunFailed, match=r"(?s)the sum ended with code 1:.*unexpected keyword argument 'third'"):
        child_numbers(add, {"third": 3}, "the sum")


@pytest.mark.parametrize(("is_met", "word"), [(True, "ok"), (False, "short")])
def test_a_verdict_is_one_word(is_met: bool, word: str) -> None:
    assert verdict(is_met) == word


def test_a_line_has_the_median_the_span_and_the_verdict() -> None:
    line = goal_line("total  ", [9.0, 21.04, 12.5], 15.0, " s", ".1f")
    assert line == "total    12.50 s (9.0 to 21.0)  goal at most 15 s: ok"
    assert goal_line("", [1.25], 1.0).strip() == "1.25 (1.25 to 1.25)  goal at most 1: short"


def test_a_file_that_cannot_be_written_is_refused_beforehand(tmp_path: Path) -> None:
    check_writable(None)
    check_writable(tmp_path / "numbers.json")
    for path in (tmp_path, tmp_path / "missing" / "numbers.json"):
        with pytest.raises(ConfigError, match="--json"):
            check_writable(path)
