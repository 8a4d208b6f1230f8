"""Features of images in evaluation: one normalised crop of each, by networks in evaluation mode; and small pictures."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from raysl.benchmarks.benchmark import FEATURES
from raysl.config.schema import DataConfig
from raysl.data.decode.corrupt import Replaced
from raysl.data.decode.images import Cut, Pictures, cut_images
from raysl.data.source import Split
from raysl.errors import ConfigError
from raysl.hashing import Int64s
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.pooling import Pool, pooled_stages
from raysl.report.contents import Pixels
from raysl.transforms.channels import network_input, to_shown
from raysl.transforms.view_recipe import ViewRecipe, evaluation_recipe

BATCH_PIXELS = 64 * 224 * 224
"""Pixels that pass through a network at once: activations of 64 images of the usual size."""


@dataclass(frozen=True)
class Embedded:
    """Features and labels of some rows.

    Args:
        features: float32 [B, D] on the CPU, by the names of the networks.
        labels: int64 [B], or [B, K] of a multi-label split.
        corrupt: names of the images that were replaced by neighbours, with the reason.
    """

    features: dict[str, Tensor]
    labels: Int64s
    corrupt: tuple[Replaced, ...]


class StagedNetwork(nn.Module):
    """A network that returns its features and those of stages in one pass.

    Args:
        network: module from normalised images [B, C, H, W] to [B, D].
        stages: `FEATURES` for that, and names of stages of a `Backbone`, each of which becomes its mean over all
            places.
    """

    def __init__(self, network: nn.Module, stages: Sequence[str]) -> None:
        super().__init__()
        self.network = network
        self.names = tuple(stages)
        self.inner = tuple(name for name in stages if name != FEATURES)
        if self.inner and not isinstance(network, Backbone):
            raise ValueError(f"{type(network).__name__} has no stages, so no {', '.join(self.inner)}")

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Compute features float [B, D] of normalised images [B, C, H, W], by stage."""
        if not self.inner:
            return {FEATURES: self.network(images)}
        assert isinstance(self.network, Backbone)
        feature_stages = self.network.feature_stages if FEATURES in self.names else ()
        # stages that the features are made of come first, then those asked for, all in one pass
        pools = [*((name, Pool(kind="none")) for name in feature_stages), *((name, Pool()) for name in self.inner)]
        vectors = pooled_stages(self.network, images, pools)
        features = dict(zip(self.inner, vectors[len(feature_stages) :], strict=True))
        if FEATURES in self.names:
            features[FEATURES] = (
                torch.cat(vectors[: len(feature_stages)], dim=1) if feature_stages else self.network(images)
            )
        return features


def check_stages(backbone: nn.Module, stages: Sequence[str], where: str) -> None:
    """Refuse stages that a backbone does not have."""
    known = list(backbone.stage_widths) if isinstance(backbone, Backbone) else []
    for stage in stages:
        if stage != FEATURES and stage not in known:
            raise ConfigError(
                f"no stage {stage!r} in the backbone of {where}; it has {', '.join(known) or 'none that it tells of'}"
            )


def read_rows(split: Split, index: Int64s, data: DataConfig, thumbnail: ViewRecipe | None = None) -> Cut:
    """Read rows of a split as they are evaluated, uint8 [B, 3, H, W] as the view `image`.

    Args:
        index: int64 [B].
        thumbnail: makes one more view of each, called `thumbnail`.

    Raises:
        CorruptImage: if an image and all that could replace it are broken.
    """
    recipes = {"image": evaluation_recipe(data.image_size, data.eval_resize, data.eval_interpolation)}
    recipes |= {} if thumbnail is None else {"thumbnail": thumbnail}

    def crops(sources: tuple[Pictures, ...], rows: Int64s) -> dict[str, Tensor]:
        images = sources[0].images
        return {name: recipe(images, rows, seed=0, epoch=0)["image"][:, 0] for name, recipe in recipes.items()}

    return cut_images(split, index, crops)


@torch.inference_mode()
def features_of(
    networks: Mapping[str, StagedNetwork], images: Tensor, data: DataConfig, device: torch.device
) -> dict[tuple[str, str], Tensor]:
    """Compute features of images uint8 [B, 3, H, W], float32 [B, D] on the CPU, by names of network and stage."""
    parts: dict[tuple[str, str], list[Tensor]] = {}
    for batch in torch.split(images, max(16, BATCH_PIXELS // (images.shape[-1] * images.shape[-2]))):
        normal = network_input(batch.to(device), data.mean, data.std, data.channels)
        for name, network in networks.items():
            for stage, parts_of_stage in network(normal).items():
                parts.setdefault((name, stage), []).append(parts_of_stage.float().cpu())
    return {key: torch.cat(parts_of_stage) for key, parts_of_stage in parts.items()}


def embed(
    models: Mapping[str, nn.Module], split: Split, index: Int64s, data: DataConfig, device: torch.device
) -> Embedded:
    """Compute features of rows of a split.

    Args:
        models: networks from normalised images [B, C, H, W] to [B, D] by name, on the device.
        index: int64 [B].
    """
    read = read_rows(split, index, data)
    networks = {name: StagedNetwork(model, (FEATURES,)) for name, model in models.items()}
    features = features_of(networks, read.views["image"], data, device)
    return Embedded({name: value for (name, _), value in features.items()}, read.labels, read.corrupt)


MOST_SIDE = 64
"""Largest side in pixels."""
QUALITY = 95
"""Of JPEG."""


def thumbnail_recipe(data: DataConfig) -> ViewRecipe:
    """Return the recipe of one small view of an image, the whole centre of it."""
    size = min(MOST_SIDE, data.image_size)
    return evaluation_recipe(size, size)


def thumbnails_of(split: Split, index: Int64s, data: DataConfig) -> Pixels:
    """Read images and return their thumbnails, uint8 [N, H, W, 3]."""
    recipe = thumbnail_recipe(data)
    cut = cut_images(split, index, lambda sources, rows: recipe(sources[0].images, rows, 0, 0))
    return to_shown(cut.views["image"][:, 0]).permute(0, 2, 3, 1).numpy()


def encoded(pixels: Pixels) -> list[bytes]:
    """Return thumbnails [N, H, W, 3] as JPEG files."""
    files = []
    for image in pixels:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", quality=QUALITY)
        files.append(buffer.getvalue())
    return files


def decoded(files: Sequence[bytes]) -> Pixels:
    """Return the pixels of `encoded` thumbnails, uint8 [N, H, W, 3].

    >>> decoded(encoded(np.zeros((2, 8, 8, 3), np.uint8))).shape
    (2, 8, 8, 3)
    """
    return np.stack([np.array(Image.open(io.BytesIO(file))) for file in files])
