"""How a sweep stands, and what it would do, without running it."""

from pathlib import Path

import pytest

from raysl.cli import app
from raysl.config.load import load_config
from raysl.errors import ConfigError, RunFailed
from raysl.leaderboard.board_files import write
from raysl.leaderboard.entry import State
from raysl.leaderboard.logged import Logged
from raysl.leaderboard.status import status_of, watch
from raysl.runs.folder import RunFolder
from raysl.storage.folder import Folder
from raysl.storage.owner import own_folder
from raysl.sweeps import progress
from raysl.sweeps.load import from_tree
from raysl.sweeps.progress import mean_seconds, outdated, trial_lines
from raysl.sweeps.record import Record
from raysl.sweeps.run import SweepRun
from raysl.tune.trial import Note, Trial, measures_of
from tests.leaderboard.boards import asha
from tests.processes import wait_until


def _sweep_at(folder: Path, state: State) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "sweep.yaml").write_text("space: {}\n")
    write(asha(state=state), Folder(str(folder)))
    return str(folder)


@pytest.mark.thorough
def test_the_status_tells_who_has_a_sweep_in_hand(tmp_path: Path) -> None:
    uri = _sweep_at(tmp_path / "s", state="running")
    assert "no process runs it; the command that started it runs the trials that are left" in status_of(uri).line()
    with own_folder(RunFolder(uri)):
        assert status_of(uri).line().endswith("; trial_fe292238 at epoch 14 of 60; it is running")
    assert status_of(_sweep_at(tmp_path / "s", state="done")).line().endswith("it is done")


def test_a_live_sweep_in_a_bucket_is_running_without_a_doubt(caplog: pytest.LogCaptureFixture) -> None:
    folder = RunFolder("memory://raysl_status/s")
    folder.write("sweep.yaml", b"space: {}\n")
    write(asha(state="running"), folder)
    with own_folder(folder):
        wait_until(lambda: any(name.startswith(".beat-") for name in folder.names()))
        files = folder.names()
        assert status_of(folder.uri).line().endswith("it is running")
        assert folder.names() == files
    assert "no process runs it" in status_of(folder.uri).line()
    assert not [record for record in caplog.records if "may be in use" in record.message]


@pytest.mark.thorough
def test_a_watch_tells_what_is_new_and_ends_with_the_sweep(tmp_path: Path) -> None:
    uri = _sweep_at(tmp_path / "s", state="running")
    told = []
    lock = own_folder(RunFolder(uri))
    lock.__enter__()
    looks = iter([lambda: None, lambda: _sweep_at(tmp_path / "s", "done"), lambda: lock.__exit__(None, None, None)])
    last = watch(uri, told.append, lambda seconds: next(looks)())
    assert not last.is_running
    assert len(told) == 2, "nothing is told twice"


def test_there_is_no_status_of_what_is_no_sweep(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no sweep in .*nowhere; give its name and the storage="):
        status_of(str(tmp_path / "nowhere"))


@pytest.mark.thorough
def test_a_dry_run_lists_every_trial_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    own = [f"storage={tmp_path}/runs", "name=s", "trials=3", "train.epochs=12", "data.limit=64", "backbone.width=8"]
    app(["sweep", "sweep/quickstart", "--dry-run", *own, "concurrent=1", "benchmarks=[]"], standalone_mode=False)
    said = capsys.readouterr().out.splitlines()
    assert len([line for line in said if line.startswith("trial_")]) == 3
    assert "optim.lr=" in said[0]
    assert said[-1].startswith("3 trials to run, 1 at a time; about ")
    assert not (tmp_path / "runs").exists()


def test_a_listing_tells_how_each_trial_stands() -> None:
    ended = Record(Trial({"optim.lr": 0.1}, 0), 4, {}, note=Note("finished", 4, 4.0))
    stopped = Record(Trial({"optim.lr": 0.2}, 0), 4, {}, note=Note("stopped", 4, 2.0))
    lines = trial_lines([ended, stopped, Record(Trial({"optim.lr": 0.3}, 0), 4, {})])
    assert [line.split("  ", 1)[1] for line in lines] == [
        "finished      optim.lr=0.1 seed=0",
        "stopped at 2  optim.lr=0.2 seed=0",
        "waiting       optim.lr=0.3 seed=0",
    ]
    assert trial_lines([ended] * 1002)[-1] == "... and 2 more"


def test_changed_code_is_told_of_with_the_trials_that_it_makes_old() -> None:
    asked = {"knn": ["settings", "new code"], "linear": ["settings", "code"]}
    before = {"knn": ["settings", "old code"], "linear": ["other settings", "old code"]}
    record = Record(Trial({}, 0), 4, {}, note=Note("finished", 4, measures=before))
    (line,) = outdated([record, record], lambda trial: asked)
    assert line == "the code of knn has changed: it will measure 2 trials again, without training"


def test_the_time_of_a_trial_is_that_of_those_that_have_ended() -> None:
    records = [Record(Trial({}, 0), 4, {}, note=Note("finished", 4, costs={"seconds": own})) for own in (1800.0, 600.0)]
    assert mean_seconds([*records, Record(Trial({}, 0), 4, {})]) == 1200.0
    assert mean_seconds([Record(Trial({}, 0), 4, {})]) is None


@pytest.mark.thorough
def test_a_note_of_other_code_or_another_length_does_not_count_as_the_end(tmp_path: Path) -> None:
    sweep = from_tree({"space": {"optim.lr": {"grid": [0.1]}}, "scheduler": "none", "benchmarks": ["knn"]}, "")
    base = load_config("quickstart", [f"storage={tmp_path}", "name=s", "train.epochs=4"])
    run = SweepRun.of(base, sweep)
    (trial,) = run.planned.values()
    folder = run.folder.child(trial.name)
    folder.make()
    measures = measures_of(trial.run_of(run.bases, str(tmp_path)))

    def has_ended(**changes: object) -> bool:
        Note(**{"status": "finished", "until": 4, "epoch": 4.0, "measures": measures, **changes}).write(folder)
        return SweepRun.of(base, sweep).current_board().entries[0].status == "finished"

    assert has_ended()
    assert not has_ended(until=3)
    assert not has_ended(status="paused")
    assert not has_ended(measures={"knn": [measures["knn"][0], "other code"]})
    assert has_ended(measures={**measures, "linear": ["more", "than asked"]})


_NOWHERE = ("storage=memory://raysl_no_status", "name=s", "benchmarks=[]")


def _progress(base: str = "quickstart", **tree: object) -> tuple[SweepRun, str]:
    space = {"optim.lr": {"loguniform": [0.01, 0.1]}}
    sweep = from_tree({"space": space, "trials": 4, "metric": "loss", "mode": "min", "scheduler": "none", **tree}, "")
    run = SweepRun.of(load_config(base, ["train.epochs=4", "data.limit=64", "backbone.width=8", *_NOWHERE]), sweep)
    run.current_board()
    return run, run.progress.outlook(run.trained, concurrent=2)


def _first(run: SweepRun) -> Record:
    return next(iter(run.ledger.records.values()))


@pytest.mark.thorough
def test_a_start_says_how_many_trials_it_runs_and_about_how_long() -> None:
    _, told = _progress()
    assert told.startswith("4 trials to run, 2 at a time; about ")
    assert told.endswith(", estimated from a few steps, without benchmarks and early stops")
    _, open_number = _progress(scheduler="asha", seeds=2)
    assert open_number.startswith("at most 8 trials to run, ")
    _, exact = _progress(space={"optim.lr": {"grid": [0.1, 0.2]}})
    assert exact.startswith("2 trials to run, 2 at a time; about ")
    _, clusters = _progress("digits/clusterfit")
    assert clusters.endswith("; how long they take is known when the first one has ended")


@pytest.mark.thorough
def test_each_end_says_what_came_of_it_and_what_is_left() -> None:
    run, _ = _progress()
    first = _first(run)
    first.note = Note("finished", 4, 4.0, {"loss": 1.25}, costs={"seconds": 1800.0})
    assert run.progress.line(first) == f"{first.trial.name} ended: loss 1.25 (1 of 4)"
    first.failure = "it is out of memory"
    assert run.progress.line(first).startswith(f"{first.trial.name} failed (1 of 4")
    run, _ = _progress()
    first = _first(run)
    first.logged = Logged([{"step": 8, "epoch": 1.0, "loss": 2.5}])
    assert run.progress.line(first) == f"{first.trial.name} is paused at epoch 1 (0 of 4)"


@pytest.mark.thorough
def test_the_log_and_the_table_have_the_number_at_which_a_trial_was_stopped() -> None:
    run, _ = _progress(scheduler="asha")
    first = _first(run)
    first.logged = Logged([{"step": 8 * epoch, "epoch": float(epoch), "loss": 4.0 / epoch} for epoch in (1, 2, 3)])
    first.note = Note("stopped", 4, 1.0, {"loss": 4.0}, reason="asha at epoch 1, loss 4")
    entry = run.leaderboard().entries[0]
    assert (entry.status, entry.epoch, entry.metrics["loss"]) == ("stopped", 1.0, 4.0)
    assert run.progress.line(first).startswith(f"{first.trial.name} stopped: asha at epoch 1, loss 4 (1 of 4")


@pytest.mark.thorough
def test_equal_draws_are_counted_once_before_they_are_drawn() -> None:
    run, outlook = _progress(space={"optim.lr": {"choice": [0.1]}}, trials=4, seeds=2)
    assert run.progress.num_trials == 2
    assert outlook.startswith("2 trials to run")


@pytest.mark.thorough
def test_a_sweep_in_which_nothing_finished_has_failed(tmp_path: Path) -> None:
    run, _ = _progress()
    run.folder = RunFolder(str(tmp_path))
    records = list(run.ledger.records.values())
    for record in records:
        record.failure = "the loss is not finite"
    with pytest.raises(
        RunFailed, match="no trial finished: 4 of 4 failed, the first one because: the loss is not finite"
    ):
        run._check_finished(run.leaderboard())
    records[2].failure = None
    records[2].note = Note("finished", 4, 4.0, {"loss": 1.0})
    run._check_finished(run.leaderboard())


def test_a_start_does_not_fail_where_the_settings_that_trials_depart_from_cannot_train(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(config: object) -> float:
        raise RunFailed("the loss is not finite")

    monkeypatch.setattr(progress, "estimate_seconds", broken)
    _, told = _progress()
    assert told.endswith("how long they take is known when the first one has ended")
