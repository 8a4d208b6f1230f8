"""What the leaderboard tells of a run: what it has logged, up to where it was judged."""

import json
import math
from pathlib import Path

import pytest

from raysl.config.load import load_config
from raysl.errors import RunFailed
from raysl.leaderboard.leaderboard import MOST_POINTS
from raysl.leaderboard.logged import Logged
from raysl.storage.folder import Folder
from raysl.sweeps.record import Record
from raysl.tune import run_trial
from raysl.tune.run_trial import failed_note
from raysl.tune.trial import ALONE, Note, Trial

LINES = [
    {"step": 4, "epoch": 0.5, "loss": 3.0},
    {"step": 8, "epoch": 1.0, "loss": 2.0, "step_s": 0.5, "knn_k20_top1": 40.0},
    {"step": 12, "epoch": 1.5, "loss": math.nan, "step_s": 0.25},
    {"step": 16, "epoch": 2.0, "loss": 1.0, "step_s": 0.25, "knn_k20_top1": 60.0},
]


def _record(folder: Path, epochs: int = 2, lines: list[dict[str, float]] = LINES) -> Record:
    record = Record(Trial({"optim.lr": 0.1}, 0), epochs, {})
    run = folder / record.trial.name
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record.refresh(Folder(str(run)))
    return record


def test_logged_numbers_have_the_epochs_at_which_they_were_logged() -> None:
    logged = Logged(LINES)
    assert logged.reached == 2.0
    assert logged.newest() == {"loss": 1.0, "step_s": 0.25, "knn_k20_top1": 60.0}
    assert logged.newest(1.4) == {"loss": 2.0, "step_s": 0.5, "knn_k20_top1": 40.0}
    assert logged.newest(0.4) == {}
    assert logged.curve("loss") == [(0.5, 3.0), (1.0, 2.0), (2.0, 1.0)], "what is not finite is no point"
    assert logged.curve("knn_k20_top1", 1.0) == [(1.0, 40.0)]
    assert logged.curve("nothing") == []
    assert logged.seconds() == [(1.0, 4.0), (1.5, 5.0), (2.0, 6.0)]
    assert Logged([{"step": 1, "epoch": 1, "step_s": 1.0}, {"step": 2, "epoch": 2, "step_s": 3.0}]).costs() == {
        "step_s": 2.0
    }
    assert (Logged().reached, Logged().newest(), Logged().seconds()) == (0.0, {}, [])


def test_a_run_that_goes_on_has_its_newest_numbers_and_no_note(tmp_path: Path) -> None:
    record = _record(tmp_path)
    entry = record.entry(3, Folder(str(tmp_path)), {})
    assert (entry.status, entry.epoch, entry.index, entry.metrics["knn_k20_top1"]) == ("waiting", 2.0, 3, 60.0)
    assert set(entry.course) == {"loss", "knn_k20_top1", "seconds"}


def test_of_a_run_that_was_stopped_nothing_is_told_that_came_later(tmp_path: Path) -> None:
    record = _record(tmp_path)
    record.note = Note("stopped", 2, 1.0, {"loss": 2.0}, reason="behind the others at epoch 1")
    entry = record.entry(0, Folder(str(tmp_path)), {})
    assert (entry.status, entry.epoch, entry.reason) == ("stopped", 1.0, "behind the others at epoch 1")
    assert entry.metrics == {"loss": 2.0, "step_s": 0.5, "knn_k20_top1": 40.0}
    assert entry.course["seconds"] == [(1.0, 4.0)]


def test_a_failed_run_has_its_last_numbers_with_their_epoch_and_all_that_it_cost(tmp_path: Path) -> None:
    base = load_config("quickstart", [f"storage={tmp_path}", "train.epochs=4"])
    record = _record(tmp_path, 4)
    config = record.trial.run_of({ALONE: base}, str(tmp_path))
    Folder(str(tmp_path / record.trial.name)).write("costs.json", b'{"seconds": 150.0, "began": 1.0}')
    record.note = failed_note(config, "it is out of memory")
    record.failure = record.note.reason
    entry = record.entry(0, Folder(str(tmp_path)), {})
    assert (entry.status, entry.epoch, entry.metrics["knn_k20_top1"]) == ("failed", 2.0, 60.0)
    assert entry.costs == {"seconds": 150.0, "step_s": 0.25}
    assert entry.started == 1.0
    record.note.write(Folder(entry.path))
    assert Note.read(Folder(entry.path)) == record.note


def test_numbers_and_intervals_that_are_not_finite_are_left_out_of_a_note(tmp_path: Path) -> None:
    intervals = {"loss": (math.nan, math.nan), "top1": (50.0, 70.0)}
    Note("finished", 1, 1.0, {"loss": 2.0, "rank": math.nan}, intervals=intervals).write(Folder(str(tmp_path)))
    note = Note.read(Folder(str(tmp_path)))
    assert note is not None
    assert (note.metrics, note.intervals) == ({"loss": 2.0}, {"top1": (50.0, 70.0)})


def test_a_start_that_fails_and_is_tried_again_keeps_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("quickstart", [f"storage={tmp_path}", "name=s", "train.epochs=4"])

    def broken(config: object, stop: object) -> object:
        raise RunFailed("the loss is not finite")

    monkeypatch.setattr(run_trial, "_trained", broken)
    with pytest.raises(RunFailed):
        run_trial.run_trial(config, {})
    note = Note.read(Folder(str(tmp_path / "s")))
    assert note is not None
    assert (note.status, note.reason) == ("paused", "the loss is not finite")


def test_measured_numbers_come_before_logged_ones_of_the_same_name(tmp_path: Path) -> None:
    record = _record(tmp_path)
    record.note = Note("finished", 2, 2.0, {"knn_k20_top1": 61.0, "knn/k20/top1": 70.0})
    entry = record.entry(0, Folder(str(tmp_path)), {})
    assert (entry.status, entry.metrics["knn_k20_top1"], entry.metrics["knn/k20/top1"]) == ("finished", 61.0, 70.0)


def test_long_curves_keep_their_ends(tmp_path: Path) -> None:
    lines = [{"step": step, "epoch": step / 10, "loss": 1 / step} for step in range(1, 5001)]
    entry = _record(tmp_path, 500, lines).entry(0, Folder(str(tmp_path)), {})
    points = entry.course["loss"]
    assert len(points) == MOST_POINTS
    assert (points[0], points[-1]) == ((0.1, 1.0), (500.0, 1 / 5000))
