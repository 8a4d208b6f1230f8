"""Work on the cluster as `python -m perf benchmark` times it: support vector machines, extraction, the driver's memory.

What is compared with raysl runs in Ray tasks, too: Ray makes its processes nice, and both sides shall be equally so.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor, nn

from perf.classifiers import Sizes
from perf.harness import scratch_folder
from perf.pictures import write_pictures
from raysl.benchmarks.benchmark import FEATURES
from raysl.benchmarks.classifiers.svm_training import LabelledRows, Machine, cross_validated, normalised
from raysl.benchmarks.features.embedding import StagedNetwork, features_of, read_rows
from raysl.benchmarks.features.extraction import Wanted, extract_to
from raysl.benchmarks.parallel import run_jobs
from raysl.benchmarks.svm import SVM
from raysl.cluster.connection import cluster_resources, connect, disconnect
from raysl.config.schema import DataConfig
from raysl.data.source import Split
from raysl.data.sources.parquet import Parquet
from raysl.data.sources.synthetic import Synthetic
from raysl.nn.backbones.resnet import ResNet
from raysl.process.memory import most_resident, resident
from raysl.storage.folder import Folder

SIDE = 224
SMALL_SIDE = 8


def num_cpus() -> int:
    """Return the number of CPUs of the cluster."""
    connect()
    return max(1, int(cluster_resources().cpus))


def svm_contenders(sizes: Sizes) -> dict[str, Callable[[], Any]]:
    """Cross-validated precision of each class and cost: side by side as `svm` has it, and one after another."""
    num_cpus()
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(sizes.svm_classes, sizes.svm_dim, generator=generator)
    classes = torch.arange(sizes.svm_rows) % sizes.svm_classes
    features = means[classes] + 2 * torch.randn(sizes.svm_rows, sizes.svm_dim, generator=generator)
    labels = (classes[:, None] == torch.arange(sizes.svm_classes)).numpy().astype(np.int8)
    rows = LabelledRows(normalised(features), labels)
    config = SVM.Config()
    order = [(column, cost) for cost in sorted(config.costs, reverse=True) for column in range(sizes.svm_classes)]
    jobs = [(*job, config.folds, Machine(max_iter=config.max_iter)) for job in order]
    one_cpu = ray.remote(num_cpus=1)(_one_after_another)
    return {
        "raysl": lambda: run_jobs(cross_validated, rows, jobs),
        "one core": lambda: ray.get(one_cpu.remote(rows, jobs)),
    }


def _one_after_another(rows: LabelledRows, jobs: list[tuple[Any, ...]]) -> list[tuple[float, int]]:
    return [cross_validated(rows, *job) for job in jobs]


class Extraction:
    """Images a second from encoded images to features on disk, and of the bare forward pass."""

    def __init__(self, sizes: Sizes, folder: Path, side: int = SIDE) -> None:
        self.sizes, self.folder, self.num_cpus = sizes, folder, num_cpus()
        network = ResNet(ResNet.Config(depth=sizes.depth))  # type: ignore[arg-type]
        self.wanted = Wanted({"network": network}, {"network": "made"})
        self.splits = {}
        for num in (sizes.few_images, sizes.images):
            path = folder / f"{num}.parquet"
            write_pictures(path, side, num)
            config = Parquet.Config(train=str(path), image_size=side)
            self.splits[num] = (Parquet(config).required("train"), config)
        split, data = self.splits[sizes.few_images]
        images = read_rows(split, np.arange(min(64, sizes.few_images)), data).views["image"]
        self.held = ray.put((network.eval(), images, data))
        self.num_runs = 0

    def start(self) -> None:
        """Have Ray start its processes and their imports."""
        self._seconds(self.sizes.few_images)

    def rates(self) -> dict[str, float]:
        """Images a second of the forward pass, before and after, and of the extraction, without its start."""
        few, many = self.sizes.few_images, self.sizes.images
        before = self._forward()
        seconds = self._seconds(many) - self._seconds(few)
        after = self._forward()
        return {"raysl": (many - few) / max(seconds, 1e-9), "forward": (before + after) / 2}

    def _seconds(self, num: int) -> float:
        split, data = self.splits[num]
        self.num_runs += 1
        start = time.perf_counter()
        extract_to(self.wanted, split, data, {("network", FEATURES): Folder(str(self.folder / str(self.num_runs)))})
        return time.perf_counter() - start

    def _forward(self) -> float:
        """Images a second on as many cores, with a process and a thread each, from images in memory."""
        num = max(1, (self.sizes.images - self.sizes.few_images) // self.num_cpus)
        task = ray.remote(num_cpus=1)(_forward_passes)
        results = ray.get([task.remote(self.held, num) for _ in range(self.num_cpus)])
        return float(sum(images / seconds for images, seconds in results))


def _forward_passes(held: tuple[nn.Module, Tensor, DataConfig], num: int) -> tuple[int, float]:
    """Process at least `num` images; return their number and the seconds."""
    torch.set_num_threads(1)
    network, images, data = held
    networks, images = {"network": StagedNetwork(network, (FEATURES,))}, images.clone()
    features_of(networks, images[:2], data, torch.device("cpu"))
    start, passed = time.perf_counter(), 0
    while passed < num:
        features_of(networks, images, data, torch.device("cpu"))
        passed += len(images)
    return passed, time.perf_counter() - start


class StandIn(nn.Module):
    """A stand-in whose features are as wide as those of a large network, which computes almost nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * SMALL_SIDE**2, width)

    def forward(self, images: Tensor) -> Tensor:
        """[B, D] of images [B, 3, 8, 8]."""
        features: Tensor = self.layer(images.flatten(1))
        return features


def driver_memory(rows: int, width: int) -> dict[str, float]:
    """Measure the most MB of this process while a cluster of its own extracts rows, those before, and seconds."""
    data = Synthetic.Config(num_train=rows, image_size=SMALL_SIDE)
    split: Split = Synthetic(data).required("train")
    connect()
    try:
        before, start = resident(), time.perf_counter()
        with scratch_folder() as folder:
            wanted = Wanted({"network": StandIn(width)}, {"network": "made"})
            extract_to(wanted, split, data, {("network", FEATURES): Folder(str(folder))})
            seconds = time.perf_counter() - start
    finally:
        disconnect()
    return {"most_mb": most_resident() / 2**20, "before_mb": before / 2**20, "seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(driver_memory(*map(int, sys.argv[1:]))))
