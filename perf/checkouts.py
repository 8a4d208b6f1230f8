"""Other versions of raysl, each in a checkout of its own, beside the present one.

This file is a program too: it runs a contender of `python -m perf pipeline`, and imports `perf` and `raysl` of the
checkout alone, under the names that they have there.
"""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGES = ("perf", "raysl.speed")
"""Packages that have held the contenders, the newest first."""
NOW, BEFORE = "raysl", "before"


def package_of(checkout: Path) -> str | None:
    """Return the package with the contenders of a checkout; None if it has none."""
    packages = (name for name in PACKAGES if (checkout / name.replace(".", "/") / "streams.py").is_file())
    return next(packages, None)


def full_path(checkout: Path, *, has_streams: bool = False) -> Path:
    """Return the full path of a checkout of raysl.

    Args:
        checkout: folder.
        has_streams: whether it needs the contenders of `python -m perf pipeline`.
    """
    from raysl.errors import ConfigError  # here, because this file also runs beside the code of other versions

    file = "perf/streams.py" if has_streams else "raysl/__main__.py"
    if not (package_of(checkout) if has_streams else (checkout / file).is_file()):
        raise ConfigError(
            f"--beside {checkout}: no {file} there; give a checkout of raysl, "
            "which `git worktree add FOLDER COMMIT` makes"
        )
    return checkout.resolve()


def versions(beside: Path | None) -> dict[str, Path | None]:
    """Return the checkouts of the versions to measure: `NOW` without one, and `BEFORE` where one is given."""
    return {NOW: None} | ({} if beside is None else {BEFORE: full_path(beside)})


def raysl_command(arguments: list[str]) -> list[str]:
    """Return the command line of a `raysl` command."""
    return [sys.executable, "-m", "raysl", *arguments]


def stream_command(checkout: Path, program: str, task: str) -> list[str]:
    """Return the command line of a contender of the `streams` module of a checkout, with its settings as JSON."""
    # -P keeps the folder of this file out of the way of Python's own modules.
    return [sys.executable, "-P", __file__, str(package_of(checkout)), program, task]


def options(checkout: Path | None) -> dict[str, Any]:
    """Return options of `subprocess` for a process with the code of a checkout and a Ray cluster of its own."""
    if checkout is None:
        return {}
    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return {"cwd": checkout, "env": variables | {"PYTHONPATH": str(checkout)}}


def main() -> None:
    """`python -P perf/checkouts.py PACKAGE PROGRAM TASK`."""
    package, program, text = sys.argv[1:]
    streams = import_module(f"{package}.streams")
    if program != "raysl_ray":
        sys.argv[1:] = [program, text]
        streams.main()
        return
    try:
        connection = import_module("raysl.cluster.connection")
    except ModuleNotFoundError:  # before it had a file of its own
        connection = import_module("raysl.cluster")
    connection.connect()
    task = streams.StreamTask(**json.loads(text))
    run = import_module(f"{package}.processes").RayRun(task, program=streams.raysl_ray)
    run.thread.join()
    run.check()


if __name__ == "__main__":
    main()
