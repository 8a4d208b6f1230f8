"""The command that a report gives to start its run again."""

import sys
from pathlib import Path

import pytest

from raysl.train.folder.run_folder import RunFolder
from raysl.train.pretrain import _command


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
