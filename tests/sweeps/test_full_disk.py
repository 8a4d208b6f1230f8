"""Whole sweeps in which the disk of one trial, or of the leaderboard, is full, or the storage of one trial fails."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raysl.leaderboard.leaderboard import Leaderboard
from raysl.tune.trial import Trial
from tests.faults import Faults
from tests.runs.runs import SMALL

pytestmark = pytest.mark.slow

RATES = (0.1, 0.2, 0.3)
NAMES = [Trial({"optim.lr": rate}, 0).name for rate in RATES]
SPACE = f"scheduler: none\nmetric: loss\nmode: min\nconcurrent: 2\nspace: {{optim.lr: {{grid: {list(RATES)}}}}}\n"


def _command(folder: Path, *words: str) -> list[str]:
    (folder / "search.yaml").write_text(SPACE)
    return [sys.executable, "-m", "raysl", "sweep", str(folder / "search.yaml"), *SMALL, "name=s", *words]


def _start(folder: Path, mounts: str, log: Path, *more: str) -> subprocess.Popen[bytes]:
    """Start a sweep with mounts of its own; what it leaves in `s` is copied to `left` at its end."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not give a process other mounts than its own")
    command = _command(folder, f"storage={folder}", "train.epochs=2", *more)
    script = f'{mounts} && "$0" "$@"; code=$?; cp -r {folder}/s {folder}/left; exit $code'
    with log.open("wb") as output:
        return subprocess.Popen(["unshare", "--mount", "sh", "-c", script, *command], stdout=output, stderr=output)


def _finish(sweep: subprocess.Popen[bytes], log: Path) -> str:
    sweep.wait(timeout=400)
    said = log.read_text()
    assert sweep.returncode == 0, said
    assert "Traceback" not in said
    return said


def _wait_for(text: str, log: Path, sweep: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 300
    while text not in log.read_text():
        assert sweep.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


def test_a_trial_whose_disk_is_full_fails_alone_with_its_reason(tmp_path: Path) -> None:
    full, log = NAMES[1], tmp_path / "log"
    (tmp_path / "s" / full).mkdir(parents=True)
    sweep = _start(tmp_path, f"mount -t tmpfs -o size=64k none {tmp_path}/s/{full}", log, "retries=1")
    said = _finish(sweep, log)
    board = Leaderboard.load(str(tmp_path / "left"))
    assert board.facts.state == "done"
    runs = {run.trial: run for run in board.entries}
    assert {name: run.status for name, run in runs.items()} == {
        NAMES[0]: "finished",
        full: "failed",
        NAMES[2]: "finished",
    }
    assert "the disk is full" in runs[full].reason
    assert "\n" not in runs[full].reason
    lines = [line for line in said.splitlines() if line.startswith(full)]
    assert any("failed and is tried again (retry 1 of 1): " in line and "the disk is full" in line for line in lines)
    assert any("the disk is full" in line and line.endswith("the others go on") for line in lines)


def test_a_leaderboard_whose_disk_is_full_for_a_while_is_told_of_and_written_later(tmp_path: Path) -> None:
    folder, log = tmp_path / "s", tmp_path / "log"
    folder.mkdir()
    mounts = [f"mount -t tmpfs -o size=2m none {folder}"]
    for name in NAMES:
        (tmp_path / "elsewhere" / name).mkdir(parents=True)
        mounts.append(f"mkdir {folder}/{name} && mount --bind {tmp_path}/elsewhere/{name} {folder}/{name}")
    sweep = _start(tmp_path, " && ".join(mounts), log)
    _wait_for(f"{NAMES[0]} starts", log, sweep)
    filler = Path(f"/proc/{sweep.pid}/root{folder}/filler")
    with pytest.raises(OSError, match="No space left"):
        filler.write_bytes(bytes(4 << 20))
    _wait_for("the leaderboard is not written, and the trials go on: cannot write", log, sweep)
    filler.unlink()
    said = _finish(sweep, log)
    assert said.count("the leaderboard is not written") == 1
    assert "the leaderboard is written again" in said
    board = Leaderboard.load(str(tmp_path / "left"))
    assert (board.facts.state, [run.status for run in board.entries]) == ("done", ["finished"] * 3)


def test_a_trial_whose_storage_fails_for_a_while_goes_on_later_and_the_others_meanwhile(tmp_path: Path) -> None:
    faults, log, runs = Faults(tmp_path), tmp_path / "log", tmp_path / "runs"
    words = (f"storage=faulty://{runs}", "train.epochs=100", "train.checkpoint_every=10ep", "retries=0")
    environment = {**os.environ, **faults.environment()}
    with log.open("wb") as output:
        sweep = subprocess.Popen(_command(tmp_path, *words), stdout=output, stderr=output, env=environment)
    end = time.monotonic() + 200
    while not (runs / "s" / NAMES[0] / "metrics.jsonl").exists():
        assert sweep.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    faults.add("*", f"/s/{NAMES[0]}", times=None)
    _wait_for(f"{NAMES[0]} waits for its storage, and the others go on: ", log, sweep)
    _wait_for(f"{NAMES[2]} starts", log, sweep)
    faults.clear()
    said = _finish(sweep, log)
    assert said.count("waits for its storage") == 1
    board = Leaderboard.load(str(runs / "s"))
    assert (board.facts.state, [run.status for run in board.entries]) == ("done", ["finished"] * 3)
