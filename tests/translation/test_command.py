"""`raysl convert-config` writes a file that the other commands take."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raysl import cli

FOLDER = Path(__file__).parent


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["raysl", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0), *capsys.readouterr()


def test_what_it_prints_is_a_configuration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, printed, _ = run(monkeypatch, capsys, "convert-config", str(FOLDER / "moco.yaml"))
    assert code == 0
    (tmp_path / "mine.yaml").write_text(printed)
    code, told, _ = run(monkeypatch, capsys, "config", str(tmp_path / "mine.yaml"))
    assert code == 0
    assert "queue_size: 65536" in told


@pytest.mark.parametrize("name", ["simclr", "moco", "swav", "linear"])
def test_raysl_plan_takes_what_it_writes(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for part in ("train", "val"):
        for label in ("a", "b"):
            folder = tmp_path / "images" / part / label
            folder.mkdir(parents=True)
            for number in range(4):
                Image.fromarray(np.full((8, 8, 3), 40 * number, np.uint8)).save(folder / f"{number}.png")
    mine = str(tmp_path / "mine.yaml")
    words = [f"data={{name: image_folder, path: {tmp_path / 'images'}}}", "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=8"]
    words += ["config.DISTRIBUTED={NUM_NODES: 1, NUM_PROC_PER_NODE: 1}", f"storage={tmp_path}"]
    words += ["method.prototypes=[4]"] if name == "swav" else []
    code, told, _ = run(monkeypatch, capsys, "convert-config", str(FOLDER / f"{name}.yaml"), *words, "--out", mine)
    assert code == 0, told
    assert f"raysl plan {mine}" in told
    code, told, wrong = run(monkeypatch, capsys, "plan", mine)
    assert code == 0, wrong
    assert "8 to train on" in told


def test_a_file_that_is_there_is_not_overwritten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("kept")
    code, _, wrong = run(monkeypatch, capsys, "convert-config", str(FOLDER / "moco.yaml"), "--out", str(mine))
    assert (code, mine.read_text()) == (2, "kept")
    assert "is there already" in wrong
