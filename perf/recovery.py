"""`python -m perf recovery`: seconds that a run loses when its training worker, or its driver, is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perf.harness import Numbers, goal_line, interleaved, last_lines, machine, medians, scratch_folder
from raysl.errors import ConfigError, RunFailed
from raysl.process.proc import PROC, command_line, descendants
from raysl.train.file_names import STARTUP_FILE

GOALS_S = {"worker": 8.0, "driver": 15.0}
TITLES = {"worker": "worker killed to next step", "driver": "driver killed: command to first step"}
SETTINGS = (
    "train.epochs=2000",  # more than are needed
    "train.log_every=1st",
    "train.checkpoint_every=10st",
    "train.online_knn_every=null",
    "benchmarks=[]",
)
LONGEST_WAIT_S = 300.0
UNDER_WAY_S = 3.0
"""Seconds of training after the first checkpoint before the worker is killed, so that the start is over."""


def measure(config: str = "quickstart", overrides: tuple[str, ...] = (), repeats: int = 3) -> Numbers:
    """Start `raysl pretrain`, kill its worker, wait for a step, kill its driver, start it again; anew each time.

    Returns:
        `recovery` (median seconds: `worker` from SIGKILL of a training worker to the next step, `driver` from the
        command that resumes a run, whose driver was killed with all its processes, to its first step), `repeats`,
        `environment`.
    """
    if not PROC.is_dir():
        raise ConfigError("this measurement kills a training worker, which it finds in /proc: run it on Linux")
    environment = machine() | {"config": config, "settings": [*SETTINGS, *overrides]}
    with scratch_folder() as folder:

        def seconds(name: str, repeat: int) -> dict[str, float]:
            run = folder / f"run-{repeat}"
            return _recover([config, *SETTINGS, *overrides, f"storage={folder}", f"name={run.name}"], run)

        repeats_s = [repeat["raysl"] for repeat in interleaved(["raysl"], repeats, seconds, "recovery, seconds")]
    return {"recovery": medians(repeats_s), "repeats": repeats_s, "environment": environment}


def table(numbers: Numbers) -> str:
    """Format the result of `measure` as text."""
    width = max(map(len, TITLES.values())) + 2
    return "\n".join(
        goal_line(f"{TITLES[name]:<{width}}", [repeat[name] for repeat in numbers["repeats"]], goal, " s", ".1f")
        for name, goal in GOALS_S.items()
    )


def _recover(settings: list[str], run: Path) -> dict[str, float]:
    with _started(settings, run) as process:
        _wait(process, run, lambda: any(run.glob("checkpoint_*/meta.json")), "no checkpoint")
        time.sleep(UNDER_WAY_S)
        before = _first_step(run)
        killed = time.time()
        os.kill(_worker(process), signal.SIGKILL)
        _wait(process, run, lambda: _first_step(run) > before, "no step after its worker was killed")
        worker_s = _first_step(run) - killed
    started = time.time()
    with _started(settings, run) as process:
        _wait(process, run, lambda: _first_step(run) > started, "no step after its driver was killed")
        return {"worker": worker_s, "driver": _first_step(run) - started}


@contextmanager
def _started(settings: list[str], run: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a run in a child process, which is killed at the end with all its children, as by a loss of power."""
    command = [sys.executable, "-m", "raysl", "pretrain", *settings]
    with run.with_suffix(".log").open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        for pid in [process.pid, *descendants(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _wait(process: "subprocess.Popen[bytes]", run: Path, is_so: Callable[[], bool], failure: str) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + LONGEST_WAIT_S
    while not is_so():
        code = process.poll()
        if code is not None or time.monotonic() > end:
            output = last_lines(run.with_suffix(".log").read_text(errors="replace"))
            how = f"within {LONGEST_WAIT_S:.0f} s" if code is None else f"before it ended with code {code}"
            raise RunFailed(f"the run {run.name}: {failure} {how}:\n{output}")
        time.sleep(0.02)


def _first_step(run: Path) -> float:
    """Return when the newest worker had done its first step, in seconds since the epoch; 0 before that."""
    path = run / STARTUP_FILE
    return path.stat().st_mtime if path.exists() else 0.0


def _worker(process: "subprocess.Popen[bytes]") -> int:
    workers = [pid for pid in descendants(process.pid) if "RayTrainWorker" in command_line(pid)]
    if not workers:
        raise RunFailed("no training worker of the run is alive")
    return workers[-1]
