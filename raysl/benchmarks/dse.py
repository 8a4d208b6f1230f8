"""DSE, the Dense representation Structure Estimator, which measures patch features without labels.

Dai et al. 2025, Exploring Structural Degradation in Dense Representations for Self-supervised Learning (arXiv
2510.17299). Numbers and scales are those of the authors' code.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from raysl.benchmarks.benchmark import Benchmark, ConfigError, Context, Labelled, Metric, Needs
from raysl.benchmarks.dense.maps import chosen_stages, maps_of
from raysl.benchmarks.dense.structure import structure_of
from raysl.benchmarks.features.embedding import BATCH_PIXELS, read_rows
from raysl.checkpoint.backbone import Checkpoint
from raysl.config.ranges import Count, Within
from raysl.config.schema import BenchmarkConfig
from raysl.data.sources.sample import sample_rows
from raysl.hashing import hash_words, permutation
from raysl.nn.backbones.backbone import Backbone
from raysl.transforms.channels import network_input

Clusters = Annotated[int, Within(2, 65_536)]
TITLES = {
    "dse": "DSE",
    "distance": "Distance between clusters of patches",
    "image_radius": "Radius of clusters of an image's patches",
    "group_radius": "Radius of clusters of several images' patches",
    "dimensionality": "Effective dimensionality of patches",
}


class DSE(Benchmark):
    """Separation of clusters of patch features, and the share of directions that patch features use.

    DSE = distance - (image_radius + group_radius) / 2 + dim_weight * dimensionality. Clusters are those of k-means and
    stand for classes. Larger is better: the paper picks those checkpoints of a run where DSE has a peak, as their
    segmentation is the best. Compare DSE only between checkpoints of one architecture on the same images.
    """

    protocol = (
        "DSE of the patch features of the last map, with k-means clusters of an image and of 8 images as classes "
        "(Dai et al. 2025, arXiv 2510.17299); no labels"
    )
    cost = "one forward pass of 1,024 images, k-means of the patches of each image, and seconds to minutes of algebra"

    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        """Settings of the estimator."""

        name: str = "dse"
        rivals: tuple[Literal["untrained"], ...] = ("untrained",)
        """Rivals of the pre-trained backbone: the same one with initial weights."""
        split: Literal["train", "test"] = "train"
        """Images whose patches are measured."""
        images: Count = 1024
        """Images that are measured, an even share, rounded down to whole groups. The dimensionality depends on this
        number."""
        stage: str | None = None
        """Map of the backbone that is measured. Default: the last one, of a ViT its patch tokens."""
        normalize: bool = True
        """Bring the features of each patch to length 1 first."""
        image_clusters: Clusters = 3
        """Clusters of the patches of one image."""
        group_images: Count = 8
        """Images of a group, whose patches are clustered together."""
        group_clusters: Clusters = 24
        """Clusters of the patches of a group."""
        iters: Annotated[int, Within(1, 10_000)] = 20
        """Rounds of k-means."""
        dim_weight: Annotated[float, Within(0, 1e6)] = 1.0
        """Weight of the dimensionality in DSE, lambda of the paper. The paper takes it from all checkpoints that it
        compares: the standard deviation of distance minus radius, over that of the dimensionality."""

    @classmethod
    @override
    def needs(cls, config: Config) -> Needs:
        """Labels are not needed, and test images only if they are measured."""
        return Needs(labels="none", test=config.split == "test")

    @classmethod
    @override
    def stages(cls, config: Config) -> tuple[str, ...]:
        """Features of whole images are not needed."""
        return ()

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """There must be at least one group of images."""
        num = images.num_test if config.split == "test" else images.num_train
        if min(num, config.images) < config.group_images:
            raise ConfigError(
                f"dse compares groups of group_images={config.group_images}, and would look at "
                f"{min(num, config.images)}: {num:,} in the {config.split} split, images={config.images}; give more "
                "images or smaller groups"
            )
        return config, []

    @classmethod
    @override
    def check(cls, config: Config, checkpoint: Checkpoint) -> None:
        (stage,) = chosen_stages(checkpoint.backbone, _named(config))
        num = math.ceil(checkpoint.config.data.image_size / stage.stride) ** 2
        if num <= config.image_clusters or num * config.group_images <= config.group_clusters:
            raise ConfigError(
                f"dse finds image_clusters={config.image_clusters} among the {num} places of the map {stage.name} of "
                f"an image, and group_clusters={config.group_clusters} among those of {config.group_images} images; "
                "there must be more places than clusters: give fewer clusters, or a finer map as stage="
            )

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        return list(TITLES)

    @override
    @torch.inference_mode()
    def measure(self, context: Context) -> list[Metric]:
        config = self.config
        patches = self._patches(context)
        if not bool(patches.isfinite().all()):
            raise ConfigError(f"patch features of the {config.split} images are not finite: the network has diverged")
        structure = structure_of(
            F.normalize(patches, dim=2) if config.normalize else patches,
            config.image_clusters,
            config.group_images,
            config.group_clusters,
            config.iters,
            context.seed,
        )
        values = (
            structure.dse(config.dim_weight),
            structure.distance,
            structure.image_radius,
            structure.group_radius,
            structure.dimensionality,
        )
        return [
            Metric(name, value, unit="", title=title, is_headline=name == "dse", is_lower_better="radius" in name)
            for (name, title), value in zip(TITLES.items(), values, strict=True)
        ]

    def _patches(self, context: Context) -> Tensor:
        """Compute the patch features of the images in an order drawn from the seed, float [B, N, D].

        The order mixes classes in a group where a dataset is sorted by class.
        """
        config, data = self.config, context.data
        images = context.images[config.split]
        network = context.network
        assert isinstance(network, Backbone)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        network = network.to(device)
        (stage,) = chosen_stages(network, _named(config))
        index = sample_rows(images, config.images)
        index = index[: len(index) // config.group_images * config.group_images]
        parts = []
        size = max(16, BATCH_PIXELS // data.image_size**2)
        for part in np.split(index, range(size, len(index), size)):
            pixels = read_rows(images, part, data).views["image"].to(device)  # uint8 [b, 3, H, W]
            (maps,) = maps_of(network, network_input(pixels, data.mean, data.std, data.channels), [stage])
            parts.append(maps.flatten(2).transpose(1, 2).float())  # [b, N, D]
        order = permutation(len(index), hash_words(context.seed, len(index)))
        return torch.cat(parts)[torch.from_numpy(order).to(device)]


def _named(config: DSE.Config) -> tuple[str, ...]:
    return () if config.stage is None else (config.stage,)
