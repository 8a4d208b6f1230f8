"""`python -m perf start`: seconds from the command to the first training step, and where they go.

A bare run of Ray Train with a dataset (`perf.bare`), and another version of raysl where one is given, start in turns
with it. All are measured from their command to a file that appears after their first step.
"""

import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

from perf import bare
from perf.numbers import machine, medians, ratios, rotated, seconds_line
from perf.versions import BEFORE, NOW, Version, ratio_line, versions
from raysl.errors import RunFailed
from raysl.train.files import STARTUP_FILE

log = logging.getLogger("raysl")

GOAL_S = 15.0
BARE = "bare"
GOALS = {f"{NOW}/{BARE}": 1.0, f"{NOW}/{BEFORE}": 0.75}
"""Most of a start, as a share of that of a bare run of Ray Train, and of that of the other version."""
TITLES = {NOW: "raysl", BARE: "bare Ray Train", BEFORE: "raysl before"}
SETTINGS = ("train.epochs=1", "benchmarks=[]")


def measure_start(
    config: str = "quickstart", overrides: tuple[str, ...] = (), repeats: int = 3, beside: Path | None = None
) -> dict[str, Any]:
    """Start `raysl pretrain` and a bare run of Ray Train as child processes, anew each time.

    Args:
        config: packaged name or file.
        overrides: settings on top of one epoch without benchmarks.
        repeats: starts of each.
        beside: a checkout of another version, which is started in turns with the others.

    Returns:
        `start` (median seconds of raysl by its own count: `total`, and the parts it is made of), `repeats` (of the
        same), `seconds` (from command to first step, by contender, of each repeat), `ratios`, `environment`.

    Raises:
        ConfigError: if `beside` is not a checkout of raysl.
        RunFailed: if a run fails.
    """
    words = [config, *SETTINGS, *overrides]
    contenders: dict[str, Callable[[Path], float]] = {
        version.name: partial(_start, version, words) for version in versions(beside)
    }
    contenders[BARE] = _start_bare
    environment = machine() | {"config": config, "settings": words[1:], "beside": beside and str(beside)}
    measured: list[dict[str, float]] = []
    seconds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="raysl_speed_") as name:
        folder = Path(name)
        for repeat in range(repeats):
            own = folder / str(repeat)
            own.mkdir()
            taken = {name: contenders[name](own) for name in rotated(list(contenders), repeat)}
            measured.append(json.loads((own / NOW / STARTUP_FILE).read_text()))
            seconds.append(taken)
            shown = ", ".join(f"{TITLES[name]} {taken[name]:.1f} s" for name in contenders)
            log.info("start %d of %d: %s", repeat + 1, repeats, shown)
    return {
        "start": medians(measured),
        "repeats": measured,
        "seconds": seconds,
        "ratios": ratios(seconds, GOALS),
        "environment": environment,
    }


def start_table(numbers: dict[str, Any]) -> str:
    """Format the result of `measure_start` as text."""
    parts = dict(numbers["start"])
    parts.pop("total")
    lines = [f"{name:<16}{value:>7.2f} s" for name, value in parts.items()]
    totals = [repeat["total"] for repeat in numbers["repeats"]]
    lines.append(seconds_line(f"{'total':<16}", totals, GOAL_S))
    seconds = numbers["seconds"]
    for name, value in medians(seconds).items():
        lines.append(f"{TITLES[name]:<16}{value:>7.2f} s from command to first step")
    for ratio in numbers["ratios"]:
        above, _, below = ratio.partition("/")
        pairs = [(each[above], each[below]) for each in seconds]
        lines.append(ratio_line(f"of {TITLES[below]:<13}", pairs, GOALS[ratio]))
    return "\n".join(lines)


def _start(version: Version, words: list[str], folder: Path) -> float:
    """Return the seconds from the command of a version to the first step of its run."""
    run = ["pretrain", *words, f"storage={folder}", f"name={version.name}"]
    return _first_step_s(partial(version.start, run), folder / version.name / STARTUP_FILE, f"raysl {' '.join(run)}")


def _start_bare(folder: Path) -> float:
    file = folder / "stepped"
    command = [sys.executable, "-P", bare.__file__, str(file), str(folder / "storage")]

    def start(output: "IO[bytes]") -> "subprocess.Popen[bytes]":
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)

    return _first_step_s(start, file, "perf/bare.py")


def _first_step_s(start: "Callable[[IO[bytes]], subprocess.Popen[bytes]]", file: Path, title: str) -> float:
    """Return the seconds from a command to the file of its first step, once the command has ended.

    Raises:
        RunFailed: if it fails, with its last words.
    """
    with tempfile.TemporaryFile() as output:
        begun = time.time()
        code = start(output).wait()
        if code != 0:
            output.seek(0)
            last = "\n".join(output.read().decode(errors="replace").splitlines()[-12:])
            raise RunFailed(f"`{title}` ended with code {code}:\n{last}")
    return file.stat().st_mtime - begun
