"""How a start of a sweep ends that was asked to end."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from raysl.config.load import load_config
from raysl.errors import Stopped
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.process.signals import Signals
from raysl.sweeps import start
from raysl.sweeps.load import from_tree
from raysl.sweeps.run import SweepRun
from raysl.tune.trial import Note, Trial


def _run_until(last: int) -> object:
    """Stand-in for Ray Tune: trials finish at once, and the sweep is asked to end while the last of so many runs."""

    def run_stage(begun: start.SweepStart, further: Sequence[Trial] | None = None) -> None:
        ledger, folder = begun.plan.ledger, begun.plan.folder
        for number, record in enumerate(list(ledger.records.values())[:last]):
            ledger.begin(record.trial)
            begun.ending.is_set = number == last - 1
            own = folder.child(record.trial.name)
            own.make()
            Note("finished", 4, 4.0, {"loss": 1.0 + number}).write(own)
            ledger.end(record.trial)

    return run_stage


def _run_all(begun: start.SweepStart, further: Sequence[Trial] | None = None) -> None:
    """Stand-in for Ray Tune: trials train at once to their end, but those of a large loss, which are stopped."""
    ledger, folder = begun.plan.ledger, begun.plan.folder
    trials = [own.trial for own in ledger.records.values() if not own.is_further]
    for trial in trials if further is None else further:
        ledger.begin(trial)
        own = folder.child(trial.name)
        own.make()
        loss = 10.0 * trial.settings["optim.lr"]
        lines = [{"step": 22 * epoch, "epoch": float(epoch), "loss": loss} for epoch in range(1, 5)]
        own.write("metrics.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines).encode())
        if loss > 1.5:
            ledger.stop(trial, 1.0, "asha at epoch 1, loss 2")
            continue
        Note("finished", 4, 4.0, {"loss": loss}, costs={"seconds": 60.0}).write(own)
        ledger.end(trial)


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


@pytest.mark.thorough
def test_a_sweep_that_is_stopped_during_its_last_trial_is_done(
    sweep: SweepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "run_stage", _run_until(2))
    board = sweep.run(Signals())
    assert [entry.status for entry in board.entries] == ["finished", "finished"]
    assert Leaderboard.load(sweep.folder.uri).facts.state == "done"
    assert "The sweep was stopped" not in Path(sweep.folder.uri, "leaderboard.html").read_text()


@pytest.mark.thorough
def test_a_sweep_that_is_stopped_before_its_last_trial_says_how_it_goes_on(
    sweep: SweepRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "run_stage", _run_until(1))
    with pytest.raises(Stopped, match="stopped after 1 trial; the same command runs those that are left"):
        sweep.run(Signals())
    assert Leaderboard.load(sweep.folder.uri).facts.state == "stopped"
    page = Path(sweep.folder.uri, "leaderboard.html").read_text()
    assert "The sweep was stopped before its end. The command that started it runs the trials that are left." in page


@pytest.mark.thorough
def test_the_log_of_a_sweep_says_why_trials_stop_and_which_seeds_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "raysl")
    monkeypatch.setattr(start, "run_stage", _run_all)
    asha = {"scheduler": "asha", "seeds": 2}
    _sweep(tmp_path, monkeypatch, **asha).run(Signals())
    ends = [message for message in caplog.messages if " of " in message and message.startswith("trial_")]
    assert [end.partition(" ")[2] for end in ends] == [
        "ended: loss 1 (1 of 4)",
        "stopped: asha at epoch 1, loss 2 (2 of 3)",
        "ended: loss 1 (3 of 3)",
    ]
    assert "not run: 1 further seed of 1 choice that stopped early or failed" in caplog.messages
    caplog.clear()
    _sweep(tmp_path, monkeypatch, **asha).run(Signals())
    assert "the sweep is done: 3 trials ended before" in caplog.messages
    caplog.clear()
    _sweep(tmp_path, monkeypatch, scheduler="asha").run(Signals())
    (change,) = [message for message in caplog.messages if "seeds: 2 -> 1" in message]
    assert change.startswith("the sweep has changed since its last start: ")
