"""How a start of a sweep ends that was asked to end."""

from pathlib import Path

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


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepRun:
    """A sweep of two trials on no cluster."""
    base = load_config("quickstart", ["train.epochs=4", f"storage={tmp_path}", "name=s", "benchmarks=[]"])
    tree = {"space": {"optim.lr": {"grid": [0.1, 0.2]}}, "metric": "loss", "mode": "min", "scheduler": "none"}
    run = SweepRun.of(base, from_tree(tree, ""))
    monkeypatch.setattr(start, "connect", lambda **_: None)
    monkeypatch.setattr(start.SweepStart, "_room", lambda self: (1, run.bases))
    monkeypatch.setattr(run.progress, "outlook", lambda *_: "")
    return run


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
    with pytest.raises(Stopped, match="stopped after 1 trials; the same command runs those that are left"):
        sweep.run(Signals())
    assert Leaderboard.load(sweep.folder.uri).facts.state == "stopped"
    page = Path(sweep.folder.uri, "leaderboard.html").read_text()
    assert "The sweep was stopped before its end. The command that started it runs the trials that are left." in page
