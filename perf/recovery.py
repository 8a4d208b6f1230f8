"""`python -m perf recovery`: seconds that a run loses when its training worker, or its driver, is killed."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from perf.numbers import machine, medians, seconds_line
from raysl.errors import ConfigError, RunFailed
from raysl.process.proc import PROC, command_line, descendants
from raysl.train.files import STARTUP_FILE

log = logging.getLogger("raysl")

GOALS_S = {"worker": 15.0, "driver": 20.0}
TITLES = {"worker": "worker killed to next step", "driver": "driver killed: command to first step"}
SETTINGS = (
    "train.epochs=2000",  # more than are needed
    "train.log_every=1st",
    "train.checkpoint_every=10st",
    "train.online_knn_every=null",
    "benchmarks=[]",
)
LONGEST_WAIT_S = 300.0


def measure_recovery(config: str = "quickstart", overrides: tuple[str, ...] = (), repeats: int = 3) -> dict[str, Any]:
    """Start `raysl pretrain`, kill its worker, wait for a step, kill its driver, start it again; anew each time.

    Args:
        config: packaged name or file.
        overrides: settings on top of a long run with a checkpoint every ten steps.
        repeats: runs.

    Returns:
        `recovery` (median seconds: `worker` from SIGKILL of a training worker to the next step, `driver` from the
        command that resumes a run, whose driver was killed with all its processes, to its first step), `repeats`,
        `environment`.

    Raises:
        ConfigError: if this system has no /proc, in which workers are found.
        RunFailed: if a run fails, or takes too long.
    """
    if not PROC.is_dir():
        raise ConfigError("this measurement kills a training worker, which it finds in /proc: run it on Linux")
    environment = machine() | {"config": config, "settings": [*SETTINGS, *overrides]}
    measured = []
    with tempfile.TemporaryDirectory(prefix="raysl_speed_") as folder:
        for repeat in range(repeats):
            words = [config, *SETTINGS, *overrides, f"storage={folder}", f"name=run-{repeat}"]
            measured.append(_recover(words, Path(folder) / f"run-{repeat}"))
            shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in measured[-1].items())
            log.info("recovery %d of %d: %s", repeat + 1, repeats, shown)
    return {"recovery": medians(measured), "repeats": measured, "environment": environment}


def recovery_table(numbers: dict[str, Any]) -> str:
    """Format the result of `measure_recovery` as text."""
    width = max(map(len, TITLES.values())) + 2
    return "\n".join(
        seconds_line(f"{TITLES[name]:<{width}}", [repeat[name] for repeat in numbers["repeats"]], goal)
        for name, goal in GOALS_S.items()
    )


def _recover(words: list[str], run: Path) -> dict[str, float]:
    with _started(words, run) as process:
        _wait(process, run, lambda: any(run.glob("checkpoint_*/meta.json")), "no checkpoint")
        before = _first_step(run)
        killed = time.time()
        os.kill(_worker(process), signal.SIGKILL)
        _wait(process, run, lambda: _first_step(run) > before, "no step after its worker was killed")
        lost_by_worker = _first_step(run) - killed
    started = time.time()
    with _started(words, run) as process:
        _wait(process, run, lambda: _first_step(run) > started, "no step after its driver was killed")
        return {"worker": lost_by_worker, "driver": _first_step(run) - started}


@contextmanager
def _started(words: list[str], run: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A run in a child process, which is killed at the end with all its children, as by a loss of power."""
    command = [sys.executable, "-m", "raysl", "pretrain", *words]
    with _log_of(run).open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        for pid in [process.pid, *descendants(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _wait(process: "subprocess.Popen[bytes]", run: Path, is_so: Callable[[], bool], failure: str) -> None:
    """Wait until a condition holds.

    Raises:
        RunFailed: if the run ends before, or it takes minutes.
    """
    end = time.monotonic() + LONGEST_WAIT_S
    while not is_so():
        code = process.poll()
        if code is not None or time.monotonic() > end:
            output = "\n".join(_log_of(run).read_text(errors="replace").splitlines()[-12:])
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


def _log_of(run: Path) -> Path:
    return run.with_suffix(".log")
