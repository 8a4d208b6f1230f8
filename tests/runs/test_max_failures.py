"""Runs whose processes are killed more often than `train.max_failures`, with and without progress between."""

import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.runs.runs import finish, kill_worker, logged_step, start, wait_for_step

pytestmark = pytest.mark.slow


def newest(run: Path) -> int:
    """The step of the newest checkpoint; 0 without one."""
    return max((int(path.parent.name.rpartition("_")[2]) for path in run.glob("checkpoint_*/meta.json")), default=0)


def wait_for_save(run: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a checkpoint is newer than those of now."""
    before, end = newest(run), time.monotonic() + 120
    while newest(run) <= before:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, f"no checkpoint after step {before}"
        time.sleep(0.02)


def kill_controller(process: subprocess.Popen[str]) -> None:
    """SIGKILL Ray Train's controller, as the memory monitor of Ray does."""
    family = psutil.Process(process.pid).children(recursive=True)
    controllers = [child for child in family if "TrainController" in " ".join(child.cmdline())]
    assert controllers, "no controller is alive"
    controllers[0].kill()


def test_kills_with_saved_steps_between_them_do_not_count(tmp_path: Path) -> None:
    run = tmp_path / "hit"
    process = start(tmp_path, "hit", "train.max_failures=1", "train.epochs=40")
    for _ in range(3):
        wait_for_save(run, process)
        kill_worker(process)
    finish(process)
    assert logged_step(run) == 320


def test_a_lost_controller_is_replaced_and_counts_as_a_failure(tmp_path: Path) -> None:
    run = tmp_path / "hit"
    process = start(tmp_path, "hit", "train.max_failures=1", "train.epochs=40")
    wait_for_step(run, 7, process)
    kill_controller(process)
    output = finish(process)
    assert "lost the controller of the run" in output
    assert "retry 1 of 1" in output
    assert "going on at step" in output
    assert "no CPU of the cluster is free" not in output, "nothing holds those of the former workers"
    assert "Traceback" not in output
    assert logged_step(run) == 320

    process = start(tmp_path, "none", "train.max_failures=0")
    wait_for_step(tmp_path / "none", 2, process)
    kill_controller(process)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "lost the controller of the run" in output
    assert "no retry is left, 1 failure; start the same command again to resume" in output
