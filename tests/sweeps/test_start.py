"""How a start of a sweep ends that was asked to end."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from raysl.config.load import load_config
from raysl.errors import Stopped
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.process.signals import Signals
from raysl.runs.folder import RunFolder
from raysl.sweeps import start
from raysl.sweeps.load import from_tree
from raysl.sweeps.record import Note
from raysl.sweeps.run import SweepRun
from raysl.sweeps.stage import Stage


def _run_until(last: int) -> object:
    """Stand-in for Ray Tune: trials finish at once, and the sweep is asked to end while the last of so many runs."""

    def run_all(stage: Stage, *_: object) -> None:
        for number in range(last):
            record = stage.start()
            assert record is not None
            stage.is_ending = number == last - 1
            folder = RunFolder(stage.folder.uri).child(record.trial.name)
            folder.make()
            Note("finished", 4, 4.0, {"loss": 1.0 + number}).write(folder)
            stage.ended(record)

    return run_all


def _run_all(stage: Stage, *_: object) -> None:
    """Stand-in for Ray Tune: trials train at once to their end; the loss is larger for a larger learning rate."""
    while (record := stage.start()) is not None:
        folder = RunFolder(stage.folder.uri).child(record.trial.name)
        folder.make()
        loss = 10.0 * record.trial.settings["optim.lr"]
        lines = [{"step": 22 * epoch, "epoch": float(epoch), "loss": loss} for epoch in range(1, 5)]
        folder.write("metrics.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines).encode())
        Note("finished", 4, 4.0, {"loss": loss}, costs={"seconds": 60.0}).write(folder)
        stage.ended(record)


def _sweep(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> SweepRun:
    """Return a sweep of two trials on no cluster."""
    base = load_config("quickstart", ["train.epochs=4", f"storage={folder}", "name=s", "benchmarks=[]"])
    space = {"optim.lr": {"grid": [0.1, 0.2]}}
    tree = {"space": space, "metric": "loss", "mode": "min", "scheduler": "none", **settings}
    run = SweepRun.of(base, from_tree(tree, ""))
    monkeypatch.setattr(start, "connect", lambda **_: None)
    monkeypatch.setattr(start.SweepStart, "_room", lambda self: (1, run.bases))
    monkeypatch.setattr(run.progress, "outlook", lambda *_: "")
    return run


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepRun:
    return _sweep(tmp_path, monkeypatch)


def test_a_sweep_that_is_stopped_during_its_last_trial_is_done(
    sweep: SweepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "run_all", _run_until(2))
    board = sweep.run(Signals())
    assert [entry.status for entry in board.entries] == ["finished", "finished"]
    assert Leaderboard.load(sweep.folder.uri).facts.state == "done"
    assert "The sweep was stopped" not in Path(sweep.folder.uri, "leaderboard.html").read_text()


def test_a_sweep_that_is_stopped_before_its_last_trial_says_how_it_goes_on(
    sweep: SweepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "run_all", _run_until(1))
    with pytest.raises(Stopped, match="stopped after 1 trial; the same command runs those that are left"):
        sweep.run(Signals())
    assert Leaderboard.load(sweep.folder.uri).facts.state == "stopped"
    page = Path(sweep.folder.uri, "leaderboard.html").read_text()
    assert "The sweep was stopped before its end. The command that started it runs the trials that are left." in page


def test_the_log_of_a_sweep_says_why_trials_stop_and_which_seeds_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "raysl")
    monkeypatch.setattr(start, "run_all", _run_all)
    asha = {"scheduler": "asha", "reduction": 2, "seeds": 2}
    _sweep(tmp_path, monkeypatch, **asha).run(Signals())
    ends = [message for message in caplog.messages if " of " in message and message.startswith("trial_")]
    assert [end.partition(" ")[2] for end in ends] == [
        "ended: loss 1 (1 of 4; about 3 min left)",
        "stopped: loss 2 at epoch 1 is rank 2 of 2, and the best 1 may go on (2 of 3; about 60 s left)",
        "ended: loss 1 (3 of 3)",
    ]
    assert "not run: 1 further seed of 1 choice that stopped early or failed" in caplog.messages
    caplog.clear()
    _sweep(tmp_path, monkeypatch, **asha).run(Signals())
    assert "the sweep is done: 3 trials ended before" in caplog.messages
    caplog.clear()
    _sweep(tmp_path, monkeypatch, scheduler="asha", reduction=2).run(Signals())
    (change,) = [message for message in caplog.messages if "seeds: 2 -> 1" in message]
    assert change.startswith("the sweep has changed since its last start: ")
