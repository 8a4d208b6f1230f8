"""A run that is started again: the command that its report gives for that, and what a start prints."""

import sys
from pathlib import Path

import pytest

from raysl.checkpoint.checkpoint_folder import checkpoint_name
from raysl.config.load import load_config
from raysl.plan.setup import Setup
from raysl.pretraining import _command, pretrain
from raysl.runs.folder import RunFolder
from raysl.train.state import TrainState
from tests.runs.runs import SMALL


@pytest.mark.parametrize(
    ("argv", "again"),
    [
        (["/env/bin/raysl", "pretrain", "quickstart", "seed=1"], "raysl pretrain quickstart seed=1"),
        (["/ray/default_worker.py", "--node-ip-address=1"], "raysl pretrain {folder}/run.yaml"),
    ],
)
def test_a_run_from_python_is_started_again_by_its_settings(
    argv: list[str], again: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert " ".join(_command(RunFolder(str(tmp_path)))) == again.format(folder=tmp_path)


def test_settings_that_are_no_file_start_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ipykernel_launcher.py"])
    assert _command(RunFolder("memory://runs/mine")) == []


@pytest.mark.thorough
@pytest.mark.parametrize("show", [True, False])
def test_a_run_that_shows_nothing_leaves_its_result_to_the_caller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], show: bool
) -> None:
    config = load_config("quickstart", [*SMALL, f"storage={tmp_path}", "name=one", "train.epochs=1"])
    state = TrainState.create(Setup.of(config, 256, 10))
    state.step = 8
    RunFolder.of(config).claim(config)
    state.save(tmp_path / "one" / checkpoint_name(8), {})
    result = pretrain(config, show_progress=show)
    assert capsys.readouterr().out.startswith("checkpoint  ") == show
    assert result.checkpoint == str(tmp_path / "one" / checkpoint_name(8))
