"""Measurements in separate processes, so that no memory of other contenders is left over."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread

import numpy as np
import torch

from perf.classifiers import knn_contenders, search
from perf.sizes import Sizes
from raysl.errors import RunFailed
from raysl.process.memory import unmapped

WATCH_S = 0.002


def memory_of(case: str, contender: str, sizes: Sizes) -> float:
    """MB that a contender has beyond its features, in a process of its own: see `measure_memory`."""
    task = json.dumps({"case": case, "contender": contender, "sizes": asdict(sizes)})
    return started("perf.own_processes", [task], f"{contender} at {case}")["memory_mb"]


def started(module: str, words: Sequence[str], what: str) -> dict[str, float]:
    """Run a measurement in a process of its own, and return its result.

    Raises:
        RunFailed: with its last output.
    """
    done = subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True)
    if done.returncode:
        raise RunFailed(f"{what} failed:\n{done.stderr[-2000:]}")
    numbers: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def measure_memory(case: str, contender: str, sizes: Sizes) -> dict[str, float]:
    """Memory in MB that a contender has beyond its features, in this process."""
    if case == "knn":
        return {"memory_mb": _most_beyond(knn_contenders(sizes)[contender])}
    with tempfile.TemporaryDirectory(prefix="raysl_speed_") as folder:
        keys = _mapped(Path(folder) / "keys.bin", int(contender), sizes.dim)
        queries = torch.randn(sizes.few_queries, sizes.dim)
        return {"memory_mb": _most_beyond(lambda: search(keys, queries))}


def _mapped(path: Path, num: int, dim: int) -> torch.Tensor:
    """Write random rows to a file."""
    rows = np.memmap(path, np.float32, mode="w+", shape=(num, dim))
    for first in range(0, num, 10_000):
        rows[first : first + 10_000] = torch.randn(min(10_000, num - first), dim).numpy()
    return torch.from_numpy(rows)


def _most_beyond(run: Callable[[], object]) -> float:
    """MB that this process has at most while it runs, less what it had before."""
    before, is_over = unmapped(), Event()
    seen = [before]

    def watch() -> None:
        while not is_over.wait(WATCH_S):
            seen.append(unmapped())

    watcher = Thread(target=watch)
    watcher.start()
    try:
        run()
    finally:
        seen.append(unmapped())
        is_over.set()
        watcher.join()
    return max(0, max(seen) - before) / 2**20


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(measure_memory(given["case"], given["contender"], Sizes(**given["sizes"]))))
