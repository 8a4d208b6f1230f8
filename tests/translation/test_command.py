"""`raysl convert-config` writes a file that the other commands take."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.console import Console

FOLDER = Path(__file__).parent


@pytest.mark.thorough
def test_what_it_prints_is_a_configuration(console: Console, tmp_path: Path) -> None:
    code, printed, _ = console("convert-config", str(FOLDER / "moco.yaml"))
    assert code == 0
    (tmp_path / "mine.yaml").write_text(printed)
    code, told, _ = console("config", str(tmp_path / "mine.yaml"))
    assert code == 0
    assert "queue_size: 65536" in told


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["simclr", "moco", "swav", "linear"])
def test_raysl_plan_takes_what_it_writes(name: str, console: Console, tmp_path: Path) -> None:
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
    code, told, _ = console("convert-config", str(FOLDER / f"{name}.yaml"), *words, "--out", mine)
    assert code == 0, told
    assert f"raysl plan {mine}" in told
    code, told, wrong = console("plan", mine)
    assert code == 0, wrong
    assert "8 to train on" in told


def test_a_file_that_is_there_is_not_overwritten(console: Console, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("kept")
    code, _, wrong = console("convert-config", str(FOLDER / "moco.yaml"), "--out", str(mine))
    assert (code, mine.read_text()) == (2, "kept")
    assert "is there already" in wrong
