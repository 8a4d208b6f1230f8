"""The costs of a run are those of all its starts, also of one that was killed, wherever they are shown."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from raysl.benchmarks.benchmark import Benchmark, Context, Metric
from raysl.benchmarks.suite import tasks as suite_tasks
from raysl.benchmarks.suite.tasks import Task
from raysl.checkpoint.checkpoint_folder import checkpoint_name
from raysl.config.load import load_config
from raysl.config.schema import BenchmarkConfig, RunConfig
from raysl.errors import RunFailed, Stopped
from raysl.leaderboard.of_runs import RunsPage
from raysl.leaderboard.run_list import find_runs, list_runs, value_of
from raysl.plan.setup import Setup
from raysl.pretraining import _facts
from raysl.runs.folder import RunFolder
from raysl.runs.run import training
from raysl.storage.folder import Folder
from raysl.sweeps.record import Record
from raysl.train.costs import COSTS_FILE, CostCounter, Costs, counting_costs
from raysl.train.state import TrainState
from raysl.tune import run_trial
from raysl.tune.trial import Note, Trial
from tests.runs.runs import SMALL


class Clock:
    """The clock that costs are counted by."""

    now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("raysl.train.costs.time", clock)
    return clock


def killed(folder: Folder, clock: Clock, seconds: float, gpus: float = 0.0) -> None:
    """A start that is killed: it writes its costs, and never ends."""
    counter = CostCounter(folder)
    holding = counter.holding(gpus)
    holding.__enter__()
    clock.now += seconds
    counter.write()


def finished_run(tmp_path: Path, *words: str) -> RunConfig:
    """A run with a checkpoint at its end, of which nothing is left to train."""
    config = load_config("quickstart", [*SMALL, "train.epochs=4", f"storage={tmp_path}", "name=one", *words])
    folder, state = RunFolder.of(config), TrainState.create(Setup.of(config, 256, 10))
    state.step = state.setup.plan.total_steps
    folder.claim(config)
    line = {"step": state.step, "epoch": 4.0, "loss": 2.5, "step_s": 0.5, "memory_gb": 1.0}
    lines = [{**line, "step": 2, "epoch": 1.0, "step_s": 0.25}, {**line, "memory_gb": 2.0, "epoch": 2.0}, line]
    folder.write("metrics.jsonl", "".join(json.dumps(each) + "\n" for each in lines).encode())
    state.save(Path(folder.path) / checkpoint_name(state.step), {})
    return config


def test_a_start_that_is_killed_counts_up_to_its_last_seconds(tmp_path: Path, clock: Clock) -> None:
    folder = Folder(str(tmp_path))
    killed(folder, clock, 40.0)
    clock.now += 5000.0
    with counting_costs(folder):
        clock.now += 0.41
    assert Costs.read(folder) == Costs(pytest.approx(40.41), 0.0, began=1000.0)


def test_a_start_that_fails_counts_its_time(tmp_path: Path, clock: Clock) -> None:
    folder = Folder(str(tmp_path))
    for seconds in (10.0, 20.0):
        with suppress(RunFailed), counting_costs(folder):
            clock.now += 10.0
            raise RunFailed("the loss is not finite")
        assert Costs.read(folder).numbers() == {"seconds": seconds}


def test_hours_of_gpus_add_up_over_starts_and_leave_out_the_wait_for_nodes(tmp_path: Path, clock: Clock) -> None:
    folder = Folder(str(tmp_path))
    killed(folder, clock, 1800.0, gpus=8.0)
    with counting_costs(folder) as counter:
        clock.now += 7200.0  # waits for nodes
        with counter.holding(4.0):
            clock.now += 3600.0
        clock.now += 900.0  # measures
    assert Costs.read(folder).numbers() == {"seconds": 13_500.0, "gpu_hours": 8.0}


def test_a_damaged_file_costs_the_count_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / COSTS_FILE).write_text('{"seconds": "many"}')
    assert Costs.read(Folder(str(tmp_path))) == Costs()
    assert "costs.json is damaged: 'seconds' is 'many', not float" in caplog.text


@pytest.mark.thorough
def test_a_trial_taken_over_after_a_kill_costs_the_same_in_leaderboards_lists_and_reports(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("raysl.runs.run.connect")  # there is nothing to train
    config = finished_run(tmp_path, "benchmarks={}")
    folder = RunFolder.of(config)
    killed(folder, clock, 40.0, gpus=2.0)
    facts: list[dict[str, Any]] = []

    def taken_over(config: RunConfig, until: int | None) -> Any:
        with training(config, show_progress=False, since=clock.now) as run:
            clock.now += 0.41
            facts.append(_facts(run))
        return SimpleNamespace(report=None, metrics={})

    monkeypatch.setattr(run_trial, "_trained", taken_over)
    note = run_trial.run_trial(config, {})
    assert note.status == "finished"
    wanted = {"seconds": 40.41, "gpu_hours": round(80 / 3600, 4), "step_s": 0.5, "memory_gb": 2.0}
    assert note.costs == wanted
    assert note.started == 1000.0
    assert facts[0]["times"]["total"] == pytest.approx(40.41)
    record = Record(Trial({}, 0), 4, {}, note=Note.read(folder))
    assert record.entry(0, Folder(str(tmp_path)), {}).costs == wanted
    (run,) = find_runs(str(tmp_path))
    assert (value_of(run, "seconds"), value_of(run, "gpu_hours")) == (wanted["seconds"], wanted["gpu_hours"])
    assert list(list_runs(tmp_path)["seconds"]) == [wanted["seconds"]]
    assert RunsPage(str(tmp_path)).board().entries[0].costs == wanted


def test_a_checkpoint_that_is_measured_in_two_goes_costs_both(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("quickstart", [*SMALL, f"storage={tmp_path}", "name=one", "benchmarks={}"])
    results = [lambda: None, lambda: 1 / 0]
    report = SimpleNamespace(metrics={}, scores=[], checkpoint="", check=lambda: results.pop()())

    def measured(*_: Any, **__: Any) -> Any:
        clock.now += 30.0
        return report

    monkeypatch.setattr(run_trial, "benchmark", measured)
    with pytest.raises(ZeroDivisionError):
        run_trial.measure_checkpoint("runs/theirs", config, {})
    # what is counted is noted, also where the storage has not taken it
    monkeypatch.setattr(CostCounter, "write", lambda counter: None)
    note = run_trial.measure_checkpoint("runs/theirs", config, {})
    assert (note.costs, note.started) == ({"seconds": 60.0}, 1000.0)


class Interrupted(Benchmark):
    """Trains for a while, and is stopped the first time."""

    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        name: str = "interrupted"
        lr: float = 0.1

    trains = True
    clock: Clock
    starts = 0

    def measure(self, context: Context) -> list[Metric]:
        type(self).starts += 1
        self.clock.now += 100.0
        if self.starts == 1:
            raise Stopped("stopped")
        return [Metric("top1", 50.0)]


def test_a_benchmark_that_trains_in_two_goes_took_both(tmp_path: Path, clock: Clock) -> None:
    Interrupted.clock, Interrupted.starts = clock, 0
    nothing: Any = None
    context = Context("trained", nn.Identity(), nothing, nothing, {}, None, None, 0, 0, Folder(str(tmp_path)))

    def task(lr: float) -> Task:
        return Task("interrupted", Interrupted, Interrupted.Config(lr=lr), context)

    with pytest.raises(Stopped):
        suite_tasks.measure(task(0.1))
    assert suite_tasks.measure(task(0.2)).seconds == 100.0, "of other settings"
    assert suite_tasks.measure(task(0.1)).seconds == 200.0
