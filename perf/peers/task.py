"""One run of one library, and what all of them share: images, network, views, numbers, and the measure of the result.

Every number comes from raysl's `configs/cifar10/METHOD.yaml` and the settings below: a peer gets what raysl has.
"""

import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from perf.harness import Numbers
from perf.pictures import open_image
from raysl.benchmarks.benchmark import FeatureSet
from raysl.benchmarks.knn import knn_predict
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.nn.backbones.resnet import ResNet
from raysl.optim.course import lr_at
from raysl.plan.plan import TrainPlan

VIEWS = (
    "method.views.min_scale=0.2",
    "method.views.jitter_p=0.8",
    "method.views.jitter_strength=1",
    "method.views.jitter=[0.4,0.4,0.4,0.1]",
    "method.views.grayscale_p=0.2",
    "method.views.blur_p=0",
    "method.views.solarize_p=0",
    "method.views.interpolation=bilinear",
)
ALTERNATING = ("method.views.second_blur_p=0", "method.views.second_solarize_p=0")
SGD = ("optim=sgd", "optim.lr=0.12", "optim.momentum=0.9", "optim.weight_decay=5e-4", "optim.lr_scaling=linear")
METHODS: dict[str, tuple[str, ...]] = {
    "simclr": VIEWS,
    "moco": (*VIEWS, "method.queue_size=4096"),
    "byol": (*VIEWS, *ALTERNATING),
    "barlow_twins": (*VIEWS, *ALTERNATING, *SGD, "method.dim=512", "method.scale=0.1"),
    "vicreg": (*VIEWS, *ALTERNATING, *SGD, "method.dim=512", "optim.lr=0.03"),
    "swav": VIEWS,
    "dino": (*VIEWS, *ALTERNATING, "method.head.num_layers=3"),
    "mae": ("method.decoder_width=96", "method.decoder_depth=1", "method.decoder_heads=3", "optim.lr=5e-4"),
    "lejepa": (*VIEWS, "method.views.num=2", "method.hidden_dim=512", "method.num_slices=256"),
}
"""Methods, each with what differs from its configuration for CIFAR-10."""
NETWORKS = {
    "resnet": ("backbone.depth=10", "backbone.width=8"),
    "vit": ("backbone.size=nano", "backbone.output=mean"),
}
NEIGHBOURS, TEMPERATURE = 20, 0.07  # of the kNN; the field's values


@dataclass(frozen=True)
class Task:
    """A run of one method in one library."""

    library: str  # raysl, lightly or stable_pretraining
    method: str
    seed: int  # of weights, order and views
    data: str  # folder with CIFAR-10 as Parquet files
    images: int = 10_000  # the first of the training split; they are the bank of the kNN too
    epochs: int = 8
    batch_size: int = 128
    test_images: int = 5_000  # the first of the test split; 0 measures nothing

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"{self.method}-{self.library}-{self.seed}"

    @cached_property
    def config(self) -> RunConfig:
        """Settings of raysl's run, whose numbers all libraries take."""
        network = "vit" if self.method == "mae" else "resnet"
        settings = [
            f"data.path={self.data}",
            f"data.limit={self.images}",
            *NETWORKS[network],
            f"train.batch_size={self.batch_size}",
            f"train.epochs={self.epochs}",
            f"seed={self.seed}",
            "optim.warmup=1ep",
            "train.precision=fp32",
            "train.online_knn_every=null",
            "benchmarks={}",
        ]
        return load_config(f"cifar10/{self.method}", [*settings, *METHODS[self.method]])

    @cached_property
    def plan(self) -> TrainPlan:
        """Epochs and updates."""
        return TrainPlan.from_config(self.config, self.images)

    def lr(self, index: int) -> float:
        """Learning rate of an update."""
        return lr_at(self.config.optim, self.plan.step(index), self.batch_size)

    def encoded(self, split: str, num: int) -> tuple[list[bytes], list[int]]:
        """Read the first images of a split as they are encoded, and their labels."""
        images: list[bytes] = []
        labels: list[int] = []
        for path in sorted(Path(self.data).glob(f"{split}-*.parquet")):
            table = pq.read_table(path)
            names = table.column_names
            image, label = (next(name for name in names if name.startswith(part)) for part in ("im", "la"))
            for value in table.column(image).to_pylist():
                images.append(value["bytes"] if isinstance(value, dict) else value)
            labels += table.column(label).to_pylist()
            if len(images) >= num:
                break
        return images[:num], labels[:num]

    def normalised(self, split: str, num: int) -> tuple[Tensor, Tensor]:
        """Read the first images of a split without augmentation, normalised [N, 3, 32, 32], and their labels."""
        images, labels = self.encoded(split, num)
        pixels = np.stack([np.asarray(open_image(image)) for image in images])
        floats = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.config.data.mean, self.config.data.std))
        return (floats - mean) / std, torch.tensor(labels)

    def resnet(self) -> ResNet:
        """Build the network of all methods but MAE."""
        torch.manual_seed(self.seed)
        config: Any = self.config.backbone
        return ResNet(config)


Features = Callable[[Tensor], Tensor]
"""From normalised images [B, 3, 32, 32] to features [B, D]."""


class Clock:
    """Seconds of the training loop behind its first epoch, by the wall and of this process's CPUs."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.first = task.plan.epoch_len if task.epochs > 1 else 0
        self.wall = self.cpu = 0.0

    def begin(self, index: int) -> None:
        """Call in front of each update, with its number."""
        if index == self.first:
            self.wall, self.cpu = time.perf_counter(), time.process_time()

    def stop(self) -> dict[str, float]:
        """Return the images a second and the seconds of this process's CPUs for 1,000 images."""
        num = (self.task.plan.total_steps - self.first) * self.task.batch_size
        seconds, cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        return {"images_s": num / seconds, "cpu_s_1000": 1000 * cpu / num}


@torch.no_grad()
def knn_k20_top1(task: Task, features: Features) -> float:
    """Return the percentage of test images that the nearest training images classify rightly."""

    def measured(split: str, num: int) -> tuple[Tensor, Tensor]:
        images, labels = task.normalised(split, num)
        return torch.cat([features(chunk) for chunk in torch.split(images, 500)]), labels

    bank, labels = measured("train", task.images)
    queries, truth = measured("test", task.test_images)
    ranked = knn_predict(FeatureSet(bank, labels), queries, 10, (NEIGHBOURS,), TEMPERATURE)[NEIGHBOURS]
    return 100 * (ranked[:, 0] == truth).float().mean().item()


def frozen(network: nn.Module) -> Features:
    """Return a network's features as they are in evaluation."""
    return network.eval()


def schedule(task: Task, optimizer: torch.optim.Optimizer, clock: Clock) -> Iterator[int]:
    """Yield the numbers of all updates, each with its learning rate in the optimizer."""
    for index in range(task.plan.total_steps):
        clock.begin(index)
        for group in optimizer.param_groups:
            group["lr"] = task.lr(index)
        yield index


def run_task(**settings: Any) -> Numbers:
    """Train and measure a `Task` in this process."""
    task = Task(**settings)
    features, times = import_module(f"perf.peers.by_{task.library}").train(task)
    memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # the most so far
    result = {**asdict(task), **times, "memory_gb": memory_gb, "torch": torch.__version__}
    if task.test_images:
        result["knn_k20_top1"] = knn_k20_top1(task, features)
    return result
