"""What the leaderboard tells of a run: what it has logged, up to where it was judged."""

import json
import math
from pathlib import Path

from raysl.leaderboard.entry import Objective
from raysl.leaderboard.leaderboard import MOST_POINTS
from raysl.storage import Folder
from raysl.sweeps.entries import entry_of
from raysl.sweeps.judging import Verdict
from raysl.sweeps.logged import Logged
from raysl.sweeps.record import Note, Record, look
from raysl.sweeps.trial import Trial

LOSS = Objective("loss", "min")
LINES = [
    {"step": 4, "epoch": 0.5, "loss": 3.0},
    {"step": 8, "epoch": 1.0, "loss": 2.0, "step_s": 0.5, "knn_top1": 40.0},
    {"step": 12, "epoch": 1.5, "loss": math.nan, "step_s": 0.25},
    {"step": 16, "epoch": 2.0, "loss": 1.0, "step_s": 0.25, "knn_top1": 60.0},
]


def _record(folder: Path, epochs: int = 2, lines: list[dict[str, float]] = LINES) -> Record:
    record = Record(Trial({"optim.lr": 0.1}, 0), epochs)
    run = folder / record.trial.name
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    look(record, Folder(str(run)), LOSS, {})
    return record


def test_logged_numbers_have_the_epochs_at_which_they_were_logged() -> None:
    logged = Logged(LINES)
    assert logged.reached == 2.0
    assert logged.newest() == {"loss": 1.0, "step_s": 0.25, "knn_top1": 60.0}
    assert logged.newest(1.4) == {"loss": 2.0, "step_s": 0.5, "knn_top1": 40.0}
    assert logged.newest(0.4) == {}
    assert logged.curve("loss") == [(0.5, 3.0), (1.0, 2.0), (2.0, 1.0)], "what is not finite is no point"
    assert logged.curve("knn_top1", 1.0) == [(1.0, 40.0)]
    assert logged.curve("nothing") == []
    assert logged.seconds() == [(1.0, 4.0), (1.5, 5.0), (2.0, 6.0)]
    assert (Logged().reached, Logged().newest(), Logged().seconds()) == (0.0, {}, [])


def test_a_run_that_goes_on_has_its_newest_numbers_and_no_note(tmp_path: Path) -> None:
    record = _record(tmp_path)
    told = entry_of(record, 3, Folder(str(tmp_path)))
    assert (told.status, told.epoch, told.index, told.metrics["knn_top1"]) == ("waiting", 2.0, 3, 60.0)
    assert record.course.epochs == [0.5, 1.0, 1.5, 2.0]
    assert set(told.course) == {"loss", "knn_top1", "seconds"}


def test_of_a_run_that_was_stopped_nothing_is_told_that_came_later(tmp_path: Path) -> None:
    record = _record(tmp_path)
    record.verdict = Verdict(1.0, "behind the others at epoch 1")
    told = entry_of(record, 0, Folder(str(tmp_path)))
    assert (told.status, told.epoch, told.reason) == ("stopped", 1.0, "behind the others at epoch 1")
    assert told.metrics == {"loss": 2.0, "step_s": 0.5, "knn_top1": 40.0}
    assert told.course["seconds"] == [(1.0, 4.0)]


def test_a_part_of_a_run_knows_nothing_of_what_its_run_logged_behind_it(tmp_path: Path) -> None:
    record = _record(tmp_path, epochs=1)
    assert record.logged.reached == 1.0
    assert record.course.values == [3.0, 2.0]


def test_measured_numbers_come_before_logged_ones_of_the_same_name(tmp_path: Path) -> None:
    record = _record(tmp_path)
    record.note = Note("finished", 2, 2.0, {"knn_top1": 61.0, "knn/top1": 70.0})
    told = entry_of(record, 0, Folder(str(tmp_path)))
    assert (told.status, told.metrics["knn_top1"], told.metrics["knn/top1"]) == ("finished", 61.0, 70.0)


def test_long_curves_keep_their_ends(tmp_path: Path) -> None:
    lines = [{"step": step, "epoch": step / 10, "loss": 1 / step} for step in range(1, 5001)]
    told = entry_of(_record(tmp_path, 500, lines), 0, Folder(str(tmp_path)))
    points = told.course["loss"]
    assert len(points) == MOST_POINTS
    assert (points[0], points[-1]) == ((0.1, 1.0), (500.0, 1 / 5000))
