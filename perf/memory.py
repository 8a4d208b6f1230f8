"""`python -m perf memory`: whether the memory of a long run grows, for each kind of its processes."""

import os
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from perf.harness import Numbers, command_s, machine, scratch_folder, verdict
from perf.pictures import write_pictures
from raysl.errors import ConfigError
from raysl.process.memory import unmapped
from raysl.process.proc import PROC, command_line, descendants
from raysl.train.callbacks.logs import parse_metrics
from raysl.train.file_names import METRICS_FILE

SHARED_MEMORY = Path("/dev/shm")
PERIOD_S = 1.0
MARKS = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Shares of the steps at which the table says what a kind of process holds."""
FLAT = 1.05
"""Largest ratio of the memory at the end to that after a quarter of the steps."""
KINDS = {
    "driver": ("-m raysl pretrain",),
    "worker": ("RayTrainWorker",),
    "controller": ("TrainController",),
    "data tasks": ("ray::Read", "ray::IDLE"),
}
"""Words in the command lines of the kinds of processes."""


@dataclass(frozen=True)
class MemoryTask:
    """A run to watch."""

    epochs: int = 20
    epoch_steps: int = 500
    batch_size: int = 32
    workers: int = 1
    buffer_gb: float = 0.05

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.epochs * self.epoch_steps

    def arguments(self, folder: Path) -> list[str]:
        """Return the arguments of `raysl pretrain` for a small network on Parquet files in a folder."""
        settings = {
            "data": "parquet",
            "data.path": folder / "images",
            "data.image_size": 16,
            "data.mean": "[0.5,0.5,0.5]",
            "data.std": "[0.25,0.25,0.25]",
            "data.buffer_gb": self.buffer_gb,
            "backbone.width": 8,
            "train.epochs": self.epochs,
            "train.batch_size": self.batch_size,
            "train.workers": self.workers,
            "train.log_every": "20st",
            "train.checkpoint_every": "1ep",
            "benchmarks": "[]",
            "storage": folder,
            "name": "run",
        }
        return ["quickstart", *(f"{name}={value}" for name, value in settings.items())]


@dataclass(frozen=True)
class Sample:
    """Memory of a run at one moment."""

    step: int  # of the newest logged line
    bytes: dict[str, int]
    """Resident bytes by kind of process, without pages of files and of shared memory; `shared memory` is what /dev/shm
    holds more than before the run."""


def measure() -> Numbers:
    """Run `raysl pretrain` and sample the memory of its processes.

    Returns:
        `memory_mb` (by kind, the medians around each of `MARKS`), `growth` (by kind of process, the last of them
        over that after a quarter of the steps), `shared_mb` (most that /dev/shm held, beside `buffer_mb`), `steps`,
        `environment`.
    """
    if not PROC.is_dir():
        raise ConfigError("this measurement reads the memory of processes from /proc: run it on Linux")
    task, environment = MemoryTask(), machine()
    with scratch_folder() as folder:
        (folder / "images").mkdir()
        write_pictures(folder / "images" / "train.parquet", 32, task.epoch_steps * task.batch_size)
        samples = _watch(task, folder)
    return summarize(samples, task) | {"environment": environment}


def summarize(samples: Sequence[Sample], task: MemoryTask) -> Numbers:
    """Return the numbers of `measure` that samples show."""
    memory_mb = {kind: [_around(samples, kind, mark * task.steps) for mark in MARKS] for kind in samples[-1].bytes}
    return {
        "memory_mb": memory_mb,
        "growth": {kind: memory_mb[kind][-1] / memory_mb[kind][1] for kind in KINDS},
        "shared_mb": max(sample.bytes["shared memory"] for sample in samples) / 1e6,
        "buffer_mb": task.buffer_gb * 1000,
        "steps": task.steps,
    }


def table(numbers: Numbers) -> str:
    """Format the result of `measure` as text."""
    steps = [f"{mark * numbers['steps']:,.0f}" for mark in MARKS]
    lines = [f"{'MB after step':<16}" + "".join(f"{step:>9}" for step in steps) + "   growth"]
    for kind, row in numbers["memory_mb"].items():
        line = f"{kind:<16}" + "".join(f"{value:>9.1f}" for value in row)
        if kind in KINDS:
            growth = numbers["growth"][kind]
            line += f"{growth:>9.3f}  goal up to {FLAT}: {verdict(growth <= FLAT)}"
        lines.append(line)
    most, buffer = numbers["shared_mb"], numbers["buffer_mb"]
    return "\n".join([*lines, f"most in /dev/shm {most:.1f} MB, with data.buffer_gb of {buffer:.0f} MB"])


def _watch(task: MemoryTask, folder: Path) -> list[Sample]:
    """Run to the end, and return a sample of each second in which a training worker was alive."""
    log, before, samples = folder / "run" / METRICS_FILE, _shared(), list[Sample]()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(command_s, ["pretrain", *task.arguments(folder)])
        while not run.done():
            time.sleep(PERIOD_S)
            memory = _memory() | {"shared memory": max(0, _shared() - before)}
            if memory["worker"]:
                lines = parse_metrics(log.read_bytes()) if log.exists() else []
                samples.append(Sample(int(lines[-1]["step"]) if lines else 0, memory))
        run.result()
    return samples


def _memory() -> dict[str, int]:
    """Bytes of the processes below this one, by kind."""
    sums = dict.fromkeys(KINDS, 0)
    for pid in descendants(os.getpid()):
        command = command_line(pid)
        for kind, patterns in KINDS.items():
            if any(pattern in command for pattern in patterns):
                sums[kind] += unmapped(pid)
    return sums


def _shared() -> int:
    return shutil.disk_usage(SHARED_MEMORY).used


def _around(samples: Sequence[Sample], kind: str, step: float) -> float:
    """MB of a kind: the median of the five samples that are nearest to a step."""
    nearest = sorted(samples, key=lambda sample: abs(sample.step - step))[:5]
    return median(sample.bytes[kind] for sample in nearest) / 1e6
