"""`python -m perf start`: seconds from the command to the first training step, and where they go.

A bare run of Ray Train with a dataset (`perf.bare`), and another version of raysl where one is given, start in turns
with it. All are measured from their command to a file that appears after their first step.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from perf import checkouts, harness
from perf.checkouts import BEFORE, NOW
from perf.harness import Numbers, each_ratio, machine, medians
from raysl.train.file_names import STARTUP_FILE

GOAL_S = 15.0
BARE = "bare"
BARE_PROGRAM = Path(__file__).with_name("bare.py")
GOALS = {f"{NOW}/{BARE}": 1.0, f"{NOW}/{BEFORE}": 0.75}
"""Most of a start, as a share of that of a bare run of Ray Train, and of that of the other version."""
TITLES = {NOW: "raysl", BARE: "bare Ray Train", BEFORE: "raysl before"}
SETTINGS = ("train.epochs=1", "benchmarks=[]")


def measure_start(
    config: str = "quickstart", overrides: tuple[str, ...] = (), repeats: int = 3, beside: Path | None = None
) -> Numbers:
    """Start `raysl pretrain` and a bare run of Ray Train as child processes, anew each time.

    Returns:
        `start` (median seconds of raysl by its own count: `total`, and the parts it is made of), `repeats` (of the
        same), `seconds` (from command to first step, by contender, of each repeat), `ratios`, `environment`.
    """
    settings = [config, *SETTINGS, *overrides]
    versions = checkouts.versions(beside)
    environment = machine() | {"config": config, "settings": settings[1:], "beside": beside and str(beside)}
    with harness.scratch_folder() as folder:

        def first_step_s(name: str, repeat: int) -> float:
            storage = folder / str(repeat)
            storage.mkdir(exist_ok=True)
            if name == BARE:
                file = storage / "stepped"
                command = [sys.executable, "-P", str(BARE_PROGRAM), str(file), str(storage / "storage")]
                return _first_step_s(command, "perf/bare.py", file)
            run = ["pretrain", *settings, f"storage={storage}", f"name={name}"]
            title = f"`raysl {' '.join(run)}`"
            file = storage / name / STARTUP_FILE
            return _first_step_s(checkouts.raysl_command(run), title, file, **checkouts.options(versions[name]))

        seconds = harness.interleaved([*versions, BARE], repeats, first_step_s, "start, seconds")
        parts = [json.loads((folder / str(repeat) / NOW / STARTUP_FILE).read_text()) for repeat in range(repeats)]
    return {
        "start": medians(parts),
        "repeats": parts,
        "seconds": seconds,
        "ratios": harness.ratios(seconds, GOALS),
        "environment": environment,
    }


def start_table(numbers: Numbers) -> str:
    """Format the result of `measure_start` as text."""
    lines = [f"{name:<16}{value:>7.2f} s" for name, value in numbers["start"].items() if name != "total"]
    lines.append(harness.seconds_line(f"{'total':<16}", [repeat["total"] for repeat in numbers["repeats"]], GOAL_S))
    seconds = numbers["seconds"]
    for name, value in medians(seconds).items():
        lines.append(f"{TITLES[name]:<16}{value:>7.2f} s from command to first step")
    for ratio in numbers["ratios"]:
        lines.append(
            harness.ratio_line(f"of {TITLES[ratio.partition('/')[2]]:<13}", each_ratio(seconds, ratio), GOALS[ratio])
        )
    return "\n".join(lines)


def _first_step_s(command: list[str], title: str, file: Path, **options: Any) -> float:
    """Return the seconds from a command to the file of its first step, once the command has ended."""
    start = time.time()
    harness.run_child(command, title, **options)
    return file.stat().st_mtime - start
