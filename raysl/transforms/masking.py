"""Masks of patches for masked image modelling; the images themselves stay as they are."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysl.transforms.random import Ints, SampleRandom

Masks = NDArray[np.bool_]

MAX_TRIES = 10
"""Blocks in a row that may fail to fit before a mask is left as it is."""


@dataclass(frozen=True, kw_only=True)
class Mask(ABC):
    """Which patches of a view are masked; the method gets the whole view, and the mask beside it."""

    patch_size: int = 16
    """Side of a patch, in pixels."""

    @abstractmethod
    def draw(self, random: SampleRandom, size: tuple[int, int]) -> Tensor:
        """Draw the masks of `len(random)` views.

        Args:
            random: the numbers of this mask, from its own slot.
            size: height and width of the views, in pixels.

        Returns:
            bool [B, H / patch_size, W / patch_size] on the CPU, true where a patch is masked.

        Raises:
            ValueError: if patches do not cover the views exactly.
        """

    def extras(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        """All that the method is told, [B, ...] by name: the masks of `draw`, whose arguments these are, as "mask"."""
        return {"mask": self.draw(random, size)}


@dataclass(frozen=True, kw_only=True)
class BlockMask(Mask):
    """Mask rectangles of patches until a drawn share is covered (iBOT, Zhou et al. 2022; BEiT, Bao et al. 2022).

    The share is never exceeded, and falls short of it where ten blocks in a row do not fit.
    """

    ratios: tuple[tuple[float, float], ...] = ((0.0, 0.0), (0.3, 0.2))
    """(mean, spread) of the masked share; each image takes one entry at random, and of it a share in mean +- spread."""
    aspect: tuple[float, float] = (0.3, 1.0 / 0.3)
    """Range of height / width of a block, above 0, drawn evenly in its logarithm."""
    min_block: int | None = None
    """Patches of the smallest block. Default: the square of a third of the view's shorter side, rounded down."""

    def __post_init__(self) -> None:
        if not self.ratios:
            raise ValueError("ratios is empty; give at least one (mean, spread)")
        for mean, spread in self.ratios:
            if not 0.0 <= mean - spread <= mean + spread <= 1.0:
                raise ValueError(f"ratios has ({mean}, {spread}); mean - spread and mean + spread must be in [0, 1]")
        if not 0.0 < self.aspect[0] <= self.aspect[1]:
            raise ValueError(f"aspect={self.aspect} must be a rising range above 0")
        if self.min_block is not None and self.min_block < 1:
            raise ValueError(f"min_block={self.min_block} must be at least 1 patch")

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> Tensor:
        height, width = grid_of(size, self.patch_size)
        mean, spread = np.array(self.ratios)[random.integers(0, len(self.ratios))].T
        share = mean + spread * random.uniform(-1.0, 1.0)
        target = (height * width * share + 1e-9).astype(np.int64)  # [B]
        return torch.from_numpy(self._grow(random, target, height, width))

    def most_masked(self, num_patches: int) -> int:
        """How many of so many patches are masked at most."""
        return int(num_patches * max(mean + spread for mean, spread in self.ratios) + 1e-9)

    def _grow(self, random: SampleRandom, target: Ints, height: int, width: int) -> Masks:
        """Masks bool [B, height, width] of at most `target` [B] patches.

        All images try one block at a time. Each has its own numbers for its n-th try, so it is no matter to one image
        how many tries the others need.
        """
        masks = np.zeros((len(target), height, width), dtype=np.bool_)
        num_missing, num_tries = target.copy(), np.zeros(len(target), dtype=np.int64)
        while True:
            growing = np.flatnonzero((num_missing > 0) & (num_tries < MAX_TRIES))
            if len(growing) == 0:
                return masks
            numbers = random.uniforms(4)[growing]  # [b, 4]
            blocks = self._blocks(numbers, num_missing[growing], height, width)  # [b, height, width]
            added = blocks & ~masks[growing]
            num_added = added.sum(axis=(1, 2))
            is_good = (num_added > 0) & (num_added <= num_missing[growing])
            masks[growing[is_good]] |= added[is_good]
            num_missing[growing[is_good]] -= num_added[is_good]
            num_tries[growing] = np.where(is_good, 0, num_tries[growing] + 1)

    def _blocks(self, numbers: NDArray[np.float64], num_missing: Ints, height: int, width: int) -> Masks:
        """One block for each row of numbers [b, 4] in [0, 1); empty where it would not fit into the image.

        Areas are even between the smallest block and the patches that are still missing.
        """
        smallest = float(self.min_block or (min(height, width) // 3) ** 2)
        area = smallest + numbers[:, 0] * (num_missing - smallest)
        low, high = math.log(self.aspect[0]), math.log(self.aspect[1])
        aspect = np.array([math.exp(low + number * (high - low)) for number in numbers[:, 1].tolist()])
        tall, wide = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
        top = np.floor(numbers[:, 2] * (height - tall + 1.0))
        left = np.floor(numbers[:, 3] * (width - wide + 1.0))
        fits = (tall < height) & (wide < width)
        rows, columns = np.arange(height), np.arange(width)
        in_rows = (rows >= top[:, None]) & (rows < (top + tall)[:, None]) & fits[:, None]
        in_columns = (columns >= left[:, None]) & (columns < (left + wide)[:, None])
        return np.asarray(in_rows[:, :, None] & in_columns[:, None, :])


@dataclass(frozen=True, kw_only=True)
class RandomMask(Mask):
    """Mask the same number of patches of every image, all alike (MAE, He et al. 2022; MSN, Assran et al. 2022)."""

    ratio: float = 0.75
    """Share of the patches that are masked, in [0, 1], to the nearest whole number."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.ratio <= 1.0:
            raise ValueError(f"ratio={self.ratio} is no share of the patches; give a number in [0, 1]")

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> Tensor:
        height, width = grid_of(size, self.patch_size)
        mask = random.permutation(height * width) < self.num_masked(height * width)
        return torch.from_numpy(mask.reshape(-1, height, width))

    def num_masked(self, num_patches: int) -> int:
        """How many of so many patches are masked."""
        return round(num_patches * self.ratio)


@dataclass(frozen=True, kw_only=True)
class UnitMask(Mask):
    """Mask squares of several patches, the same number of them in every image (SimMIM, Xie et al. 2022)."""

    unit_size: int = 32
    """Side of such a square in pixels, a multiple of `patch_size`."""
    ratio: float = 0.6
    """Share of the squares that are masked, in [0, 1], up to the next whole number."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.ratio <= 1.0:
            raise ValueError(f"ratio={self.ratio} is no share of the squares; give a number in [0, 1]")
        if self.unit_size < 1 or self.unit_size % self.patch_size:
            raise ValueError(
                f"unit_size={self.unit_size} is no multiple of patch_size={self.patch_size}; take one that is"
            )

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> Tensor:
        height, width = grid_of(size, self.unit_size)
        mask = random.permutation(height * width) < self.num_masked(height * width)
        fold = self.unit_size // self.patch_size
        return torch.from_numpy(mask.reshape(-1, height, width).repeat(fold, axis=1).repeat(fold, axis=2))

    def num_masked(self, num_squares: int) -> int:
        """How many of so many squares are masked."""
        return math.ceil(num_squares * self.ratio - 1e-9)


def grid_of(size: tuple[int, int], patch_size: int) -> tuple[int, int]:
    """Patches down and across an image of this height and width.

    Raises:
        ValueError: if they do not cover it exactly.
    """
    height, width = size
    if patch_size < 1 or height % patch_size or width % patch_size:
        raise ValueError(f"patch_size={patch_size} does not divide images of {height}x{width} pixels; give a divisor")
    return height // patch_size, width // patch_size
