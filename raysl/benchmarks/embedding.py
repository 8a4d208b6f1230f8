"""Images to features, as they are measured: one crop of each, normalised, by networks in evaluation mode."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raysl.config.schema import DataConfig
from raysl.data.decode.images import cut_images
from raysl.data.source import Split
from raysl.hashing import Int64s
from raysl.transforms.channels import network_input
from raysl.transforms.view_recipe import evaluation_recipe


@dataclass(frozen=True)
class Embedded:
    """Features of some rows.

    Args:
        features: float32 [B, D] on the CPU, by the names of the networks.
        labels: int64 [B], or [B, K] of a multi-label split.
        corrupt: names of the images that were replaced by neighbours, with the reason.
    """

    features: dict[str, Tensor]
    labels: Int64s
    corrupt: tuple[str, ...]


@torch.inference_mode()
def embed(
    models: Mapping[str, nn.Module], split: Split, index: Int64s, data: DataConfig, device: torch.device
) -> Embedded:
    """Features of rows of a split.

    Args:
        models: networks from normalised images [B, C, H, W] to [B, D] by name, on the device.
        split: the images.
        index: int64 [B].
        data: gives sizes and normalisation.
        device: where they are computed.

    Raises:
        CorruptImage: if an image and all that could replace it are broken.
    """
    recipe = evaluation_recipe(data.image_size, data.eval_resize)
    read = cut_images(split, index, lambda sources, rows: recipe(sources[0].images, rows, seed=0, epoch=0))
    normal = network_input(read.views["image"][:, 0].to(device), data.mean, data.std, data.channels)
    features = {name: model(normal).float().cpu() for name, model in models.items()}
    return Embedded(features, read.labels, read.corrupt)
