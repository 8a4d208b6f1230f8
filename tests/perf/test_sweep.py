import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from perf import sweep as speed
from perf.harness import choose_cases
from perf.many_trials import ManyTrials, fill, measure_driver, simulate
from perf.sweep import CASES, SweepTask, Swept, Work, bare_s, measure, swept, table, up_to
from raysl.errors import ConfigError, RunFailed
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.storage.folder import Folder
from raysl.tune.trial import Note

STEPS = Work(
    "quickstart", ("train.epochs=1", "data.limit=64", "train.batch_size=32", "optim.warmup=0ep", "benchmarks=[]")
)


def test_the_steady_time_of_a_trial_leaves_out_the_start_and_the_end_of_its_sweep() -> None:
    times = Swept(seconds=60.0, begins=(112.0, 123.0, 133.5), ends=(122.0, 133.0, 145.0))
    assert times.trial_s == pytest.approx(11.5)
    assert times.an_hour == pytest.approx(3600 * 3 / 33)


def test_trials_side_by_side_are_counted_from_the_first_begin_wherever_that_ended() -> None:
    times = Swept(seconds=60.0, begins=(103.0, 100.0), ends=(110.0, 140.0))
    assert times.an_hour == pytest.approx(3600 * 2 / 40)


def test_times_of_a_sweep_are_those_that_its_trials_have_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def command_s(words: list[str]) -> float:
        commands.append(words)
        for number, (begun, ended) in enumerate([(2e9 + 20, 2e9 + 30), (2e9 + 5, 2e9 + 19)]):
            folder = Folder(str(tmp_path / "mine" / f"trial_{number}"))
            folder.make()
            Note(status="finished", until=1, started=begun, ended=ended).write(folder)
        return 44.0

    monkeypatch.setattr("perf.sweep.command_s", command_s)
    times = swept(STEPS, tmp_path, "mine", trials=2, concurrent=3)
    assert times == Swept(seconds=44.0, begins=(2e9 + 5, 2e9 + 20), ends=(2e9 + 19, 2e9 + 30))
    settings = json.loads((tmp_path / "mine.yaml").read_text())
    assert settings["space"] == {"seed": {"grid": [0, 1]}}
    assert settings["concurrent"] == 3
    assert commands == [["sweep", str(tmp_path / "mine.yaml"), *STEPS.settings, f"storage={tmp_path}", "name=mine"]]


@pytest.mark.cluster
def test_a_run_that_fails_is_reported_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"(?s)pretrain no-such-config.*ended with code 2.*error: "):
        bare_s(Work("no-such-config", ()), tmp_path, "bare")


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What each contender takes, in place of starting any."""
    fake: dict[str, Any] = {"bare": 20.0, "turn": 9.0, "ends": (10.0, 20.5, 31.0), "calls": []}

    def as_swept(work: Work, storage: Path, name: str, trials: int, concurrent: int) -> Swept:
        fake["calls"].append((name, trials, concurrent))
        ends = fake["ends"] if name == "trial" else tuple(100.0 for _ in range(trials))
        return Swept(27.0, (0.0,), ends)

    def call(what: str) -> Any:
        return lambda *words: fake["calls"].append(what) or fake[what]

    monkeypatch.setattr(speed, "swept", as_swept)
    monkeypatch.setattr(speed, "bare_s", call("bare"))
    monkeypatch.setattr(speed, "looped_s", call("turn"))
    return fake


@pytest.mark.cluster
def test_a_trial_is_compared_with_a_bare_run_and_with_a_turn_of_a_loop(seconds: dict[str, Any]) -> None:
    numbers = measure(["overhead"], repeats=2, task=SweepTask(works={"tiny": STEPS}))
    shown = table(numbers)
    assert "a sweep of one beyond the bare run                     +7.0 s (+7.0 to +7.0), +35 %" in shown
    assert "a trial beyond the bare run                            -9.5 s (-9.5 to -9.5), -48 %" in shown
    assert "a trial beyond a turn of the loop                      +1.5 s (+1.5 to +1.5), +17 %" in shown
    verdicts = [line.partition("goals under ")[2] for line in shown.splitlines() if "goals" in line]
    assert verdicts == ["5 s: short, 5 %: short", "5 s: ok, 5 %: ok", "5 s: ok, 5 %: short"]


@pytest.mark.cluster
def test_contenders_take_turns_in_another_order_each_time(seconds: dict[str, Any]) -> None:
    measure(["overhead"], repeats=2, task=SweepTask(works={"tiny": STEPS}))
    calls = [call if isinstance(call, str) else call[0] for call in seconds["calls"]]
    assert sorted(calls[:4]) == sorted(calls[4:])
    assert calls[:4] != calls[4:]


@pytest.mark.cluster
def test_trials_an_hour_are_told_beside_those_of_one_at_a_time(seconds: dict[str, Any]) -> None:
    task = SweepTask(works={"small": STEPS}, at_a_time=(1, 4))
    numbers = measure(["concurrency"], repeats=1, task=task)
    assert sorted(seconds["calls"]) == [("at-1-0", 4, 1), ("at-4-0", 8, 4)]
    rates = numbers["cases"]["concurrency"]
    assert rates["an_hour"] == {"1": pytest.approx(144.0), "4": pytest.approx(288.0)}
    assert "   4 at a time     288 (288 to 288)" in table(numbers)


def test_trials_at_a_time_double_up_to_the_cores() -> None:
    assert [up_to(cores) for cores in (1, 2, 3, 8, 12)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 12]]


def test_an_unknown_case_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="--only size: there is no such case; known: overhead, concurrency, scale"):
        choose_cases(["size"], CASES)
    assert choose_cases([], CASES) == ["overhead", "concurrency", "scale"]


@pytest.mark.thorough
def test_a_sweep_of_ended_trials_comes_to_its_last_one_and_to_a_board_of_all(tmp_path: Path) -> None:
    task = ManyTrials(storage=str(tmp_path), num=12, ended=True, with_ray=False)
    fill(task)
    numbers = simulate(**asdict(task))
    assert 0 < numbers["plan_s"] == numbers["start_s"]
    assert min(numbers["board_s"], numbers["cpu_s"], numbers["board_cpu_s"]) > 0
    assert numbers["board_memory_mb"] >= numbers["memory_mb"] > 100
    board = Leaderboard.load(str(tmp_path / "sweep-12-True"))
    states = [entry.status for entry in board.entries]
    assert len(states) == 12
    assert states[-1] in ("waiting", "running")
    assert set(states[:-1]) == {"finished"}


def test_the_start_of_many_trials_is_told_with_both_goals() -> None:
    few = {"start_s": 4.0, "plan_s": 0.1, "cpu_s": 1.0, "memory_mb": 800.0}
    board = {"board_s": 1.5, "board_cpu_s": 0.5, "board_memory_mb": 990.0}
    cases = {
        "10 new": {**few, "repeats": [few]},
        "10 ended": {**few, **board, "repeats": [few]},
        "1000 new": {**few, "memory_mb": 810.0, "repeats": [few]},
        "1000 ended": {**few, **board, "start_s": 12.0, "memory_mb": 960.0, "repeats": [{"start_s": 12.0}]},
    }
    lines = table({"cases": {"scale": cases}, "environment": {}}).splitlines()
    assert lines[4].split() == [
        "1000",
        "ended",
        "12.00",
        "s",
        "0.10",
        "s",
        "1.00",
        "s",
        "960",
        "MB",
        "1.50",
        "s,",
        "CPU",
        "0.50",
        "s,",
        "990",
        "MB",
    ]
    assert [line.rpartition(": ")[2] for line in lines[5:]] == ["ok", "ok", "short", "short"]


@pytest.mark.slow
def test_tune_is_given_the_first_trial_of_a_sweep_and_no_other(tmp_path: Path) -> None:
    numbers = measure_driver(ManyTrials(storage=str(tmp_path), num=100))
    assert 0 < numbers["plan_s"] < numbers["start_s"]
    assert not list(tmp_path.glob("*/trial_*"))


@pytest.mark.slow
def test_bare_runs_loops_and_sweeps_of_a_few_steps_are_measured() -> None:
    task = SweepTask(works={"tiny": STEPS}, trials=2, at_a_time=(2,))
    numbers = measure(["overhead", "concurrency"], repeats=1, task=task)
    (seconds,) = numbers["cases"]["overhead"]["tiny"]["repeats"]
    assert 0 < seconds["trial"] < seconds["only"]
    assert 0 < seconds["turn"] < seconds["bare"]
    assert numbers["cases"]["concurrency"]["an_hour"]["2"] > 0
