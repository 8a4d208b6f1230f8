"""Images and masks to training crops and to windows that cover an image."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.benchmarks.dense.masks import IGNORE
from raysl.transforms.functional import resize
from raysl.transforms.random import SampleRandom

SCALES = (0.5, 2.0)
"""Random factors of an image's size in training, as in DINOv2's settings of its segmentation."""


def resized_short(height: int, width: int, side: int) -> tuple[int, int]:
    """Sides of an image whose short one is to have so many pixels; both at least 1."""
    scale = side / min(height, width)
    return max(1, round(height * scale)), max(1, round(width * scale))


def training_crop(
    image: Tensor, mask: Tensor, short_side: int, crop: int, random: SampleRandom
) -> tuple[Tensor, Tensor, Tensor]:
    """A random square of an image at a random scale, mirrored by half.

    Args:
        image: uint8 [3, H, W].
        mask: uint8 [H, W].
        short_side: of the image at scale 1, in pixels.
        crop: side of the square, in pixels.
        random: of this sample, one row.

    Returns:
        The crop uint8 [3, crop, crop]; its mask, IGNORE beyond the image; and what of it is image, bool, both
        [crop, crop].
    """
    scale = float(random.uniform(*SCALES)[0])
    height, width = resized_short(image.shape[1], image.shape[2], max(1, round(short_side * scale)))
    image = resize(image, height, width)
    mask = F.interpolate(mask[None, None], size=(height, width), mode="nearest-exact")[0, 0]
    top = int(random.integers(0, max(0, height - crop) + 1)[0])
    left = int(random.integers(0, max(0, width - crop) + 1)[0])
    image, mask = image[:, top : top + crop, left : left + crop], mask[top : top + crop, left : left + crop]
    if random.bernoulli(0.5)[0]:
        image, mask = image.flip(2), mask.flip(1)
    missing = (0, crop - mask.shape[1], 0, crop - mask.shape[0])
    is_image = F.pad(torch.ones_like(mask, dtype=torch.bool), missing, value=False)
    return F.pad(image, missing), F.pad(mask, missing, value=IGNORE), is_image


def windows(side: int, crop: int, stride: int) -> Iterator[int]:
    """Where windows of `crop` pixels begin along a side of at least as many, so that they cover it; the last one ends
    with it."""
    first = 0
    while first + crop < side:
        yield first
        first += stride
    yield max(0, side - crop)


@torch.no_grad()
def slid(score: Callable[[Tensor], Tensor], image: Tensor, crop: int, stride: int) -> Tensor:
    """Scores of all pixels: the mean over the windows that a pixel is in.

    Args:
        score: from normalised images [B, 3, crop, crop] to scores [B, K, crop, crop].
        image: normalised [3, H, W], each side at least `crop`.
        crop: side of a window, in pixels.
        stride: pixels from one window to the next.

    Returns:
        Float [K, H, W].
    """
    height, width = image.shape[1:]
    total: Tensor | None = None
    seen = image.new_zeros(height, width)
    for top in windows(height, crop, stride):
        for left in windows(width, crop, stride):
            part = score(image[None, :, top : top + crop, left : left + crop])[0].float()  # [K, crop, crop]
            if total is None:
                total = part.new_zeros(len(part), height, width)
            total[:, top : top + crop, left : left + crop] += part
            seen[top : top + crop, left : left + crop] += 1
    assert total is not None
    return total / seen
