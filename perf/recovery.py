"""`python -m perf recovery`: seconds that a run loses when its training worker, or its driver, is killed.

Another version of raysl can take part; it is measured in turns with the present one.
"""

import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from perf.numbers import machine, medians, rotated, seconds_line
from perf.versions import BEFORE, NOW, Version, ratio_line, versions
from raysl.errors import ConfigError, RunFailed
from raysl.process.proc import PROC, command_line, descendants
from raysl.train.files import STARTUP_FILE

log = logging.getLogger("raysl")

GOALS_S = {"worker": 8.0, "driver": 15.0}
BESIDE_GOAL = 0.5
"""Most of each, as a share of what the other version takes."""
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


def measure_recovery(
    config: str = "quickstart", overrides: tuple[str, ...] = (), repeats: int = 3, beside: Path | None = None
) -> dict[str, Any]:
    """Start `raysl pretrain`, kill its worker, wait for a step, kill its driver, start it again; anew each time.

    Args:
        config: packaged name or file.
        overrides: settings on top of a long run with a checkpoint every ten steps.
        repeats: runs.
        beside: a checkout of another version, which is measured in turns with the present one.

    Returns:
        `recovery` (median seconds: `worker` from SIGKILL of a training worker to the next step, `driver` from the
        command that resumes a run, whose driver was killed with all its processes, to its first step), `repeats`,
        `before` (those of the other version, if there is one), `environment`.

    Raises:
        ConfigError: if this system has no /proc, in which workers are found, or `beside` is not a checkout of raysl.
        RunFailed: if a run fails, or takes too long.
    """
    if not PROC.is_dir():
        raise ConfigError("this measurement kills a training worker, which it finds in /proc: run it on Linux")
    by_name = {version.name: version for version in versions(beside)}
    environment = machine() | {"config": config, "settings": [*SETTINGS, *overrides], "beside": beside and str(beside)}
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in by_name}
    with tempfile.TemporaryDirectory(prefix="raysl_speed_") as folder:
        for repeat in range(repeats):
            for name in rotated(list(by_name), repeat):
                run = f"run-{repeat}" if name == NOW else f"{name}-{repeat}"
                words = [config, *SETTINGS, *overrides, f"storage={folder}", f"name={run}"]
                measured[name].append(_recover(by_name[name], words, Path(folder) / run))
                shown = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in measured[name][-1].items())
                log.info("recovery %d of %d, %s: %s", repeat + 1, repeats, name, shown)
    numbers = {"recovery": medians(measured[NOW]), "repeats": measured[NOW], "environment": environment}
    return numbers | ({BEFORE: measured[BEFORE]} if BEFORE in measured else {})


def recovery_table(numbers: dict[str, Any]) -> str:
    """Format the result of `measure_recovery` as text."""
    width = max(map(len, TITLES.values())) + 2
    lines = []
    for name, goal in GOALS_S.items():
        seconds = [repeat[name] for repeat in numbers["repeats"]]
        lines.append(seconds_line(f"{TITLES[name]:<{width}}", seconds, goal))
        if BEFORE in numbers:
            before = [repeat[name] for repeat in numbers[BEFORE]]
            lines.append(
                ratio_line(f"{'  of the other version':<{width}}", zip(seconds, before, strict=True), BESIDE_GOAL)
            )
    return "\n".join(lines)


def _recover(version: Version, words: list[str], run: Path) -> dict[str, float]:
    with _started(version, words, run) as process:
        _wait(process, run, lambda: any(run.glob("checkpoint_*/meta.json")), "no checkpoint")
        time.sleep(UNDER_WAY_S)
        before = _first_step(run)
        killed = time.time()
        os.kill(_worker(process), signal.SIGKILL)
        _wait(process, run, lambda: _first_step(run) > before, "no step after its worker was killed")
        lost_by_worker = _first_step(run) - killed
    started = time.time()
    with _started(version, words, run) as process:
        _wait(process, run, lambda: _first_step(run) > started, "no step after its driver was killed")
        return {"worker": lost_by_worker, "driver": _first_step(run) - started}


@contextmanager
def _started(version: Version, words: list[str], run: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A run in a child process, which is killed at the end with all its children, as by a loss of power."""
    with _log_of(run).open("ab") as output:
        process = version.start(["pretrain", *words], output)
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
