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
from raysl.report.summary import aligned
from raysl.train.callbacks.logs import parse_metrics
from raysl.train.file_names import METRICS_FILE

EPOCHS, EPOCH_STEPS, BATCH, BUFFER_GB = 20, 500, 32, 0.05
STEPS = EPOCHS * EPOCH_STEPS
SETTINGS = (
    "data=parquet",
    "data.image_size=16",
    "data.mean=[0.5,0.5,0.5]",
    "data.std=[0.25,0.25,0.25]",
    f"data.buffer_gb={BUFFER_GB}",
    "backbone.width=8",
    f"train.epochs={EPOCHS}",
    f"train.batch_size={BATCH}",
    "train.workers=1",
    "train.log_every=20st",
    "train.checkpoint_every=1ep",
    "benchmarks=[]",
)
"""A small network on Parquet files."""
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
SHARED = "shared memory"
"""What /dev/shm holds more than before the run."""


@dataclass(frozen=True)
class Sample:
    """Memory of a run at one moment: bytes by kind of process, without pages of files and of shared memory."""

    step: int  # of the newest logged line
    bytes: dict[str, int]


def measure() -> Numbers:
    """Run `raysl pretrain` and sample the memory of its processes.

    Returns:
        `memory_mb` (by kind, the medians around each of `MARKS`), `growth` (by kind of process, the last of them
        over that after a quarter of the steps), `shared_mb` (most that /dev/shm held), `environment`.
    """
    if not PROC.is_dir():
        raise ConfigError("this measurement reads the memory of processes from /proc: run it on Linux")
    environment = machine()
    with scratch_folder() as folder:
        (folder / "images").mkdir()
        write_pictures(folder / "images" / "train.parquet", 32, EPOCH_STEPS * BATCH)
        samples = _watch(folder)
    return summarize(samples) | {"environment": environment}


def summarize(samples: Sequence[Sample]) -> Numbers:
    """Return the numbers of `measure` that samples show."""
    memory_mb = {kind: [_around(samples, kind, mark * STEPS) for mark in MARKS] for kind in samples[-1].bytes}
    return {
        "memory_mb": memory_mb,
        "growth": {kind: memory_mb[kind][-1] / memory_mb[kind][1] for kind in KINDS},
        "shared_mb": max(sample.bytes[SHARED] for sample in samples) / 1e6,
    }


def table(numbers: Numbers) -> str:
    """Format the result of `measure` as text."""
    rows = [["MB after step", *(f"{mark * STEPS:,.0f}" for mark in MARKS), "growth", f"goal up to {FLAT}"]]
    for kind, row in numbers["memory_mb"].items():
        growth = numbers["growth"].get(kind)
        ends = ["", ""] if growth is None else [f"{growth:.3f}", verdict(growth <= FLAT)]
        rows.append([kind, *(f"{value:.1f}" for value in row), *ends])
    most = f"most in /dev/shm {numbers['shared_mb']:.1f} MB, with data.buffer_gb of {1000 * BUFFER_GB:.0f} MB"
    return "\n".join([*aligned(rows, 1), most])


def _watch(folder: Path) -> list[Sample]:
    """Run to the end, and return a sample of each second in which a training worker was alive."""
    log, before, samples = folder / "run" / METRICS_FILE, _shared(), list[Sample]()
    command = ["pretrain", "quickstart", *SETTINGS, f"data.path={folder / 'images'}", f"storage={folder}", "name=run"]
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(command_s, command)
        while not run.done():
            time.sleep(PERIOD_S)
            memory = _memory() | {SHARED: max(0, _shared() - before)}
            if memory["worker"]:
                lines = parse_metrics(log.read_bytes()) if log.exists() else []
                samples.append(Sample(int(lines[-1]["step"]) if lines else 0, memory))
        run.result()
    return samples


def _memory() -> dict[str, int]:
    """Return the bytes of the processes below this one, by kind."""
    sums = dict.fromkeys(KINDS, 0)
    for pid in descendants(os.getpid()):
        command = command_line(pid)
        for kind, patterns in KINDS.items():
            if any(pattern in command for pattern in patterns):
                sums[kind] += unmapped(pid)
    return sums


def _shared() -> int:
    return shutil.disk_usage("/dev/shm").used


def _around(samples: Sequence[Sample], kind: str, step: float) -> float:
    """Return the MB of a kind: the median of the five samples that are nearest to a step."""
    nearest = sorted(samples, key=lambda sample: abs(sample.step - step))[:5]
    return median(sample.bytes[kind] for sample in nearest) / 1e6
