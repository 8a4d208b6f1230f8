"""Jigsaw: Unsupervised Learning of Visual Representations by Solving Jigsaw Puzzles.

Noroozi and Favaro 2016, arXiv 1603.09246, in the form of Goyal et al. 2019, arXiv 1905.01235, for residual networks.
Tiles of an image, each seen separately, are shuffled into one of a set of orders, which a classifier has to recognise.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.config.ranges import Share, Width, Within, WithViews
from raysl.losses import at_least_fp32
from raysl.methods.method import Backbone, Batch, ConfigError, Method, MethodConfig, Setup, Step, StepOutput
from raysl.nn.collapse import COLLAPSE, batch_collapse
from raysl.transforms import Grayscale, HorizontalFlip, RandomCrop, Transform, View, ViewRecipe
from raysl.transforms.tiles import Tiles, permutation_table

SquareSide = Annotated[int, Within(6, 16_384), WithViews(is_seen=False)]


@dataclass(frozen=True, kw_only=True)
class ShuffledTiles:
    """The tiles of a random square of an image, in an order from a table.

    The backbone never sees the whole square, so `data.image_size`, at which it is measured, is another size. The sizes
    here are those for a `data.image_size` of 224 and follow it in proportion, each unless it is given.
    """

    resize: SquareSide = 256
    """Short side of the image before the square is cut out, in pixels."""
    size: SquareSide = 255
    """Side of the square, in pixels."""
    grid: Literal[2, 3] = 3
    """Cells along each side of the square (section 3)."""
    tile_size: Annotated[int, Within(2, 5461), WithViews()] = 64
    """Side of the tile inside each cell, in pixels (section 3)."""
    jitter: Annotated[int, Within(1, 5460), WithViews(is_seen=False)] = 21
    """Positions of a tile along each axis of its cell, so that edges do not reveal neighbours (section 4.2)."""
    num_permutations: Annotated[int, Within(2, 10_000)] = 2000
    """Number of orders to tell apart, far from each other (section 4.2); Goyal et al. try 100, 2000 and 10000."""
    flip: Share = 0.5
    """Probability of a horizontal flip of the square."""
    grayscale_p: Share = 0.66
    """Probability of dropping the colour of the square, which shows chromatic aberration (section 4.2)."""

    def recipe(self) -> ViewRecipe:
        """Return the group "patches" of grid**2 tiles, with their order in the extra "permutation"."""
        table = permutation_table(self.num_permutations, self.grid**2)
        tiles = Tiles(grid=self.grid, size=self.tile_size, jitter=self.jitter, order=table)
        chain: list[tuple[float, Transform]] = [
            (self.flip, HorizontalFlip(p=self.flip)),
            (self.grayscale_p, Grayscale(p=self.grayscale_p)),
        ]
        transforms = tuple(transform for acts, transform in chain if acts > 0)
        return ViewRecipe({"patches": (View(RandomCrop(size=self.size, resize=self.resize), transforms, tiles),)})


class Jigsaw(Method):
    """Recognises the order of tiles."""

    logged = ("permutation_top1", *COLLAPSE)
    evaluated = ("permutation_top1",)

    @dataclass(frozen=True, kw_only=True)
    class Config(MethodConfig):
        """The settings of Goyal et al. for ResNet-50 (appendix)."""

        name: str = "jigsaw"
        hidden_dim: Width = 1000
        """Width of each tile's projected features, which are then concatenated."""
        views: ShuffledTiles = field(default_factory=ShuffledTiles)
        """Nine shuffled tiles of a square."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        views, hidden_dim = self.config.views, self.config.hidden_dim
        self.projector = nn.Sequential(
            nn.Linear(backbone.feature_dim, hidden_dim), nn.BatchNorm1d(hidden_dim), nn.ReLU(inplace=True)
        )
        self.classifier = nn.Linear(hidden_dim * views.grid**2, views.num_permutations)

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse tiles that do not fit into their cells, and more orders than the tiles have."""
        views = setup.method.views
        num_tiles, cell, reach = views.grid**2, views.size // views.grid, views.tile_size + views.jitter - 1
        if reach > cell:
            ways = [f"method.views.size={reach * views.grid} or more"]
            ways += [f"method.views.jitter={cell - views.tile_size + 1}"] * (views.tile_size <= cell)
            ways += [f"method.views.tile_size={cell - views.jitter + 1}"] * (cell - views.jitter >= 1)
            raise ConfigError(
                f"tiles of {views.tile_size} pixels at {views.jitter} positions span {reach} pixels, and the "
                f"{views.grid}x{views.grid} cells of a square of {views.size} have {cell}; set {', or '.join(ways)}"
            )
        if views.num_permutations > math.factorial(num_tiles):
            raise ConfigError(
                f"method.views.num_permutations is {views.num_permutations}, and {num_tiles} tiles have "
                f"{math.factorial(num_tiles)} orders; set that or fewer"
            )
        if views.resize < views.size:
            raise ConfigError(
                f"method.views.size is {views.size}, more than the short side of {views.resize} that images are "
                f"resized to; set method.views.resize={views.size} or more"
            )

    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the cross entropy of the orders of this rank's images (section 3)."""
        h, logits, orders = self._classify(batch)
        loss = F.cross_entropy(logits, orders)
        hits = 100 * (logits.argmax(dim=1) == orders).float().mean()
        means = h.view(len(batch), -1, h.shape[1]).mean(dim=1)  # [B, D], of an image's tiles
        return StepOutput(loss, {"permutation_top1": hits, **batch_collapse(means)})

    @torch.no_grad()
    def evaluation_step(self, batch: Batch) -> dict[str, Tensor]:
        """Return 100 for each image whose order is recognised, else 0 [B]."""
        _, logits, orders = self._classify(batch)
        return {"permutation_top1": 100 * (logits.argmax(dim=1) == orders).float()}

    def _classify(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return features of tiles [B*T, D], logits of orders [B, P] and the true orders [B]."""
        tiles = batch.views["patches"]  # [B, T, C, H, W]
        h = self.backbone(tiles.flatten(0, 1))  # [B*T, D]
        z = self.projector(h).unflatten(0, tiles.shape[:2]).flatten(1)  # [B, T*P], in the order to recognise
        return h, at_least_fp32(self.classifier(z)), batch.extras["patches.permutation"][:, 0]
