"""Masks of patches for masked image modelling; the images themselves stay as they are."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysl.config.ranges import Count, NotEmpty, Positives, Share, check_ranges
from raysl.transforms.random import Ints as Ints
from raysl.transforms.random import SampleRandom as SampleRandom

Masks = NDArray[np.bool_]
Numbers = NDArray[np.int64] | NDArray[np.float64]

MAX_TRIES = 10
"""Number of consecutive blocks that may fail to fit before a mask stays as it is."""


@dataclass(frozen=True, kw_only=True)
class Mask(ABC):
    """Chooses the masked patches of a view; the method gets the whole view and the mask."""

    patch_size: int = 16
    """Side of a patch, in pixels."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @abstractmethod
    def draw(self, random: SampleRandom, size: tuple[int, int]) -> Tensor:
        """Draw the masks of `len(random)` views.

        Args:
            random: the random numbers of this mask's slot.
            size: height and width of the views, in pixels.

        Returns:
            bool [B, H / patch_size, W / patch_size] on the CPU, true where a patch is masked.

        Raises:
            ValueError: if patches do not cover the views exactly.
        """

    def extras(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        """Return what the method gets, [B, ...] by name: "mask", drawn by `draw` with the same arguments."""
        return {"mask": self.draw(random, size)}


@dataclass(frozen=True, kw_only=True)
class BlockMask(Mask):
    """Mask rectangles of patches until a drawn share is covered (iBOT, Zhou et al. 2022; BEiT, Bao et al. 2022).

    The share is never exceeded; it is not reached where ten blocks in a row do not fit.

    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(2), view=0)
    >>> BlockMask(ratios=((0.5, 0.0),)).draw(random, (224, 224)).shape
    torch.Size([2, 14, 14])
    """

    ratios: Annotated[tuple[tuple[float, float], ...], NotEmpty()] = ((0.0, 0.0), (0.3, 0.2))
    """(mean, spread) of the masked share; each image draws one entry, and from it a share in mean +- spread."""
    aspect: Positives = (0.3, 1.0 / 0.3)
    """Range of height / width of a block, above 0, its logarithm drawn uniformly."""
    min_block: Count | None = None
    """Patches in the smallest block. Default: the square of a third of the view's shorter side, rounded down."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for mean, spread in self.ratios:
            if not 0.0 <= mean - spread <= mean + spread <= 1.0:
                raise ValueError(f"ratios has ({mean}, {spread}); mean - spread and mean + spread must be in [0, 1]")

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> Tensor:
        height, width = patch_grid(size, self.patch_size)
        mean, spread = np.array(self.ratios)[random.integers(0, len(self.ratios))].T
        share = mean + spread * random.uniform(-1.0, 1.0)
        target = (height * width * share + 1e-9).astype(np.int64)  # [B]
        return torch.from_numpy(self._grow(random, target, height, width))

    def most_masked(self, num_patches: int) -> int:
        """Return the largest number of masked patches in a view of `num_patches`."""
        return int(num_patches * max(mean + spread for mean, spread in self.ratios) + 1e-9)

    def _grow(self, random: SampleRandom, target: Ints, height: int, width: int) -> Masks:
        """Masks bool [B, height, width] of at most `target` [B] patches.

        All images try one block at a time. The n-th try of an image has random numbers of its own, so its
        mask does not depend on how many tries the other images need.
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
        """Make one block from each row of numbers [b, 4] in [0, 1); it is empty if it would not fit into the image.

        Areas are uniform between the smallest block and the number of patches still missing.
        """
        smallest = float(self.min_block or (min(height, width) // 3) ** 2)
        area = smallest + numbers[:, 0] * (num_missing - smallest)
        low, high = math.log(self.aspect[0]), math.log(self.aspect[1])
        aspect = np.array([math.exp(low + number * (high - low)) for number in numbers[:, 1].tolist()])
        tall, wide = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
        y = np.floor(numbers[:, 2] * (height - tall + 1.0))
        x = np.floor(numbers[:, 3] * (width - wide + 1.0))
        fits = (tall < height) & (wide < width)
        return rectangles(y, x, np.where(fits, tall, 0.0), wide, (height, width))


@dataclass(frozen=True, kw_only=True)
class RandomMask(Mask):
    """Mask the same number of patches of every image, uniformly (MAE, He et al. 2022; MSN, Assran et al. 2022).

    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(2), view=0)
    >>> RandomMask(ratio=0.75).draw(random, (64, 64)).sum(dim=(1, 2))
    tensor([12, 12])
    """

    ratio: Share = 0.75
    """Masked share of the patches, in [0, 1], rounded to the nearest number of patches."""

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> Tensor:
        height, width = patch_grid(size, self.patch_size)
        mask = random.permutation(height * width) < self.num_masked(height * width)
        return torch.from_numpy(mask.reshape(-1, height, width))

    def num_masked(self, num_patches: int) -> int:
        """Return the number of masked patches out of `num_patches`."""
        return round(num_patches * self.ratio)


@dataclass(frozen=True, kw_only=True)
class PartMask(RandomMask):
    """`RandomMask`, with a part of the masked patches that are predicted (CrossMAE, Fu et al. 2024).

    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(2), view=0)
    >>> extras = PartMask(ratio=0.75, predicted=0.25).extras(random, (64, 64))
    >>> {name: mask.sum(dim=(1, 2)).tolist() for name, mask in extras.items()}
    {'mask': [12, 12], 'predicted': [4, 4]}
    """

    predicted: float = 0.25
    """Predicted share of all patches, in [0, `ratio`], rounded to the nearest number of patches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.predicted <= self.ratio:
            raise ValueError(f"predicted={self.predicted} is outside [0, ratio={self.ratio}]; give a smaller share")

    def extras(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        """Return "mask" and "predicted", bool [B, H / patch_size, W / patch_size]."""
        height, width = patch_grid(size, self.patch_size)
        order = random.permutation(height * width).reshape(-1, height, width)
        masked, predicted = self.num_masked(height * width), self.num_predicted(height * width)
        return {"mask": torch.from_numpy(order < masked), "predicted": torch.from_numpy(order < predicted)}

    def num_predicted(self, num_patches: int) -> int:
        """Return the number of predicted patches out of `num_patches`."""
        return round(num_patches * self.predicted)


@dataclass(frozen=True, kw_only=True)
class UnitMask(Mask):
    """Mask squares of several patches, the same number of squares in every image (SimMIM, Xie et al. 2022).

    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(2), view=0)
    >>> UnitMask(unit_size=32, ratio=0.5).draw(random, (64, 64)).sum(dim=(1, 2))  # 2 squares of 4 patches
    tensor([8, 8])
    """

    unit_size: int = 32
    """Side of a square in pixels, a multiple of `patch_size`."""
    ratio: Share = 0.6
    """Masked share of the squares, in [0, 1], rounded up to a number of squares."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit_size < 1 or self.unit_size % self.patch_size:
            raise ValueError(
                f"unit_size={self.unit_size} is not a multiple of patch_size={self.patch_size}; give a multiple"
            )

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> Tensor:
        height, width = patch_grid(size, self.unit_size)
        mask = random.permutation(height * width) < self.num_masked(height * width)
        fold = self.unit_size // self.patch_size
        return torch.from_numpy(mask.reshape(-1, height, width).repeat(fold, axis=1).repeat(fold, axis=2))

    def num_masked(self, num_squares: int) -> int:
        """Return the number of masked squares out of `num_squares`."""
        return math.ceil(num_squares * self.ratio - 1e-9)


@dataclass(frozen=True, kw_only=True)
class PrefixMask(Mask):
    """Mask what follows a prefix of each image's patches, row by row (AIM, El-Nouby et al. 2024).

    The length of the prefix is drawn evenly from 1 to the number of patches less 1.

    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(2), view=0)
    >>> PrefixMask().draw(random, (32, 32)).flatten(1)
    tensor([[False, False, False,  True],
            [False, False,  True,  True]])
    """

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> Tensor:
        height, width = patch_grid(size, self.patch_size)
        if height * width < 2:
            raise ValueError(
                f"images of {size[0]}x{size[1]} pixels are one patch of {self.patch_size}; give two or more"
            )
        lengths = random.integers(1, height * width)
        mask = np.arange(height * width) >= lengths[:, None]
        return torch.from_numpy(mask.reshape(-1, height, width))


def rectangles(y: Numbers, x: Numbers, tall: Numbers, wide: Numbers, grid: tuple[int, int]) -> Masks:
    """Return which patches of a grid [h, w] lie in rectangles, given by upper left corner, height and width [...]:
    bool [..., h, w].

    >>> rectangles(*np.array([0, 1, 1, 2]), grid=(2, 3)).astype(int)
    array([[0, 1, 1],
           [0, 0, 0]])
    """
    rows, columns = np.arange(grid[0]), np.arange(grid[1])
    in_rows = (rows >= y[..., None]) & (rows < (y + tall)[..., None])
    in_columns = (columns >= x[..., None]) & (columns < (x + wide)[..., None])
    return np.asarray(in_rows[..., :, None] & in_columns[..., None, :])


def patch_grid(size: tuple[int, int], patch_size: int) -> tuple[int, int]:
    """Return the number of patches down and across an image of this height and width.

    >>> patch_grid((224, 112), patch_size=16)
    (14, 7)

    Raises:
        ValueError: if the patches do not cover the image exactly.
    """
    height, width = size
    if patch_size < 1 or height % patch_size or width % patch_size:
        raise ValueError(f"patch_size={patch_size} does not divide images of {height}x{width} pixels; give a divisor")
    return height // patch_size, width // patch_size
