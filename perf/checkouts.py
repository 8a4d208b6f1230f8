"""A checkout of raysl as a contender of `python -m perf pipeline`: its own measuring code on its own code.

This file is a program too, which runs in the contender's process and imports `perf` and `raysl` of that checkout alone.
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
    """Return the command line of a contender.

    Args:
        checkout: working directory of the process.
        program: name of the contender in the `streams` module of the checkout.
        text: settings, as `StreamTask.to_json` writes them.
    """
    # -P keeps the folder of this file, where `numbers.py` lies, out of the way of Python's own modules.
    return [sys.executable, "-P", __file__, str(package_of(checkout)), program, text]


def environment(checkout: Path) -> dict[str, str]:
    """Return the environment for `command`: Python searches the checkout first, and Ray starts a new cluster."""
    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return variables | {"PYTHONPATH": str(checkout)}


def run_on_ray(package: str, streams: Any, text: str) -> None:
    """Run the contender on Ray, on a new cluster, until its last turn."""
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
    """`python -P perf/checkouts.py PACKAGE PROGRAM TASK`."""
    package, program, text = sys.argv[1:]
    streams = import_module(f"{package}.streams")
    if program == ON_RAY:
        run_on_ray(package, streams, text)
    else:
        sys.argv[1:] = [program, text]
        streams.main()


if __name__ == "__main__":
    main()
