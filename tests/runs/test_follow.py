"""What the driver shows of a run that trains elsewhere."""

import json
import logging
import time
from pathlib import Path

import pytest

from raysl.config.load import load_config
from raysl.plan.plan import TrainPlan
from raysl.process.waiting import Waiting
from raysl.runs.folder import RunFolder
from raysl.runs.follow import _Follower
from raysl.train.file_names import METRICS_FILE, STARTUP_FILE


def log_steps(folder: RunFolder, *steps: int) -> None:
    folder.write(METRICS_FILE, "".join(json.dumps({"step": step, "loss": 1.0}) + "\n" for step in steps).encode())


def test_progress_after_a_resume_and_after_a_loss_shows_only_steps_that_were_done_since(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "raysl")
    folder = RunFolder(str(tmp_path))
    log_steps(folder, 160, 170)
    follower = _Follower(folder, TrainPlan.from_config(load_config("quickstart"), 1000), Waiting(time.time()), 178)
    folder.write(STARTUP_FILE, b'{"total": 1.0}')
    follower.poll()
    assert follower.view is not None
    follower.view.every_s = 0.0
    log_steps(folder, 160, 170, 180)
    follower.poll()
    log_steps(folder, 160, 170, 180, 190)
    follower.poll()
    log_steps(folder, 160, 170, 180)  # a worker was lost; its group goes on from step 185
    follower.poll()
    log_steps(folder, 160, 170, 180, 190)
    follower.poll()
    follower.close()
    steps = [line.split()[1].partition("/")[0] for line in caplog.messages if line.startswith("step ")]
    assert steps == ["180", "190", "190"]
