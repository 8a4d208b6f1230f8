"""The masks of I-JEPA: blocks of an image to predict, and the context to predict them from."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysl.config.ranges import Areas, Count, Positives
from raysl.transforms.masking import MAX_TRIES, Mask, Masks, SampleRandom, patch_grid, rectangles


@dataclass(frozen=True, kw_only=True)
class MultiBlockMask(Mask):
    """Several target blocks, and a large context block without them (I-JEPA, Assran et al. 2023, section 3).

    "mask" hides all but the context; "targets", bool [B, M, h, w], marks the target blocks. Size and position are drawn
    for each block, which may touch the border. Where the context has fewer than `min_context` patches, all blocks are
    drawn again, up to ten times; then the largest context counts.

    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(2), view=0)
    >>> {name: tuple(mask.shape) for name, mask in MultiBlockMask().extras(random, (224, 224)).items()}
    {'mask': (2, 14, 14), 'targets': (2, 4, 14, 14)}
    """

    num_targets: Count = 4
    """M, the number of blocks to predict."""
    target_scale: Areas = (0.15, 0.2)
    """Range of a target's share of the patches, drawn uniformly."""
    target_aspect: Positives = (0.75, 1.5)
    """Range of a target's height / width, drawn uniformly."""
    context_scale: Areas = (0.85, 1.0)
    """Range of the context's share of the patches, a square, before the targets are removed; drawn uniformly."""
    min_context: int = 10
    """Smallest number of patches that a context should have."""
    max_context: int | None = None
    """Largest number of patches in a context, which keeps its first ones row by row. Default: no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_context is not None and not self.min_context <= self.max_context > 0:
            raise ValueError(
                f"max_context={self.max_context} must be at least 1 and min_context={self.min_context}; give more"
            )

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> Tensor:
        return self.extras(random, size)["mask"]

    def extras(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        grid, num = patch_grid(size, self.patch_size), len(random)
        masks = np.ones((num, *grid), dtype=np.bool_)
        targets = np.zeros((num, self.num_targets, *grid), dtype=np.bool_)
        num_seen = np.full(num, -1)
        for _ in range(MAX_TRIES):
            trying = np.flatnonzero(num_seen < self.min_context)
            if len(trying) == 0:
                break
            numbers = random.uniforms(4 * (self.num_targets + 1)).reshape(num, -1, 4)[trying]  # [b, M + 1, 4]
            drawn = _blocks(numbers[:, 1:], self.target_scale, self.target_aspect, grid)  # [b, M, h, w]
            seen = _blocks(numbers[:, :1], self.context_scale, (1.0, 1.0), grid)[:, 0] & ~drawn.any(axis=1)  # [b, h, w]
            # keeps the try with the largest context, in case none reaches the minimum
            is_better = seen.sum(axis=(1, 2)) > num_seen[trying]
            rows = trying[is_better]
            masks[rows], targets[rows] = ~seen[is_better], drawn[is_better]
            num_seen[rows] = seen[is_better].sum(axis=(1, 2))
        if self.max_context is not None:
            seen = np.cumsum(~masks.reshape(num, grid[0] * grid[1]), axis=1)
            masks |= (seen > self.max_context).reshape(masks.shape)
        return {"mask": torch.from_numpy(masks), "targets": torch.from_numpy(targets)}

    def most(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the largest number of patches in a context and in a target, for views of this height and width."""
        grid = patch_grid(size, self.patch_size)
        targets = _areas(self.target_scale, self.target_aspect, grid)
        contexts = _areas(self.context_scale, (1.0, 1.0), grid)
        most = min(max(contexts), grid[0] * grid[1] - min(targets))
        return most if self.max_context is None else min(most, self.max_context), max(targets)


def _blocks(
    numbers: NDArray[np.float64], scale: tuple[float, float], aspect: tuple[float, float], grid: tuple[int, int]
) -> Masks:
    """Make a block [b, n, h, w] from each four numbers [b, n, 4] in [0, 1): area, aspect, top and left."""
    height, width = grid
    area = height * width * (scale[0] + numbers[..., 0] * (scale[1] - scale[0]))
    ratio = aspect[0] + numbers[..., 1] * (aspect[1] - aspect[0])
    tall = np.clip(np.rint(np.sqrt(area * ratio)), 1, height)
    wide = np.clip(np.rint(np.sqrt(area / ratio)), 1, width)
    y = np.floor(numbers[..., 2] * (height - tall + 1))
    x = np.floor(numbers[..., 3] * (width - wide + 1))
    return rectangles(y, x, tall, wide, grid)


def _areas(scale: tuple[float, float], aspect: tuple[float, float], grid: tuple[int, int]) -> list[int]:
    """Return the areas in patches of all blocks that `_blocks` can make, and of a few at the edge of its ranges."""
    height, width = grid
    least, most = (height * width * share for share in scale)
    areas = []
    for tall in range(1, height + 1):
        for wide in range(1, width + 1):
            low_tall, high_tall = _rounded_from(tall, height)
            low_wide, high_wide = _rounded_from(wide, width)
            is_area = low_tall * low_wide <= most and high_tall * high_wide >= least
            if is_area and low_tall <= aspect[1] * high_wide and high_tall >= aspect[0] * low_wide:
                areas.append(tall * wide)
    return areas


def _rounded_from(side: int, most: int) -> tuple[float, float]:
    """Return the range of the numbers that become `side` when they are rounded and clamped to 1 to `most`."""
    return side - 0.5 if side > 1 else 0.0, side + 0.5 if side < most else math.inf
