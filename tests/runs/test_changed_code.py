"""A run and the files of its user: moved as with a job's package, changed, and shown by their short names."""

import logging
import shutil
from pathlib import Path

import pytest

from raysl import user_files
from raysl.checkpoint.checkpoint_folder import newest_whole
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.leaderboard.run_list import find_runs
from raysl.plan.setup import Setup
from raysl.runs.folder import RunFolder
from raysl.train.file_names import parse_events
from raysl.train.state import TrainState, check_resumable
from tests.test_trust import SETTINGS

MINE = "from raysl.methods.simclr import SimCLR\n\nclass Mine(SimCLR):\n    pass\n"


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """The folder of a run at step 5, started where its method is `mine.py`."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "mine.py").write_text(MINE)
    config = settings(tmp_path / "first", monkeypatch)
    folder = RunFolder.of(config)
    folder.claim(config)
    state = TrainState.create(Setup.of(config, 64, 10))
    state.step = 5
    state.save(Path(folder.path) / "checkpoint_000000005", {})
    return folder


def settings(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str = "mine.py:Mine") -> RunConfig:
    """The settings of the same command in a folder, read by a new process."""
    monkeypatch.setattr(user_files, "_read", {})
    monkeypatch.chdir(folder)
    return load_config("quickstart", [*SETTINGS, f"storage={folder.parent}/runs", "name=one", f"method.name={name}"])


def start(folder: RunFolder, config: RunConfig) -> list[str]:
    """Claim the folder as a second start does; the new events."""
    newest = newest_whole(folder, ())
    folder.claim(config, newest)
    check_resumable(newest.meta, folder.uri, config)
    return [note["event"] for note in parse_events(folder.read_if_there("events.jsonl"))]


@pytest.mark.thorough
def test_a_run_goes_on_where_its_own_method_lies_in_the_package_of_another_job(
    first: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.move(tmp_path / "first", tmp_path / "_ray_pkg_f331")
    assert start(first, settings(tmp_path / "_ray_pkg_f331", monkeypatch)) == []


@pytest.mark.thorough
def test_a_run_goes_on_with_the_same_file_in_a_folder_of_another_name(
    first: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tmp_path / "first", tmp_path / "second" / "methods")
    config = settings(tmp_path / "second", monkeypatch, "methods/mine.py:Mine")
    assert start(first, config) == []
    assert "methods/mine.py:Mine" in first.read("run.yaml").decode()


def test_another_file_of_another_name_is_another_setting(
    first: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tmp_path / "first", tmp_path / "second" / "methods")
    (tmp_path / "second" / "methods" / "mine.py").write_text(f"{MINE}\n")
    with pytest.raises(ConfigError, match=r"\n  method\.name: mine\.py:Mine -> methods/mine\.py:Mine\n"):
        start(first, settings(tmp_path / "second", monkeypatch, "methods/mine.py:Mine"))


@pytest.mark.thorough
def test_a_file_that_was_changed_between_two_starts_is_one_line_once(
    first: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "raysl")
    (tmp_path / "first" / "mine.py").write_text(f"{MINE}\n    number = 2\n")
    config = settings(tmp_path / "first", monkeypatch)
    (line,) = start(first, config)
    assert line.startswith("goes on with changed code at step 5: mine.py (SHA-256 ")
    assert caplog.messages.count(line) == 1
    assert start(first, config) == [line]


def test_a_run_is_shown_by_the_short_name_of_its_method(
    first: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config("quickstart", [*SETTINGS, f"storage={tmp_path}/runs", "name=two"])
    far = tmp_path.parent / f"{tmp_path.name}_far.py"
    far.write_text(MINE)
    RunFolder.of(config).claim(load_config("quickstart", [*SETTINGS, f"method.name={far}:Mine", "name=two"]))
    shown = {run.name: run.method for run in find_runs(f"{tmp_path}/runs")}
    assert shown == {"one": "mine.py:Mine", "two": f"{far.name}:Mine"}
