"""Reading a trained network that a method learns from, on the driver and on each worker."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.checkpoint.backbone import Checkpoint, load_checkpoint
from raysl.checkpoint.published import PublishedWeights
from raysl.components import resolve
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.plan.setup import Setup

LIBRARIES = ("timm:", "torchvision:")
"""Beginnings of the names of published networks: `timm:vit_small_patch14_dinov2.lvd142m`."""


def library_config(name: str) -> Any:
    """Return the settings of the backbone that such a name stands for, with its published weights.

    >>> library_config("timm:resnet18.a1_in1k").model, library_config("torchvision:resnet18").pretrained
    ('resnet18', True)
    """
    library, _, model = name.partition(":")
    model, _, tag = model.partition(".")
    return resolve("backbone", library).Config(model=model, pretrained=tag or True)


def read_published(name: str) -> tuple[Backbone, tuple[float, ...], tuple[float, ...]]:
    """Return a published network, and the mean and deviation of its images.

    Raises:
        ConfigError: if its library has no such network or weights.
        StorageError: if they cannot be downloaded.
    """
    config = library_config(name)
    backbone: type[Backbone] = resolve("backbone", config.name)
    network = backbone(config.at_random())
    published = backbone.published(config)
    if not any(weight.is_meta for weight in network.parameters()):  # as where only sizes are asked for
        PublishedWeights(config.name, published).fill_backbone(network)
    return network.eval(), published.mean, published.std


class ImagesOf(nn.Module):
    """Turns images that are normalised for a run into those that another network was trained on.

    Args:
        mean, std: of the run's images, of each channel.
        their_mean, their_std: of the other network's.
        size: side in pixels to which images are brought; None leaves them.
    """

    factor: Tensor
    shift: Tensor

    def __init__(
        self,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        their_mean: tuple[float, ...],
        their_std: tuple[float, ...],
        size: int | None = None,
    ) -> None:
        super().__init__()
        ours, theirs = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (mean, their_mean))
        our_std, their = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (std, their_std))
        self.register_buffer("factor", (our_std / their).float(), persistent=False)  # [C, 1, 1]
        self.register_buffer("shift", ((ours - theirs) / their).float(), persistent=False)
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        """Return images [n, C, size, size] of images [n, C, H, W]."""
        images = images * self.factor.to(images.dtype) + self.shift.to(images.dtype)
        if self.size is None or images.shape[-2:] == (self.size, self.size):
            return images
        return F.interpolate(images, (self.size, self.size), mode="bilinear", antialias=True)


def read_teacher(setup: Setup, key: str = "teacher") -> Checkpoint:
    """Return the checkpoint at `method.teacher`, or another key, or the newest one of the run there.

    Raises:
        ConfigError: if it cannot be read, or its images had other channels or another normalisation.
    """
    try:
        checkpoint = load_checkpoint(getattr(setup.method, key))
    except ConfigError as error:
        raise ConfigError(f"method.{key}: {error}") from error
    ours, theirs = setup.config.data, checkpoint.config.data
    if theirs.channels != ours.channels:
        raise ConfigError(
            f"data.channels is {ours.channels}, and that of method.{key} {theirs.channels}; set "
            f"data.channels={theirs.channels}"
        )
    if (theirs.mean, theirs.std) != (ours.mean, ours.std):
        raise ConfigError(
            f"data.mean and data.std are {list(ours.mean)} and {list(ours.std)}, and those of method.{key} "
            f"{list(theirs.mean)} and {list(theirs.std)}; set data.mean={list(theirs.mean)} "
            f"data.std={list(theirs.std)}"
        )
    return checkpoint
