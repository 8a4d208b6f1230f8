"""The best checkpoint stays, and a run that does not get better ends."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from raysl.checkpoint.checkpoint_folder import Kept, checkpoint_name, checkpoint_names, read_meta
from raysl.config.load import load_config
from raysl.errors import ConfigError, RunFailed
from raysl.schedule import Duration
from raysl.storage.folder import Folder
from raysl.train import Callback, LocalReporter, fit
from raysl.train.callbacks.checkpoint_keeper import CheckpointKeeper
from raysl.train.callbacks.early_stop import EarlyStop
from raysl.train.disk import Disk
from raysl.train.state import TrainState
from raysl.train.store import RemoteStore
from tests.rank_processes import RunRanks
from tests.train.callbacks.own import Logs, train
from tests.train.problem import StopAt, batches, problem

NAN = math.nan


def keeper(**settings: Any) -> CheckpointKeeper:
    return CheckpointKeeper(CheckpointKeeper.Config(**({"mode": "max"} | settings)))


def saved_by(
    folder: Path, values: dict[int, float], callback: Callback, *more: Callback, state: TrainState | None = None
) -> list[int]:
    """Steps of the checkpoints that a run of 8 steps leaves, which saves each and keeps the newest alone."""
    fresh, plan = problem("train.log_every=1st", "train.checkpoint_every=1st")
    state = state or fresh
    reporter = LocalReporter(folder, keep=1)
    callbacks = [Logs("score", values), *more, callback]
    fit(state, state.method, plan, batches(plan), callbacks=callbacks, reporter=reporter)
    return [int(name.removeprefix("checkpoint_")) for name in checkpoint_names(Folder(str(folder)))]


def best(folder: Path) -> str | None:
    run = Folder(str(folder))
    return Kept.read(run).best_in(run)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "values", "step"),
    [
        ("max", {1: 0.1, 3: 0.9, 4: NAN, 5: math.inf, 6: 0.9, 8: 0.2}, 3),
        ("min", {1: 0.5, 2: -math.inf, 3: 0.9, 6: 0.4, 7: NAN}, 6),
    ],
)
def test_the_best_checkpoint_is_never_deleted(mode: str, values: dict[int, float], step: int, tmp_path: Path) -> None:
    assert saved_by(tmp_path, values, keeper(metric="score", mode=mode)) == [step, 8]
    assert best(tmp_path) == checkpoint_name(step)
    content = json.loads((tmp_path / "kept.json").read_text())
    assert content["best"][0] == [checkpoint_name(step), values[step]]


@pytest.mark.thorough
def test_without_a_finite_number_there_is_no_best(tmp_path: Path) -> None:
    assert saved_by(tmp_path, {2: NAN, 5: math.inf}, keeper(metric="score")) == [8]
    assert best(tmp_path) is None


@pytest.mark.thorough
def test_an_old_number_is_not_that_of_a_later_checkpoint(tmp_path: Path) -> None:
    assert saved_by(tmp_path, {2: 0.5}, keeper(metric="score")) == [2, 8]


@pytest.mark.thorough
def test_one_each_so_often_stays_too(tmp_path: Path) -> None:
    every = Duration.parse("3st")
    assert saved_by(tmp_path, {4: 1.0}, keeper(metric="score", every=every)) == [3, 4, 6, 8]
    assert saved_by(tmp_path / "more", {}, keeper(every=every)) == [3, 6, 8]


@pytest.mark.thorough
def test_a_restart_remembers_the_best_and_forgets_what_was_lost(tmp_path: Path) -> None:
    assert saved_by(tmp_path, {2: 0.5, 4: 0.7}, keeper(metric="score"), StopAt(5)) == [4, 5]
    state, _ = problem()
    state.load(tmp_path / checkpoint_name(5))
    assert saved_by(tmp_path, {7: 0.6}, keeper(metric="score"), state=state) == [4, 8]
    Kept.read(Folder(str(tmp_path))).ranked(checkpoint_name(9), 5.0, "max").write(tmp_path)
    assert best(tmp_path) == checkpoint_name(4), "of what is there"
    state, _ = problem()
    state.load(tmp_path / checkpoint_name(4))
    assert saved_by(tmp_path, {6: 0.1}, keeper(metric="score", mode="min"), state=state) == [6, 8]
    assert [name for name, _ in Kept.read(Folder(str(tmp_path))).best] == [checkpoint_name(6)], "by another rule"


@pytest.mark.thorough
def test_a_best_checkpoint_that_could_not_be_stored_does_not_cost_the_one_before(tmp_path: Path) -> None:
    class Fails(LocalReporter):
        def report(self, metrics: dict[str, float], save: Any) -> None:
            if metrics["step"] == 4:
                save(tmp_path / "lost")
            else:
                super().report(metrics, save)

    state, plan = problem("train.log_every=1st", "train.checkpoint_every=1st")
    callbacks = [Logs("score", {2: 0.5, 4: 0.7}), keeper(metric="score")]
    fit(state, state.method, plan, batches(plan), callbacks=callbacks, reporter=Fails(tmp_path, keep=1))
    assert best(tmp_path) == checkpoint_name(2)


@pytest.mark.thorough
def test_a_best_checkpoint_that_is_written_at_the_second_try_is_the_best(tmp_path: Path) -> None:
    class Twice(LocalReporter):
        def report(self, metrics: dict[str, float], save: Any) -> None:
            save(tmp_path / f"lost_{metrics['step']}")
            super().report(metrics, save)

    state, plan = problem("train.log_every=1st", "train.checkpoint_every=1st")
    callbacks = [Logs("score", {2: 0.5, 4: 0.7}), keeper(metric="score")]
    fit(state, state.method, plan, batches(plan), callbacks=callbacks, reporter=Twice(tmp_path, keep=1))
    assert best(tmp_path) == checkpoint_name(4)


@pytest.mark.thorough
def test_a_remote_storage_keeps_the_best_too(tmp_path: Path) -> None:
    logs, run = tmp_path / "logs", Folder(str(tmp_path / "run"))
    logs.mkdir()
    (logs / "views").mkdir()
    (logs / "views" / "grid.txt").write_text("a file in a folder")
    run.make()
    store = RemoteStore(run, Disk(logs), keep=1)
    state, _ = problem()
    for step, value in ((1, 0.2), (2, 0.8), (3, 0.1), (4, 0.3)):
        Kept.read(Folder(str(logs))).ranked(checkpoint_name(step), value, "max").write(logs)
        store.put(checkpoint_name(step), lambda folder: state.save(folder, {}))
        store.finish()
    assert checkpoint_names(run) == [checkpoint_name(2), checkpoint_name(4)]
    assert run.read("views/grid.txt") == b"a file in a folder"


def test_a_keeper_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"callbacks.checkpoint_keeper: nothing would be kept; set metric, every"):
        load_config("quickstart", ["callbacks=[checkpoint_keeper]"])
    with pytest.raises(ConfigError, match=r"callbacks.checkpoint_keeper: set mode=min if less loss is better"):
        load_config("quickstart", ["callbacks.checkpoint_keeper.metric=loss"])
    with pytest.raises(ConfigError, match=r"callbacks.early_stop.metric: missing; it has no default"):
        load_config("quickstart", ["callbacks=[early_stop]"])


def early_stop(patience: str = "3st", mode: str = "max", **settings: Any) -> EarlyStop:
    config = EarlyStop.Config(metric="score", mode=mode, patience=Duration.parse(patience), **settings)  # type: ignore[arg-type]
    return EarlyStop(config)


@pytest.mark.parametrize(
    ("values", "stop", "end"),
    [
        ([1, 2, 3, 3, 3, 3, 9, 9], early_stop(), 6),
        ([1, 2, 3, 3, 3, 4, 4, 4], early_stop(), 8),
        ([1, 2, 3, 4, 5, 6, 7, 8], early_stop(), 8),
        ([1, 2, 3, 4, 5, 6, 7, 8], early_stop(mode="min"), 4),
        ([1, 1.5, 1.9, 2, 3.1, 3, 3, 3], early_stop(min_delta=1.0), 4),
        ([1, NAN, math.inf, NAN, 1, 1, 1, 1], early_stop(), 4),
        ([NAN] * 8, early_stop(), 3),
        ([5, 4, 4, 4, 4, 4, 4, 4], early_stop("1ep"), 5),
    ],
)
def test_a_run_ends_when_it_has_not_become_better_for_so_long(
    values: list[float], stop: EarlyStop, end: int, tmp_path: Path
) -> None:
    numbers = dict(enumerate(map(float, values), start=1))
    state, _, lines = train(tmp_path, Logs("score", numbers), stop)
    assert state.step == end == max(lines)
    meta = read_meta(Folder(str(tmp_path / checkpoint_name(end))))
    if end < 8:
        assert meta["ended"].startswith(f"early stop at step {end}: score ")
        assert (tmp_path / "events.jsonl").read_text().count("early stop") == 1
    else:
        assert "ended" not in meta


@pytest.mark.thorough
def test_it_waits_for_the_next_line_that_has_the_number() -> None:
    state, _, _ = train(None, Logs("score", {1: 1.0, 7: 1.0}), early_stop())
    assert state.step == 7


def test_a_number_that_nothing_logs_ends_the_run_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"waits for 'score', which nothing has logged in 3 steps; there are: .*loss"):
        train(tmp_path, early_stop())


@pytest.mark.thorough
def test_patience_survives_a_restart_and_begins_anew_when_an_ended_run_goes_on(tmp_path: Path) -> None:
    values = {1: 5.0} | dict.fromkeys(range(2, 9), 4.0)
    stop = early_stop("4st")
    train(tmp_path / "a", Logs("score", values), stop, StopAt(3))
    second = early_stop("4st")
    state, _ = problem()
    state.load(tmp_path / "a" / checkpoint_name(3))
    second.load_state_dict(state.callbacks["EarlyStop"])
    state, _, _ = train(tmp_path / "b", Logs("score", values), second, state=state)
    assert state.step == 5
    third = early_stop("2st")
    third.load_state_dict(second.state_dict())
    state.ended = None
    state, _, _ = train(tmp_path / "c", Logs("score", values), third, state=state)
    assert state.step == 7


def _on_ranks(folder: str) -> int:
    state, _, _ = train(Path(folder), _Different(), early_stop())
    return state.step


class _Different(Callback):
    """A number that gets better on one rank alone."""

    def on_step_end(self, run: Any, step: Any, out: Any) -> None:
        from raysl import distributed as dist

        run.log({"score": float(step.index * dist.rank())})


def test_all_ranks_end_at_the_same_step(tmp_path: Path, run_ranks: RunRanks) -> None:
    assert run_ranks(2, _on_ranks, str(tmp_path)) == [4, 4]
