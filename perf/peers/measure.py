"""Running all tasks, one result a file, and the tables of them."""

import json
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from perf.harness import Numbers, child_numbers, machine
from perf.peers.task import METHODS, Task, run_task
from raysl.errors import ConfigError

LIBRARIES = ("raysl", "lightly", "stable_pretraining")
TITLES = {"stable_pretraining": "stable-pretraining"}


def installed() -> list[str]:
    """Return the libraries that can be imported here."""
    return [library for library in LIBRARIES if find_spec(library) is not None]


def measure(
    data: Path,
    folder: Path,
    methods: Sequence[str] = (),
    libraries: Sequence[str] = (),
    seeds: int = 2,
    images: int = 10_000,
    epochs: int = 8,
    threads: int = 1,
    jobs: int = 1,
) -> Numbers:
    """Train every method in every library with every seed; tasks whose file is in the folder are not run again."""
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

    variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))

    def run(task: Task) -> None:
        path = folder / f"{task.name}.json"
        settings = {key: value for key, value in asdict(task).items() if key != "data"}
        if path.is_file() and settings.items() <= json.loads(path.read_text()).items():
            return
        result = child_numbers(run_task, asdict(task), task.name, env={**os.environ, **variables})
        path.write_text(json.dumps(result | {"threads": threads}, indent=1) + "\n")

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, tasks))
    return numbers_in(folder)


def numbers_in(folder: Path) -> Numbers:
    """Return the results that a folder holds."""
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("*-*-*.json"))]
    return {"environment": machine(), "runs": runs}


def table(numbers: Numbers) -> str:
    """Return the results as a table in Markdown: kNN of each seed, a peer's CPU seconds over raysl's, memory."""
    titles = [TITLES.get(library, library) for library in LIBRARIES]
    heads = ["method", *titles, *(f"CPU seconds, {title} / raysl" for title in titles[1:])]
    heads += [f"GB, {title}" for title in titles]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for method in METHODS:
        runs: dict[str, list[Numbers]] = {library: [] for library in LIBRARIES}
        for run in numbers["runs"]:
            if run["method"] == method:
                runs[run["library"]].append(run)
        if not any(runs.values()):
            continue
        cpu = {name: statistics.median(run["cpu_s_1000"] for run in each) for name, each in runs.items() if each}
        ratios = [cpu[name] / cpu["raysl"] if {"raysl", name} <= cpu.keys() else None for name in LIBRARIES[1:]]
        cells = [f"`{method}`"]
        cells += [", ".join(f"{run['knn_k20_top1']:.1f}" for run in each) for each in runs.values()]
        cells += ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        cells += [f"{max(run['memory_gb'] for run in each):.2f}" if each else "" for each in runs.values()]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
