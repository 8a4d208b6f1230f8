"""`python -m perf start`: seconds from the command to the first training step, and where they go.

A bare run of Ray Train with a dataset (`perf.bare`) starts in turns with it. Both are measured from their command to a
file that appears after their first step.
"""

import json
import sys
import time
from pathlib import Path

from perf.harness import (
    Numbers,
    each_ratio,
    goal_line,
    interleaved,
    machine,
    medians,
    ratios,
    run_child,
    scratch_folder,
)
from raysl.train.file_names import STARTUP_FILE

GOAL_S = 15.0
BARE_PROGRAM = Path(__file__).with_name("bare.py")
RATIO, RATIO_GOAL = "raysl/bare", 1.0
TITLES = {"raysl": "raysl", "bare": "bare Ray Train"}
SETTINGS = ("train.epochs=1", "benchmarks=[]")


def measure(config: str = "quickstart", overrides: tuple[str, ...] = (), repeats: int = 3) -> Numbers:
    """Start `raysl pretrain` and a bare run of Ray Train as child processes, anew each time.

    Returns:
        `start` (median seconds of raysl by its own count: `total`, and the parts it is made of), `repeats` (of the
        same), `seconds` (from command to first step, by contender, of each repeat), `ratios`, `environment`.
    """
    settings = [config, *SETTINGS, *overrides]
    environment = machine() | {"config": config, "settings": settings[1:]}
    with scratch_folder() as folder:

        def first_step_s(name: str, repeat: int) -> float:
            """Return the seconds from a command to the file of its first step, once the command has ended."""
            storage = folder / str(repeat)
            storage.mkdir(exist_ok=True)
            if name == "bare":
                file, title = storage / "stepped", "perf/bare.py"
                command = [sys.executable, "-P", str(BARE_PROGRAM), str(file), str(storage / "storage")]
            else:
                run = ["pretrain", *settings, f"storage={storage}", f"name={name}"]
                file, title = storage / name / STARTUP_FILE, f"`raysl {' '.join(run)}`"
                command = [sys.executable, "-m", "raysl", *run]
            start = time.time()
            run_child(command, title)
            return file.stat().st_mtime - start

        seconds = interleaved(TITLES, repeats, first_step_s, "start, seconds")
        parts = [json.loads((folder / str(repeat) / "raysl" / STARTUP_FILE).read_text()) for repeat in range(repeats)]
    return {
        "start": medians(parts),
        "repeats": parts,
        "seconds": seconds,
        "ratios": ratios(seconds, [RATIO]),
        "environment": environment,
    }


def table(numbers: Numbers) -> str:
    """Format the result of `measure` as text."""
    lines = [f"{name:<16}{value:>7.2f} s" for name, value in numbers["start"].items() if name != "total"]
    lines.append(goal_line(f"{'total':<16}", [repeat["total"] for repeat in numbers["repeats"]], GOAL_S, " s", ".1f"))
    seconds = numbers["seconds"]
    for name, value in medians(seconds).items():
        lines.append(f"{TITLES[name]:<16}{value:>7.2f} s from command to first step")
    lines.append(goal_line(f"{'of bare':<16}", each_ratio(seconds, RATIO), RATIO_GOAL))
    return "\n".join(lines)
