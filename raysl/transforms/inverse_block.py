"""Masks of CAPI and Franca: everything but one block of patches."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from raysl.config.ranges import Positives, Share, Within
from raysl.transforms.masking import BlockMask, Ints, Mask, Masks, SampleRandom, patch_grid, rectangles


@dataclass(frozen=True, kw_only=True)
class InverseBlockMask(Mask):
    """Mask all patches but a block, and choose some of them to predict (CAPI, Darcet et al. 2025).

    The block is the smallest rectangle of its aspect ratio with enough patches, without the last ones row by row, and
    is then moved round the image: what leaves it at one side comes in at the other. All places are seen as often.

    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(2), view=0)
    >>> extras = InverseBlockMask(ratio=0.65, predicted=0.05).extras(random, (224, 224))
    >>> {name: mask.sum(dim=(1, 2)).tolist() for name, mask in extras.items()}
    {'mask': [127, 127], 'predicted': [6, 6]}
    """

    ratio: Annotated[float, Within(0, 1, below=True)] = 0.65
    """Masked share of the patches, in [0, 1), rounded down to a number of patches."""
    predicted: Share = 0.05
    """Predicted share of the masked patches, in [0, 1], rounded down to a number of patches."""
    aspect: Positives = (0.5, 2.0)
    """Range of height / width of the block, above 0, its logarithm drawn uniformly; less where it would not fit."""
    is_rolled: bool = True
    """Move the block round the image; otherwise it lies inside, and the border is masked more often."""

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> Tensor:
        height, width = patch_grid(size, self.patch_size)
        num_seen = np.full(len(random), height * width - self.num_masked(height * width))
        seen = _blocks(random, num_seen, (height, width), self.aspect)  # [B, h, w]
        return torch.from_numpy(~(_rolled(random, seen) if self.is_rolled else seen))

    def extras(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        """Return "mask" and "predicted", bool [B, H / patch_size, W / patch_size]."""
        mask = self.draw(random, size)
        masked = mask.flatten(1).numpy()  # [B, N]
        order = np.where(masked, random.permutation(masked.shape[1]), masked.shape[1])
        ranks = order.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
        return {"mask": mask, "predicted": torch.from_numpy(ranks < self.num_predicted(masked.shape[1])).view_as(mask)}

    def num_masked(self, num_patches: int) -> int:
        """Return the number of masked patches out of `num_patches`."""
        return int(num_patches * self.ratio + 1e-9)

    def num_predicted(self, num_patches: int) -> int:
        """Return the number of predicted patches out of `num_patches`."""
        return int(self.num_masked(num_patches) * self.predicted + 1e-9)


@dataclass(frozen=True, kw_only=True)
class CyclicMask(BlockMask):
    """Mask all patches of a view but a block, and as large a share of them as `BlockMask` draws (CyclicMask of Franca,
    Venkataramanan et al. 2025).

    The block is moved round the image as that of `InverseBlockMask`. `min_block` has no meaning here.

    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(2), view=0)
    >>> CyclicMask(ratios=((0.65, 0.0),)).draw(random, (224, 224)).sum(dim=(1, 2))
    tensor([127, 127])
    """

    @override
    def _grow(self, random: SampleRandom, target: Ints, height: int, width: int) -> Masks:
        num_seen = np.maximum(height * width - target, 1)
        return ~_rolled(random, _blocks(random, num_seen, (height, width), self.aspect))


def _blocks(random: SampleRandom, num: Ints, grid: tuple[int, int], aspect: tuple[float, float]) -> Masks:
    """Draw a block of `num` [B] patches inside the grid for each image [B, h, w]."""
    height, width = grid
    limits = np.log(num / width**2), np.log(height**2 / num)
    low, high = (np.clip(math.log(side), *limits) for side in aspect)  # [B]
    shape = np.exp(low + random.uniform() * (high - low))  # [B]
    # Less a little, so that rounding in the roots adds no row; never fewer patches than `num`.
    tall = np.clip(np.ceil(np.sqrt(num * shape) - 1e-9), 1, height)
    wide = np.clip(np.ceil(np.sqrt(num / shape) - 1e-9), np.ceil(num / tall), width)
    y, x = (random.integers(0, (side - long).astype(np.int64) + 1) for side, long in ((height, tall), (width, wide)))
    inside = rectangles(y, x, tall, wide, grid)
    # a block may have a few patches too many; the last ones, row by row, are left out
    counts = np.cumsum(inside.reshape(len(inside), height * width), axis=1).reshape(inside.shape)
    return np.asarray(inside & (counts <= num[:, None, None]))


def _rolled(random: SampleRandom, blocks: Masks) -> Masks:
    """Move each block [B, h, w] round its image: what leaves it at one side comes in at the other."""
    grid = blocks.shape[1:]
    down, across = (random.integers(0, side)[:, None] for side in grid)
    rows, columns = (np.arange(side) - shift for side, shift in zip(grid, (down, across), strict=True))
    image = np.arange(len(blocks))[:, None, None]
    return np.asarray(blocks[image, (rows % grid[0])[:, :, None], (columns % grid[1])[:, None, :]])
