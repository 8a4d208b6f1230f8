"""A sweep goes on where its ended trials were trained on the images that there are now."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from raysl.components import resolve
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.data.dataset_note import DATASET_FILE, DatasetNote
from raysl.errors import ConfigError
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.sweeps.load import from_tree
from raysl.sweeps.record import Record
from raysl.sweeps.run import SweepRun
from raysl.sweeps.schema import SweepConfig
from raysl.tune.trial import Note
from tests.data.sources.test_versions import later, table

TREE = {"metric": "loss", "mode": "min", "scheduler": "none", "benchmarks": []}
LR = {"optim.lr": {"grid": [0.1, 0.2, 0.3]}}
Change = Callable[[DatasetNote], DatasetNote]


@pytest.fixture(autouse=True)
def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**settings: object) -> None:
        raise AssertionError("the sweep went on to run trials")

    monkeypatch.setattr("raysl.sweeps.start.connect", refuse)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three images with their labels."""
    (tmp_path / "data").mkdir()
    table(tmp_path / "data" / "train.parquet", [0, 1, 2])
    return tmp_path / "data" / "train.parquet"


def _base(file: Path, *more: str) -> RunConfig:
    small = ["train.epochs=1", "train.batch_size=2", "backbone.width=4", "name=s", f"storage={file.parent.parent}"]
    return load_config("quickstart", [*small, "data=parquet", f"data.path={file.parent}", *more])


def _sweep(file: Path, *more: str, **tree: object) -> SweepRun:
    return SweepRun.of(_base(file, *more), from_tree({**TREE, "space": LR, **tree}, ""))


def _records(run: SweepRun) -> list[Record]:
    run.current_board()
    return list(run.ledger.records.values())


def _end(run: SweepRun, records: list[Record], change: Change = lambda note: note, status: str = "finished") -> None:
    """Have trials end on the images that there are now."""
    for record in records:
        data = record.trial.run_of(run.bases, run.folder.uri).data
        note = DatasetNote.of(resolve("source", data.name)(data).required("train"), epoch_len=1)
        folder = run.folder.child(record.trial.name)
        folder.make()
        folder.write(DATASET_FILE, json.dumps(asdict(change(note))).encode())
        Note(status, 1, 1.0, {"loss": 2.5}).write(folder)  # type: ignore[arg-type]


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "ended on" in line]


def _finished(run: SweepRun) -> Leaderboard:
    board = run.run(None)
    assert {entry.status for entry in board.entries} == {"finished"}
    return board


@pytest.mark.thorough
def test_a_sweep_whose_labels_have_changed_is_refused_with_what_changed(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = _sweep(file)
    _end(run, _records(run))
    _finished(_sweep(file))
    assert _told(caplog) == []
    table(file, [1, 2, 0])
    with pytest.raises(ConfigError, match=r"^3 trials of the sweep 's' ended on other training images") as refused:
        _sweep(file).run(None)
    told = str(refused.value).splitlines()
    assert told[1:-1] == ["  as many training images as before, but other labels"]
    assert "another name=, or set data.changed=accept" in told[-1]
    assert len(_finished(_sweep(file, "data.changed=accept")).entries) == 3
    (line,) = _told(caplog)
    assert line.startswith("3 trials ended on other training images than there are now (as many")
    table(file, [0, 1, 2])
    _finished(_sweep(file))


@pytest.mark.thorough
def test_trials_that_ended_behind_the_first_one_that_is_left_are_compared_too(file: Path) -> None:
    run = _sweep(file)
    _end(run, _records(run)[2:])
    table(file, [0, 1, 2, 0], (0, 1, 2, 3))
    with pytest.raises(ConfigError, match=r"^1 trial of the sweep 's' ended[^\n]*\n  training images: 3 -> 4\n"):
        _sweep(file).run(None)


@pytest.mark.thorough
def test_files_that_were_touched_are_told_of_in_one_line(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = _sweep(file)
    _end(run, _records(run))
    later(file)
    _finished(_sweep(file))
    (line,) = _told(caplog)
    assert line.startswith("files of the training images were written again, as by a copy, since 3 trials ended on")


@pytest.mark.thorough
def test_the_notes_of_an_older_raysl_are_passed_over(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = _sweep(file)
    first, *others = _records(run)
    _end(run, [first, *others], lambda note: replace(note, content={}, written=""))
    run.folder.child(first.trial.name).remove(DATASET_FILE)
    table(file, [1, 2, 0])
    _finished(_sweep(file))
    assert _told(caplog) == []


@pytest.mark.thorough
def test_trials_with_another_batch_have_the_same_images(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = _sweep(file)
    _end(run, _records(run), lambda note: replace(note, epoch_len=7))
    _finished(_sweep(file))
    assert _told(caplog) == []


@pytest.mark.thorough
def test_trials_that_have_not_ended_are_left_to_their_runs(file: Path) -> None:
    run = _sweep(file)
    _end(run, _records(run), status="paused")
    table(file, [1, 2, 0])
    with pytest.raises(AssertionError, match="went on to run trials"):
        _sweep(file).run(None)


@pytest.mark.thorough
def test_trials_with_data_settings_of_their_own_are_passed_over(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    tree = {"space": {"data.limit": {"grid": [2, 3]}}}
    run = _sweep(file, **tree)
    _end(run, _records(run))
    table(file, [1, 2, 0])
    _finished(_sweep(file, **tree))
    assert _told(caplog) == []


def _two(file: Path, *names: str) -> SweepRun:
    """Configurations of the file, and of scikit-learn's digits."""
    starts = {
        "own": _base(file),
        "digits": load_config("quickstart", ["train.epochs=1", "train.batch_size=2", "data.limit=8"]),
    }
    sweep = SweepConfig(configs=list(names), metric="loss", mode="min", scheduler="none", benchmarks=[], space=LR)
    return SweepRun.of(_base(file), sweep, {name: starts[name] for name in names})


@pytest.mark.thorough
def test_each_configuration_is_compared_with_its_own_dataset(file: Path) -> None:
    run = _two(file, "own", "digits")
    _end(run, _records(run))
    _finished(_two(file, "own", "digits"))
    table(file, [1, 2, 0])
    with pytest.raises(ConfigError, match=r"^3 trials of the sweep 's' ended[^\n]*\n  own: as many .* other labels\n"):
        _two(file, "own", "digits").run(None)
    assert len(_finished(_two(file, "digits")).entries) == 3, "those that are left out stand in no table"
