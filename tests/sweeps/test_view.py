"""What a running sweep shows."""

import io
import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from raysl.config.load import load_config
from raysl.leaderboard.logged import Logged
from raysl.runs.folder import RunFolder
from raysl.runs.follow import read_nodes
from raysl.sweeps import start
from raysl.sweeps.load import from_tree
from raysl.sweeps.record import Record
from raysl.sweeps.run import SweepRun
from raysl.sweeps.start import SweepView, plain_line
from raysl.train.file_names import note_event
from raysl.tune.trial import Note, Trial


def _row(seed: int, epoch: float = 0.0, **settings: object) -> Record:
    lines = [{"step": 1, "epoch": epoch, "loss": 2.5}] if epoch else []
    return Record(Trial({"optim.lr": seed / 10}, seed), 10, {}, Logged(lines), is_running=True, **settings)


ROWS = [_row(1, 3.25, nodes=("10.0.0.1",), began=time.time() - 70.0), _row(2, began=time.time() - 9.0)]
FIRST, SECOND = (row.trial.name for row in ROWS)
STATE = "1 of 4 trials ended, 2 running; about 5 min left"


def _run(folder: Path, **tree: object) -> SweepRun:
    space = {"optim.lr": {"grid": [0.1, 0.2, 0.4]}}
    sweep = from_tree({"space": space, "metric": "loss", "mode": "min", "scheduler": "none", **tree}, "")
    words = ["train.epochs=4", "data.limit=64", "backbone.width=8", f"storage={folder}", "name=s"]
    return SweepRun.of(load_config("quickstart", words), sweep)


def _records(run: SweepRun) -> list[Record]:
    run.current_board()
    return list(run.ledger.records.values())


def _log(record: Record, epoch: float, seconds_per_step: float = 2.0) -> None:
    steps = range(1, int(8 * epoch) + 1)
    lines = [{"step": step, "epoch": step / 8, "loss": 1.0, "step_s": seconds_per_step} for step in steps]
    record.logged = Logged(lines)


def test_a_plain_line_names_the_running_trials_with_epoch_and_node() -> None:
    assert plain_line(ROWS, STATE) == f"{STATE}; running: {FIRST} (epoch 3.25/10 on 10.0.0.1), {SECOND} (starting)"
    assert plain_line([], STATE) == STATE
    assert plain_line(ROWS * 5, STATE).endswith(", 2 more")


def test_without_a_terminal_there_is_at_most_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clock = [100.0]
    monkeypatch.setattr(start.time, "monotonic", lambda: clock[0])
    shown = SweepView("loss")
    with shown.screen:
        for _ in range(130):
            clock[0] += 1.0
            shown.show(ROWS, STATE)
    assert caplog.text.count(STATE) == 2


def test_a_terminal_has_a_table_that_names_nodes_where_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(start, "console", lambda: screen)
    shown = SweepView("loss")
    one = Console(file=io.StringIO(), width=120)
    one.print(shown.table(ROWS, STATE))
    text = one.file.getvalue()
    assert [line.split()[0] for line in text.splitlines()] == ["trial", FIRST, SECOND, "1"]
    assert "epoch 3.25/10" in text
    assert "10.0.0.1" not in text
    one.print(shown.table([ROWS[0], _row(3, 1.0, nodes=("10.0.0.2",), began=time.time())], STATE))
    assert "10.0.0.1" in one.file.getvalue()


def test_the_rows_tell_what_each_running_trial_does_and_where(tmp_path: Path) -> None:
    run = _run(tmp_path)
    first, second, _ = _records(run)
    first.begin()
    second.begin()
    assert [row.progress for row in run.progress.running] == ["starting", "starting"]
    folder = tmp_path / "s" / first.trial.name
    note_event(folder, "started on 2 workers", nodes=["10.0.0.1", "10.0.0.1"])
    lines = [{"step": step, "epoch": step / 8, "loss": 1.0} for step in range(1, 13)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run.ledger._refresh_all()
    _log(second, 4.0)
    rows = run.progress.running
    assert [(row.progress, row.nodes) for row in rows] == [("epoch 1.5/4", ("10.0.0.1",)), ("ending", ())]
    assert (rows[0].trial.words(), rows[0].describe("loss")) == ("optim.lr=0.1 seed=0", "loss 1")


def test_the_nodes_of_a_run_are_those_of_its_newest_start(tmp_path: Path) -> None:
    assert read_nodes(RunFolder(str(tmp_path))) == ()
    note_event(tmp_path, "started", nodes=["10.0.0.1", "10.0.0.2"])
    note_event(tmp_path, "resumed", nodes=["10.0.0.3", "10.0.0.2", "10.0.0.3"])
    note_event(tmp_path, "an event without nodes")
    assert read_nodes(RunFolder(str(tmp_path))) == ("10.0.0.3", "10.0.0.2")


@pytest.mark.thorough
def test_the_time_left_is_that_of_the_epochs_left_at_the_pace_of_this_start(tmp_path: Path) -> None:
    run = _run(tmp_path)
    first, *_ = _records(run)
    assert run.progress.seconds_left() is None
    first.begin()
    first.began = time.time() - 50.0
    assert run.progress.seconds_left() is None, "no epoch has been trained"
    _log(first, 2.0)
    assert run.progress.seconds_left() == pytest.approx(50.0 * 10 / 2, abs=1), "2 of 12 epochs in 50 s"
    first.before = 1.0
    assert run.progress.seconds_left() == pytest.approx(50.0 * 10, abs=1), "one of them was trained before"
    first.is_running, first.before = False, 0.0
    measures = dict(first.measures)
    first.note = Note("finished", 4, 4.0, {"loss": 1.25}, costs={"seconds": 100.0}, measures=measures)
    state = run.progress.state()
    assert state == f"1 of 3 trials ended, 0 running; best {first.trial.name}: loss 1.25; about 2 min left"


def test_a_start_is_logged_once_with_the_settings_of_the_trial(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = _run(tmp_path)
    trial = _records(run)[0].trial
    run.ledger.begin(trial)
    run.ledger.fail_once(trial, "its process was lost", "", number=1, retries=1)
    run.ledger.begin(trial)
    assert caplog.text.count(f"{trial.name} starts: optim.lr=0.1 seed=0") == 1
