"""Running all tasks, one result a file, and the tables of them."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from perf.numbers import machine
from perf.peers.task import METHODS, Task
from raysl.errors import ConfigError, RunFailed

LIBRARIES = ("raysl", "lightly", "stable_pretraining")
TITLES = {"stable_pretraining": "stable-pretraining"}

Result = dict[str, Any]


def installed() -> list[str]:
    """Return the libraries that can be imported here."""
    return [library for library in LIBRARIES if find_spec(library) is not None]


def run(task: Task, threads: int) -> Result:
    """Run a task in a process of its own.

    Raises:
        RunFailed: if it fails, with its last words.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "perf.peers.task", json.dumps(asdict(task))],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
    )
    if ended.returncode != 0:
        output = "\n".join(ended.stderr.splitlines()[-12:])
        raise RunFailed(f"{task.name} ended with code {ended.returncode}:\n{output}")
    result: Result = json.loads(ended.stdout.splitlines()[-1])
    return result


def measure_peers(
    data: Path,
    folder: Path,
    methods: Sequence[str] = (),
    libraries: Sequence[str] = (),
    seeds: int = 2,
    images: int = 10_000,
    epochs: int = 8,
    threads: int = 1,
    jobs: int = 1,
) -> dict[str, Any]:
    """Train every method in every library with every seed; tasks whose file is in the folder are not run again.

    Raises:
        ConfigError: if there is no such method, library or folder of images.
        RunFailed: if a run fails; those that ended stay.
    """
    if unknown := sorted(set(methods) - set(METHODS)):
        raise ConfigError(f"--only {unknown[0]} is none of {', '.join(METHODS)}")
    if absent := sorted(set(libraries) - set(installed())):
        raise ConfigError(f"--library {absent[0]} is none of {', '.join(installed())}, which are installed here")
    if not list(data.glob("train-*.parquet")):
        raise ConfigError(f"--data {data} has no train-*.parquet; give a folder with CIFAR-10 as Parquet files")
    tasks = [
        Task(library, method, seed, str(data.resolve()), images, epochs)
        for seed in range(seeds)
        for method in methods or METHODS
        for library in libraries or installed()
    ]
    folder.mkdir(parents=True, exist_ok=True)

    def kept(task: Task) -> None:
        path = folder / f"{task.name}.json"
        wanted = {key: value for key, value in asdict(task).items() if key != "data"}
        if path.is_file() and wanted.items() <= json.loads(path.read_text()).items():
            return
        path.write_text(json.dumps(run(task, threads) | {"threads": threads}, indent=1) + "\n")

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(kept, tasks))
    return numbers_in(folder)


def numbers_in(folder: Path) -> dict[str, Any]:
    """Return the results that a folder holds."""
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("*-*-*.json"))]
    return {"environment": machine(), "runs": runs}


def peers_table(numbers: dict[str, Any]) -> str:
    """Return the results as a table in Markdown: kNN of each seed, a peer's CPU seconds over raysl's, memory."""
    titles = [TITLES.get(library, library) for library in LIBRARIES]
    heads = [
        "method",
        *titles,
        *(f"CPU seconds, {title} / raysl" for title in titles[1:]),
        *(f"GB, {title}" for title in titles),
    ]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for method in METHODS:
        runs = [one for one in numbers["runs"] if one["method"] == method]
        if not runs:
            continue
        by = {library: [one for one in runs if one["library"] == library] for library in LIBRARIES}
        cpu = {name: statistics.median(one["cpu_s_1000"] for one in own) for name, own in by.items() if own}
        cells = [f"`{method}`"]
        cells += [", ".join(f"{one['knn_k20_top1']:.1f}" for one in by[library]) for library in LIBRARIES]
        cells += [
            f"{cpu[library] / cpu['raysl']:.2f}" if {"raysl", library} <= set(cpu) else "" for library in LIBRARIES[1:]
        ]
        cells += [f"{max(one['memory_gb'] for one in by[library]):.2f}" if by[library] else "" for library in LIBRARIES]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
