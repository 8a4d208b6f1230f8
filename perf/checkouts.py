"""A contender of `python -m perf pipeline` with the code of another version of raysl, in a checkout of its own.

This file is a program too: it imports `perf` and `raysl` of the checkout alone.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def full_path(checkout: Path) -> Path:
    """Return the full path of a checkout of raysl with the contenders of `python -m perf pipeline`."""
    from raysl.errors import ConfigError  # here, because this file also runs beside the code of other versions

    if not (checkout / "perf" / "streams.py").is_file():
        raise ConfigError(
            f"--beside {checkout}: no perf/streams.py there; give a checkout of raysl, "
            "which `git worktree add FOLDER COMMIT` makes"
        )
    return checkout.resolve()


def stream_command(program: str, task: str) -> list[str]:
    """Return the command line of a contender of `perf.streams`, with its settings as JSON; see `options`."""
    # -P keeps the folder of this file out of the way of Python's own modules.
    return [sys.executable, "-P", __file__, program, task]


def options(checkout: Path) -> dict[str, Any]:
    """Return options of `subprocess` for a process with the code of a checkout and a Ray cluster of its own."""
    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return {"cwd": checkout, "env": variables | {"PYTHONPATH": str(checkout)}}


def main() -> None:
    """`python -P perf/checkouts.py PROGRAM TASK`."""
    program, text = sys.argv[1:]
    streams = import_module("perf.streams")
    if program != "raysl_ray":
        streams.main()
        return
    import_module("raysl.cluster.connection").connect()
    task = streams.StreamTask(**json.loads(text))
    run = import_module("perf.processes").RayRun(task, program=streams.raysl_ray)
    run.thread.join()
    run.check()


if __name__ == "__main__":
    main()
