"""The training of every contender: SimCLR on a few batches made beforehand, so that only steps are measured."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from raysl.config.schema import RunConfig, TrainConfig
from raysl.data.batch import Batch
from raysl.data.decode.images import read_images
from raysl.data.sources.synthetic import Synthetic
from raysl.methods.simclr import SimCLR
from raysl.nn.backbones.resnet import ResNet
from raysl.optim.sgd import SGD
from raysl.plan.setup import Setup
from raysl.schedule import Duration
from raysl.transforms.functional import normalize
from raysl.transforms.recipes import MultiCrop

NUM_BATCHES = 2


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A ResNet for small images under SimCLR with SGD, in fp32, each process normalising its own batch.

    Args:
        batch_size: images of each process, with two views each.
        image_size: side of the views.
        depth, width: of the ResNet.
        hidden_dim: of the projector.
        lr: of SGD, constant.
    """

    batch_size: int = 64
    image_size: int = 32
    depth: Literal[10, 18, 34, 50] = 18
    width: int = 64
    hidden_dim: int = 2048
    lr: float = 0.03

    @property
    def backbone(self) -> ResNet.Config:
        """Settings of the network."""
        return ResNet.Config(depth=self.depth, width=self.width, stem="cifar")

    @property
    def views(self) -> MultiCrop:
        """SimCLR's, of this size."""
        return replace(SimCLR.Config().views, size=self.image_size)

    def config(self, name: str, storage: Path, num_steps: int, world: int, threads: int) -> RunConfig:
        """A run of `num_steps` that saves at its end and logs as often as by default."""
        batch_size = self.batch_size * world
        return RunConfig(
            name=name,
            storage=str(storage),
            method=SimCLR.Config(
                hidden_dim=self.hidden_dim, projector_norm=False, output_norm="none", views=self.views
            ),
            backbone=self.backbone,
            data=Synthetic.Config(image_size=self.image_size, num_train=batch_size * num_steps),
            optim=SGD.Config(lr=self.lr, lr_scaling="none", schedule="constant", warmup=Duration(0, "st")),
            train=TrainConfig(
                epochs=1, batch_size=batch_size, workers=world, threads=threads, precision="fp32", sync_bn=False
            ),
        )

    def batches(self, rank: int) -> list[Batch]:
        """The batches of one process: a function of its rank."""
        config = Synthetic.Config(image_size=self.image_size)
        split = Synthetic(config).required("train")
        recipe = self.views.recipe()
        made = []
        for number in range(NUM_BATCHES):
            first = (rank * NUM_BATCHES + number) * self.batch_size
            index = np.arange(first, first + self.batch_size)
            read = read_images(split, index)
            views = recipe(read.pictures[0].images, index, seed=0, epoch=0)
            floats = {group: normalize(view, config.mean, config.std) for group, view in views.items()}
            made.append(Batch(floats, torch.from_numpy(index), torch.from_numpy(read.labels)))
        return made


def setup_of(config: RunConfig) -> Setup:
    """Return the setup of a workload."""
    assert isinstance(config.data, Synthetic.Config)
    return Setup.of(config, config.data.num_train, config.data.num_classes)
