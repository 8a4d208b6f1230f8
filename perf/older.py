"""An older version of raysl as a contender of `python -m perf pipeline`: its own measuring code, from its own checkout.

This file is a program too, which runs in the older version's process and imports nothing of the present one.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGES = ("perf", "raysl.speed")
"""Packages that have held the contenders, the newest first."""
ON_RAY = "raysl_ray"


def package_of(checkout: Path) -> str | None:
    """Return the package with the contenders of a checkout; None if it has none."""
    for package in PACKAGES:
        if (checkout / package.replace(".", "/") / "streams.py").is_file():
            return package
    return None


def command(checkout: Path, program: str, text: str) -> list[str]:
    """Return the command line of a contender of another version.

    Args:
        checkout: folder of that version, to be the working directory.
        program: a contender of its `streams` module.
        text: its settings, as `StreamTask.to_json` writes them.
    """
    # -P keeps the folder of this file, where `numbers.py` lies, out of the way of Python's own modules.
    return [sys.executable, "-P", __file__, str(package_of(checkout)), program, text]


def environment(checkout: Path) -> dict[str, str]:
    """Return the environment for `command`: Python finds that version first, and Ray starts a cluster of its own."""
    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return variables | {"PYTHONPATH": str(checkout)}


def run_on_ray(package: str, streams: Any, text: str) -> None:
    """Run the version's contender on Ray, on a cluster of its own, until its last turn."""
    try:
        connection = import_module("raysl.cluster.connection")
    except ModuleNotFoundError:  # before it had a file of its own
        connection = import_module("raysl.cluster")
    connection.connect()
    task = streams.StreamTask(**json.loads(text))
    run = import_module(f"{package}.processes").RayRun(task, program=streams.raysl_ray)
    run.thread.join()
    run.check()


def main() -> None:
    """`python -P perf/older.py PACKAGE PROGRAM TASK`."""
    package, program, text = sys.argv[1:]
    streams = import_module(f"{package}.streams")
    if program == ON_RAY:
        run_on_ray(package, streams, text)
    else:
        sys.argv[1:] = [program, text]
        streams.main()


if __name__ == "__main__":
    main()
