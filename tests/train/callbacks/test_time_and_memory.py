"""What the callbacks about time, memory and the optimizer's settings observe."""

import json
import logging
import mmap
import statistics
import time
from pathlib import Path

import pytest
import torch

from raysl import distributed as dist
from raysl.methods.method import StepOutput
from raysl.optim.build import lr_at, weight_decay_at
from raysl.process.memory import resident
from raysl.schedule import Step
from raysl.train import Callback, Run
from raysl.train.callbacks.numbers import IterationTimer, LearningRates, MemoryStats, Windows
from raysl.train.callbacks.profiler import Profiler
from raysl.train.meter import Meter
from tests.rank_processes import RunRanks
from tests.train.callbacks.own import Logs, train
from tests.train.problem import problem

OUT = StepOutput(torch.zeros(()))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds, in a list that a test adds to."""
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def test_the_timer_leaves_out_the_warm_up_and_tells_mean_median_overhead_and_time_left(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(*problem("train.log_every=1st"))
    timer = IterationTimer(IterationTimer.Config(warm_up=2, window=3))
    timer.on_train_start(run)
    for index, seconds in enumerate([60.0, 9.0, 1.0, 1.0, 1.0, 3.0, 4.0], start=1):
        run.line = {}
        clock[0] += seconds - 0.2
        with run.observing():
            clock[0] += 0.2
        timer.on_step_end(run, run.plan.step(index), OUT)
        assert bool(run.line) == (index > 2)
    assert run.line["timer/mean_s"] == pytest.approx(2.0)
    assert run.line["timer/median_s"] == pytest.approx(3.0)
    assert run.line["timer/callbacks"] == pytest.approx(0.1)
    assert run.line["timer/left_s"] == pytest.approx(2.0), "one of 8 steps is left"
    with caplog.at_level(logging.INFO, "raysl"):
        timer.on_train_end(run)
    assert caplog.messages == ["5 steps in 10 s, 2 s each, of which callbacks took 10.0 %"]


class _Slow(Callback):
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        end = time.perf_counter() + 0.02
        while time.perf_counter() < end:
            pass


@pytest.mark.thorough
def test_the_loop_tells_the_timer_what_callbacks_cost() -> None:
    _, _, lines = train(None, _Slow(), IterationTimer())
    assert lines.keys() == set(range(1, 9))
    assert "timer/mean_s" not in lines[3]
    last = lines[8]
    assert last["timer/mean_s"] > 0.02
    assert 0.02 / last["timer/mean_s"] * 0.7 < last["timer/callbacks"] < 1


@pytest.mark.thorough
def test_every_group_has_its_learning_rate_and_weight_decay_logged() -> None:
    settings = ("optim.warmup=2st", "optim.weight_decay=0.1", "optim.weight_decay_end=0.4")
    state, plan, lines = train(None, LearningRates(), overrides=settings)
    state.optimizer.param_groups[1]["lr_scale"] = 0.5
    assert len(state.optimizer.param_groups) == 2
    for index, line in lines.items():
        before = plan.step(index - 1)
        assert line["lr/0"] == line["lr/1"] == lr_at(plan.optim, before, plan.batch_size)
        assert line["weight_decay/0"] == weight_decay_at(plan.optim, before)
        assert line["weight_decay/1"] == 0
    assert len({line["lr/0"] for line in lines.values()}) > 4


@pytest.mark.thorough
def test_windows_are_medians_and_means_of_the_newest_lines_and_survive_a_restart() -> None:
    values = {1: 5.0, 2: 1.0, 3: 9.0, 4: 2.0, 6: 100.0, 7: 3.0, 8: 4.0}
    windows = Windows(Windows.Config(names=("mine", "loss"), size=3))
    _, _, lines = train(None, Logs("mine", values), windows)
    newest: list[float] = []
    for index, line in lines.items():
        newest = [*newest, *([values[index]] if index in values else [])][-3:]
        if index in values:
            assert line["mine_median"] == statistics.median(newest)
            assert line["mine_mean"] == pytest.approx(sum(newest) / len(newest))
        assert ("mine_median" in line) == (index in values)
    assert lines[8]["loss_mean"] == pytest.approx(sum(lines[i]["loss"] for i in (6, 7, 8)) / 3)
    again = Windows(Windows.Config(names=("mine",), size=3))
    again.load_state_dict(windows.state_dict())
    run = Run(*problem("train.log_every=1st"))
    run.log({"mine": 50.0})
    again.on_step_end(run, run.plan.step(5), OUT)
    assert run.line["mine_median"] == 4.0
    assert again.state_dict() == {"values": {"mine": [3.0, 4.0, 50.0]}}, "loss is not named any more"


@pytest.mark.thorough
def test_memory_in_use_is_logged() -> None:
    before = resident()
    with mmap.mmap(-1, 40_000_000) as kept:  # new pages, which an allocator's own are not
        kept.write(b"1" * 40_000_000)
        _, _, lines = train(None, MemoryStats())
    assert lines[8]["memory/resident_gb"] * 1e9 >= before + 30e6
    assert lines[8]["memory/resident_peak_gb"] >= lines[8]["memory/resident_gb"]


def _memory_of_ranks() -> tuple[float, dict[str, float]]:
    kept = torch.ones(20_000_000 if dist.rank() == 1 else 1)
    run = Run(*problem("train.log_every=1st"))
    MemoryStats().on_step_end(run, run.plan.step(1), OUT)
    meter = Meter(torch.device("cpu"), warm_up=0)
    meter.wait, meter.start = 0.1 + dist.rank(), time.perf_counter() - 10 - 10 * dist.rank()
    meter.count(30)
    assert len(kept)
    return run.line["memory/resident_gb"], meter.read()


def test_of_several_workers_the_most_memory_and_wait_and_the_mean_time_are_told(run_ranks: RunRanks) -> None:
    (first, read), (second, other) = run_ranks(2, _memory_of_ranks)
    assert first == second > 0.08
    assert read == other
    assert read["step_s"] == pytest.approx(15, rel=0.01)
    assert read["images_per_s"] == pytest.approx(2, rel=0.01)
    assert read["data_wait"] == pytest.approx(1.1 / 20, rel=0.01)


@pytest.mark.thorough
@pytest.mark.parametrize(("start", "warm_up"), [(0, 1), (3, 1), (2, 2)])
def test_the_profiler_records_its_window_alone(start: int, warm_up: int, tmp_path: Path) -> None:
    train(tmp_path, Profiler(Profiler.Config(start=start, warm_up=warm_up, steps=2)))
    events = json.loads((tmp_path / f"trace_step{start}.json").read_text())["traceEvents"]
    steps = {event["name"] for event in events if str(event.get("name", "")).startswith("ProfilerStep")}
    assert len(steps) == 2
    assert any("convolution" in str(event.get("name")) for event in events)
    assert "aten::" in (tmp_path / f"profile_step{start}.txt").read_text()


@pytest.mark.thorough
def test_a_start_behind_the_window_records_nothing_and_one_that_ends_inside_keeps_what_it_has(tmp_path: Path) -> None:
    train(tmp_path / "a", Profiler(Profiler.Config(start=7, warm_up=1)))
    assert list((tmp_path / "a").glob("trace*")) == []
    train(tmp_path / "b", Profiler(Profiler.Config(start=5, warm_up=1, steps=50)))
    events = json.loads((tmp_path / "b" / "trace_step5.json").read_text())["traceEvents"]
    assert len({event["name"] for event in events if str(event.get("name", "")).startswith("ProfilerStep")}) == 2
