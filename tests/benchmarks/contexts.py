"""A context as benchmarks are handed it, for a network and a dataset that need no run."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from raysl.benchmarks.benchmark import Context, FeatureSet, Side
from raysl.components import resolve
from raysl.config.schema import DataConfig
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.backbones.vit import ViT
from raysl.storage.folder import Folder


def context_of(
    network: nn.Module,
    data: DataConfig,
    folder: Path,
    train: FeatureSet | None = None,
    test: FeatureSet | None = None,
    num_classes: int = 0,
    side: Side = "trained",
) -> Context:
    """That of a source; there is no checkpoint in it."""
    source = resolve("source", data.name)(data)
    images = {name: split for name in ("train", "test") if (split := source.optional(name)) is not None}
    no_checkpoint: Any = None
    return Context(
        side, network.eval(), no_checkpoint, data, images, train, test, num_classes, seed=0, folder=Folder(str(folder))
    )


def tiny_resnet() -> ResNet:
    """Of 10 layers, 8 channels wide."""
    return ResNet(ResNet.Config(depth=10, width=8)).eval()


def tiny_vit() -> ViT:
    """Of two blocks, with patches of 8 pixels."""
    return ViT(ViT.Config(width=16, depth=2, heads=2, patch_size=8, image_size=32)).eval()


class Flat(nn.Module):
    """The pixels themselves."""

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] to [B, 3 * H * W]."""
        return images.flatten(1)
