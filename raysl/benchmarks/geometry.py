"""The geometry of features, without labels: how many directions they use, and how close views of an image are."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from raysl.benchmarks.benchmark import CHUNK_ROWS, Benchmark, Context, Findings, Labelled, Metric, Needs, mean_of
from raysl.benchmarks.spectrum import (
    Lidar,
    Spectrum,
    alignments,
    effective_rank,
    num_above_rounding,
    power_law_exponent,
    uniformity,
)
from raysl.config.ranges import Area, Count, Rising, Share, Within
from raysl.config.schema import BenchmarkConfig, DataConfig
from raysl.data.decode.images import cut_images
from raysl.data.source import ConfigError, Split
from raysl.data.sources.sample import even_index, sample_rows
from raysl.transforms import ViewRecipe, network_input
from raysl.transforms.recipes import Crops, Strength

BATCH_VIEWS = 256
"""Views that go through the network at once."""
SMALL_SIDE = 64
"""Images of fewer pixels a side are not blurred, as SimCLR has it for CIFAR-10 (appendix B.9)."""

Order = Annotated[int, Within(1, 1_000_000)]
_metric = partial(Metric, unit="", is_headline=False)


class Geometry(Benchmark):
    """Rank, spectrum and spread of features, and the agreement of views of an image.

    Of the features themselves: `rankme`, the headline; `effective_rank`, the same of centred features, where a common
    mean counts for nothing; `alpha_req`, by which power of its order the variance of a principal direction falls;
    `uniformity`. Of augmented views: `alignment`, 0 where views of an image are alike, with its interval over images;
    and `lidar`. Ranks count directions, so their unit is empty: more are better, up to the features' width. Alignment
    and uniformity are the better the smaller, each alone says little: collapsed features are perfectly aligned.
    """

    protocol = (
        "RankMe (Garrido et al. 2023, arXiv 2210.02885), effective rank (Roy and Vetterli 2007), alpha-ReQ (Agrawal et "
        "al. 2022), alignment and uniformity (Wang and Isola 2020, arXiv 2005.10242), LiDAR (Thilak et al. 2023, arXiv "
        "2312.04000); no labels"
    )
    cost = "seconds on features; images x views forward passes for alignment and LiDAR"

    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        """Settings of the measures."""

        name: str = "geometry"
        split: Literal["train", "test"] = "train"
        """Images whose features are measured."""
        rows: Count = 25_600
        """Images whose features the spectrum is of, an even share; RankMe's paper has 25,600. Ranks are at most this
        number."""
        pairs_of: Count = 10_000
        """Images of which all pairs are compared for the uniformity, an even share."""
        alpha_range: Annotated[tuple[Order, Order], Rising()] = (11, 100)
        """First and last order of the principal directions that the power law is fitted to. Features with fewer
        than ten of these orders have it fitted to all of theirs."""
        augmented: bool = True
        """Whether views are made, for alignment and LiDAR."""
        images: Count = 1000
        """Images that views are made of, an even share, or a few whole units of a dataset that is read in units; LiDAR
        is below this number."""
        views: Annotated[int, Within(2, 1000)] = 10
        """Views of each of them."""
        min_scale: Area = 0.08
        """Smallest area of a view's random crop, as a share of the image. Views are SimCLR's."""
        jitter_strength: Strength = 1.0
        """Strength of the views' colour distortion."""
        blur_p: Share | None = None
        """Probability of a view's blur. Default: 0.5, and for images below 64 pixels a side 0."""

    @classmethod
    @override
    def needs(cls, config: Config) -> Needs:
        """Labels are not needed, and test images only if they are measured."""
        return Needs(labels="none", test=config.split == "test")

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """There must be at least two images."""
        num = images.num_test if config.split == "test" else images.num_train
        least = min(num, config.rows, config.pairs_of, config.images if config.augmented else num)
        if least < 2:
            raise ConfigError(
                f"geometry compares images, and would look at {least}: {num:,} in the {config.split} split, "
                f"rows={config.rows}, pairs_of={config.pairs_of}, images={config.images}; give 2 or more of each"
            )
        return config, []

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        names = ["rankme", "effective_rank", "alpha_req", "uniformity"]
        return [*names, *(("alignment", "lidar") if config.augmented else ())]

    @torch.no_grad()
    @override
    def measure(self, context: Context) -> Findings:
        config = self.config
        images = context.test if config.split == "test" else context.train
        assert images is not None
        images.check_finite(config.split)
        spectrum = Spectrum(_even_rows(images.features, config.rows))
        spread = uniformity(torch.cat(list(_even_rows(images.features, config.pairs_of))))
        variances = spectrum.variances()
        metrics = [
            _metric("rankme", effective_rank(spectrum.singular_values()), title="RankMe", is_headline=True),
            _metric("effective_rank", effective_rank(variances.sqrt()), title="Effective rank"),
            _metric("alpha_req", power_law_exponent(variances, config.alpha_range), title="alpha-ReQ (1 is best)"),
            _metric("uniformity", spread, title="Uniformity", is_lower_better=True),
        ]
        if config.augmented:
            metrics += self._of_views(context, context.images[config.split], images.features.shape[1])
        return Findings(metrics, figures={"curves": {"Variance by principal direction": _curve(variances)}})

    def _of_views(self, context: Context, images: Split, width: int) -> list[Metric]:
        """Measure alignment and LiDAR on the images that there are, up to the setting."""
        lidar = Lidar(width)
        distances = []
        recipe = self._recipe(context.data.image_size)
        for views in embedded_views(context.network, images, recipe, context.data, self.config.images, context.seed):
            lidar.add(views)
            distances.append(alignments(views))
        alignment = mean_of("alignment", torch.cat(distances), unit="", title="Alignment", is_headline=False)
        return [
            # without `per_image`: the difference of two networks is that of their intervals
            replace(alignment, is_lower_better=True, per_image=None),
            _metric("lidar", lidar.rank(), title="LiDAR"),
        ]

    def _recipe(self, size: int) -> ViewRecipe:
        blur_p = self.config.blur_p
        crops = Crops(
            size=size,
            num=1,
            min_scale=self.config.min_scale,
            jitter_strength=self.config.jitter_strength,
            blur_p=blur_p if blur_p is not None else 0.5 if size >= SMALL_SIDE else 0.0,
        )
        (view,) = crops.recipe().groups["global"]
        return ViewRecipe({"views": (view,) * self.config.views})


@torch.inference_mode()
def embedded_views(
    network: nn.Module, images: Split, recipe: ViewRecipe, data: DataConfig, most: int, seed: int
) -> Iterator[Tensor]:
    """Yield features of augmented views of a sample of images, [B, V, D] for some of these at a time.

    Args:
        network: module from normalised images [B, C, H, W] to [B, D], in evaluation mode.
        recipe: recipe of one group of V views.
        most: images that are looked at.
        seed: seed of the views, which depend on nothing else but the image and its place.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = network.to(device)
    index = sample_rows(images, most)
    num_views = recipe.num_views
    for part in np.split(index, range(max(1, BATCH_VIEWS // num_views), len(index), max(1, BATCH_VIEWS // num_views))):
        read = cut_images(images, part, lambda sources, rows: recipe.crop(sources[0].images, rows, seed, 0))
        crops = {name: crop.to(device) for name, crop in read.views.items()}
        (views,) = recipe.augment(crops, part, seed, 0).views.values()  # uint8 [B, V, 3, H, W]
        parts = torch.split(views.flatten(0, 1), BATCH_VIEWS)
        inputs = (network_input(few, data.mean, data.std, data.channels) for few in parts)
        features = torch.cat([network(few).float() for few in inputs])
        yield features.view(len(part), num_views, -1)


def _even_rows(features: Tensor, most: int) -> Iterator[Tensor]:
    """Yield up to `most` evenly spread rows of [N, D], in chunks."""
    for part in torch.split(torch.from_numpy(even_index(len(features), most)), CHUNK_ROWS):
        yield features[part.to(features.device)]


def _curve(variances: Tensor) -> dict[str, object]:
    """Return the spectrum for the page, at up to 200 orders that are evenly spaced on a logarithmic axis."""
    num = num_above_rounding(variances)
    orders = np.unique(np.geomspace(1, max(num, 1), 200).round().astype(np.int64))[:num]
    shares = (variances / variances.sum()).cpu().numpy()
    points = [[float(np.log10(order)), float(np.log10(shares[order - 1]))] for order in orders]
    return {"x": "log10 of the order", "y": "log10 of the share of the variance", "lines": {"features": points}}
