"""Runs of the command line in child processes, for tests that kill them."""

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import torch

SMALL = (
    "method.hidden_dim=32",
    "method.output_dim=16",
    "backbone.num_stages=2",
    "backbone.width=8",
    "data.limit=256",
    "train.batch_size=32",
    "train.epochs=5",
    "train.checkpoint_every=5st",
    "train.log_every=1st",
    "train.online_knn_every=null",
    "train.threads=1",
    "benchmarks=[]",
)


def start(storage: Path | str, name: str, *overrides: str) -> subprocess.Popen[str]:
    """Start `raysl pretrain` on a small problem of 40 steps."""
    command = [sys.executable, "-m", "raysl", "pretrain", "quickstart", *SMALL]
    command += [f"storage={storage}", f"name={name}", *overrides]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str], timeout: float = 150) -> str:
    """Wait for the end of a run; its output.

    Raises:
        AssertionError: if it failed.
    """
    output, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, output
    return output


def wait_for_step(run: Path, step: int, process: subprocess.Popen[str], timeout: float = 120) -> None:
    """Wait until the run has logged a step."""
    end = time.monotonic() + timeout
    while logged_step(run) < step:
        assert time.monotonic() < end, f"no step {step} within {timeout} s"
        assert process.poll() is None, f"the run ended before step {step}: {process.communicate()[0]}"
        time.sleep(0.05)


def logged_step(run: Path) -> int:
    """The step that was logged last; 0 before the first."""
    log = run / "metrics.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The run's training workers on a private cluster."""
    family = psutil.Process(process.pid).children(recursive=True)
    workers = [child for child in family if child.is_running() and "RayTrainWorker" in " ".join(child.cmdline())]
    assert workers, "no training worker is alive"
    return workers


def kill_worker(process: subprocess.Popen[str]) -> None:
    """SIGKILL one of the run's training workers."""
    workers_of(process)[-1].send_signal(signal.SIGKILL)


def kill_driver(process: subprocess.Popen[str]) -> None:
    """SIGKILL the driver and then whatever it had started, as when a machine loses its power."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in family:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    process.communicate()
    psutil.wait_procs(family, timeout=60)


def tensors(run: Path) -> dict[str, object]:
    """The state in the run's newest checkpoint."""
    newest = sorted(run.glob("checkpoint_*/train_state.pt"))[-1]
    state: dict[str, object] = torch.load(newest, weights_only=True)
    return state


def assert_same(left: object, right: object, path: str = "") -> None:
    """Fail at the first place where two states differ in a bit."""
    if isinstance(left, torch.Tensor):
        assert isinstance(right, torch.Tensor)
        assert torch.equal(left, right), path
    elif isinstance(left, dict):
        assert isinstance(right, dict)
        assert left.keys() == right.keys(), path
        for key in left:
            assert_same(left[key], right[key], f"{path}/{key}")
    elif isinstance(left, list | tuple):
        assert isinstance(right, list | tuple)
        assert len(left) == len(right), path
        for place, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_same(a, b, f"{path}/{place}")
    else:
        assert left == right, path
