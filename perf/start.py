"""`python -m perf start`: seconds from the command to the first training step, and where they go."""

import json
import logging
import tempfile
from pathlib import Path
from typing import Any

from perf.commands import command_s
from perf.numbers import machine, medians, seconds_line

log = logging.getLogger("raysl")

GOAL_S = 15.0
SETTINGS = ("train.epochs=1", "benchmarks=[]")


def measure_start(config: str = "quickstart", overrides: tuple[str, ...] = (), repeats: int = 3) -> dict[str, Any]:
    """Start `raysl pretrain` as a child process, anew each time.

    Args:
        config: packaged name or file.
        overrides: settings on top of one epoch without benchmarks.
        repeats: starts.

    Returns:
        `start` (median seconds: `total`, and the parts it is made of), `repeats`, `environment`.

    Raises:
        RunFailed: if a run fails.
    """
    environment = machine() | {"config": config, "settings": [*SETTINGS, *overrides]}
    measured = []
    with tempfile.TemporaryDirectory(prefix="raysl_speed_") as folder:
        for repeat in range(repeats):
            measured.append(_start([config, *SETTINGS, *overrides], Path(folder), f"start-{repeat}"))
            log.info("start %d of %d: %.1f s", repeat + 1, repeats, measured[-1]["total"])
    return {"start": medians(measured), "repeats": measured, "environment": environment}


def start_table(numbers: dict[str, Any]) -> str:
    """Format the result of `measure_start` as text."""
    parts = dict(numbers["start"])
    parts.pop("total")
    totals = [repeat["total"] for repeat in numbers["repeats"]]
    lines = [f"{name:<12}{seconds:>7.2f} s" for name, seconds in parts.items()]
    return "\n".join([*lines, seconds_line(f"{'total':<12}", totals, GOAL_S)])


def _start(words: list[str], storage: Path, name: str) -> dict[str, float]:
    command_s(["pretrain", *words, f"storage={storage}", f"name={name}"])
    seconds: dict[str, float] = json.loads((storage / name / "startup.json").read_text())
    return seconds
