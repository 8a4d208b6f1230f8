"""Whole runs whose local folder disappears for a while."""

import json
import re
import threading
import time
from pathlib import Path

import pytest

from raysl.cluster.board import Board
from raysl.errors import ConfigError
from raysl.runs.folder import PROBE_FILE, RunFolder
from raysl.runs.group_start import find_folder
from tests.runs.runs import assert_same, finish, kill_worker, start, tensors, wait_for_step


@pytest.mark.cluster
def test_a_folder_that_workers_do_not_see_is_a_wrong_input_at_first_and_waited_for_later(
    shared_ray: None, tmp_path: Path
) -> None:
    folder = RunFolder(str(tmp_path / "run"))
    folder.make()
    folder.sign = f"{folder.path}/{PROBE_FILE}"
    board = Board("one")
    with pytest.raises(ConfigError, match=re.escape(f"storage {folder.uri} is a local folder that the node ")):
        find_folder(folder, board)
    (tmp_path / "run" / PROBE_FILE).write_text("one")
    find_folder(folder, board)
    (tmp_path / "run").rename(tmp_path / "away")
    since = time.monotonic()
    back = threading.Timer(0.5, (tmp_path / "away").rename, [tmp_path / "run"])
    back.start()
    find_folder(folder, board)
    assert time.monotonic() - since >= 0.5
    back.join()
    board.clear()


@pytest.mark.slow
def test_a_worker_that_dies_while_the_folder_is_away_goes_on_when_it_is_back(tmp_path: Path) -> None:
    calm = start(tmp_path / "calm", "one", "train.epochs=40")
    finish(calm)
    storage, run = tmp_path / "disk", tmp_path / "disk" / "one"
    process = start(storage, "one", "train.epochs=40", "train.max_failures=1")
    wait_for_step(run, 22, process)
    storage.rename(tmp_path / "away")
    kill_worker(process)
    time.sleep(25)  # the fault itself: a new worker has started by then
    assert process.poll() is None
    assert not storage.exists()
    (tmp_path / "away").rename(storage)
    output = finish(process)
    assert f"the folder {run} has gone, or its file .lock; bring it back as it was" in output
    assert "do not share with the driver" not in output
    assert_same(tensors(tmp_path / "calm" / "one")["method"], tensors(run)["method"])
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 321))
