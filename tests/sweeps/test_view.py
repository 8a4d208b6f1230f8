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
from raysl.sweeps import view
from raysl.sweeps.estimate import whole_seconds
from raysl.sweeps.load import from_tree
from raysl.sweeps.record import Record
from raysl.sweeps.run import SweepRun
from raysl.sweeps.view import SweepView, TrialRow, plain_line
from raysl.train.files import note_event
from raysl.tune.note import Note
from raysl.tune.trial import Trial

ROWS = [
    TrialRow("trial_1", "optim.lr=0.1", ("10.0.0.1",), 3.25, 10, "loss 2.5", 70.0),
    TrialRow("trial_2", "optim.lr=0.2", (), 0.0, 10, "", 9.0, "starting"),
]
STATE = "1 of 4 trials ended, 2 running; about 5 min left"


def _run(folder: Path, **tree: object) -> SweepRun:
    space = {"optim.lr": {"grid": [0.1, 0.2, 0.4]}}
    sweep = from_tree({"space": space, "metric": "loss", "mode": "min", "scheduler": "none", **tree}, "")
    words = ["train.epochs=4", "data.limit=64", "backbone.width=8", f"storage={folder}", "name=s"]
    return SweepRun.of(load_config("quickstart", words), sweep)


def _records(run: SweepRun) -> list[Record]:
    run.known()
    return list(run.ledger.records.values())


def _log(record: Record, epoch: float, seconds_per_step: float = 2.0) -> None:
    steps = range(1, int(8 * epoch) + 1)
    lines = [{"step": step, "epoch": step / 8, "loss": 1.0, "step_s": seconds_per_step} for step in steps]
    record.logged = Logged(lines)


def test_a_plain_line_names_the_running_trials_with_epoch_and_node() -> None:
    assert plain_line(ROWS, STATE) == f"{STATE}; running: trial_1 (epoch 3.25/10 on 10.0.0.1), trial_2 (starting)"
    assert plain_line([], STATE) == STATE
    assert plain_line(ROWS * 5, STATE).endswith(", 2 more")


def test_without_a_terminal_there_is_at_most_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clock = [100.0]
    monkeypatch.setattr(view.time, "monotonic", lambda: clock[0])
    with SweepView() as shown:
        for _ in range(130):
            clock[0] += 1.0
            shown.show(ROWS, STATE)
    assert caplog.text.count(STATE) == 2


def test_a_terminal_has_a_table_that_names_nodes_where_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(view, "console", lambda: screen)
    shown = SweepView()
    shown.show(ROWS, STATE)
    one = Console(file=io.StringIO(), width=120)
    one.print(shown._table())
    text = one.file.getvalue()
    assert [line.split()[0] for line in text.splitlines()] == ["trial", "trial_1", "trial_2", "1"]
    assert "epoch 3.25/10" in text
    assert "10.0.0.1" not in text
    shown.show([ROWS[0], TrialRow("trial_3", "", ("10.0.0.2",), 1.0, 10, "", 5.0)], STATE)
    one.print(shown._table())
    assert "10.0.0.1" in one.file.getvalue()


def test_the_rows_tell_what_each_running_trial_does_and_where(tmp_path: Path) -> None:
    run = _run(tmp_path)
    first, second, _ = _records(run)
    first.begin()
    second.begin()
    assert [row.progress for row in run.progress.rows()] == ["starting", "starting"]
    folder = tmp_path / "s" / first.trial.name
    note_event(folder, "started on 2 workers", nodes=["10.0.0.1", "10.0.0.1"])
    lines = [{"step": step, "epoch": step / 8, "loss": 1.0} for step in range(1, 13)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run.ledger._look_at_all()
    _log(second, 4.0)
    rows = run.progress.rows()
    assert [(row.progress, row.nodes) for row in rows] == [("epoch 1.5/4", ("10.0.0.1",)), ("ending", ())]
    assert (rows[0].settings, rows[0].value) == ("optim.lr=0.1 seed=0", "loss 1")


def test_the_nodes_of_a_run_are_those_of_its_newest_start(tmp_path: Path) -> None:
    assert read_nodes(RunFolder(str(tmp_path))) == ()
    note_event(tmp_path, "started", nodes=["10.0.0.1", "10.0.0.2"])
    note_event(tmp_path, "resumed", nodes=["10.0.0.3", "10.0.0.2", "10.0.0.3"])
    note_event(tmp_path, "an event without nodes")
    assert read_nodes(RunFolder(str(tmp_path))) == ("10.0.0.3", "10.0.0.2")


def test_a_running_trial_takes_its_start_and_its_steps_on_and_on() -> None:
    record = Record(Trial({}, 0), 4, {})
    assert whole_seconds(record, 30.0, 0.0) is None, "it has logged nothing"
    _log(record, 1.0)
    assert whole_seconds(record, 46.0, 0.0) == pytest.approx(30.0 + 4 * 16.0)
    _log(record, 2.0)
    assert whole_seconds(record, 46.0, 1.0) == pytest.approx(30.0 + 4 * 16.0), "it had one epoch before this start"
    assert whole_seconds(record, 46.0, 2.0) is None


def test_the_time_left_counts_what_running_trials_have_behind_them(tmp_path: Path) -> None:
    run = _run(tmp_path)
    first, *_ = _records(run)
    assert run.progress.seconds_left(1) is None
    first.begin()
    first.began = time.time() - 52.0
    _log(first, 2.0)
    whole = 52.0 - 32.0 + 64.0
    assert run.progress.seconds_left(1) == pytest.approx(whole - 52.0 + 2 * whole, abs=1)
    assert run.progress.seconds_left(2) == pytest.approx((whole - 52.0 + 2 * whole) / 2, abs=1)
    first.is_running = False
    measures = dict(first.measures)
    first.note = Note("finished", 4, 4.0, {"loss": 1.25}, costs={"seconds": 100.0}, measures=measures)
    assert run.progress.seconds_left(2) == 100.0
    state = run.progress.state(2)
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
