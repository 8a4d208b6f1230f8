"""Training crops of images and masks, and windows that cover a test image."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.benchmarks.dense.masks import IGNORE
from raysl.transforms.functional import adjust_hue, resize
from raysl.transforms.random import SampleRandom

SCALES = (0.5, 2.0)
"""Random factors of an image's size in training, as in DINOv2's settings of its segmentation."""
ATTEMPTS = 10
"""Times that a square is drawn again in which one class has too large a share."""
BRIGHTNESS, FACTORS, HUE = 32.0, (0.5, 1.5), 36
"""Largest change of brightness in 255ths; factors of contrast and saturation; largest turn of the hue in degrees."""


def resized_short(height: int, width: int, side: int) -> tuple[int, int]:
    """Return height and width of an image with a given short side; both at least 1.

    >>> resized_short(100, 200, 50)
    (50, 100)
    """
    scale = side / min(height, width)
    return max(1, round(height * scale)), max(1, round(width * scale))


def training_crop(
    image: Tensor,
    mask: Tensor,
    short_side: int,
    crop: int,
    random: SampleRandom,
    max_class_share: float = 1.0,
    distort: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Crop a random square of an image at a random scale and mirror half of them, as in MMSegmentation.

    Args:
        image: uint8 [3, H, W].
        mask: uint8 [H, W].
        short_side: short side of the image at scale 1, in pixels.
        crop: side of the square, in pixels.
        max_class_share: squares in which one class has as large a share of the pixels that count are drawn again, ten
            times at most (`cat_max_ratio` there). 1 takes the first.
        distort: whether brightness, contrast, saturation and hue change, see `photometric_distortion`.

    Returns:
        The crop uint8 [3, crop, crop]; its mask, IGNORE beyond the image; and where it is image, bool, both
        [crop, crop].
    """
    scale = float(random.uniform(*SCALES)[0])
    height, width = resized_short(image.shape[1], image.shape[2], max(1, round(short_side * scale)))
    image = resize(image, height, width)
    mask = F.interpolate(mask[None, None], size=(height, width), mode="nearest-exact")[0, 0]
    rows, columns = _square(mask, crop, random, max_class_share)
    image, mask = image[:, rows, columns], mask[rows, columns]
    if random.bernoulli(0.5)[0]:
        image, mask = image.flip(2), mask.flip(1)
    if distort:
        image = photometric_distortion(image, random)
    missing = (0, crop - mask.shape[1], 0, crop - mask.shape[0])
    is_image = F.pad(torch.ones_like(mask, dtype=torch.bool), missing, value=False)
    return F.pad(image, missing), F.pad(mask, missing, value=IGNORE), is_image


def _square(mask: Tensor, crop: int, random: SampleRandom, max_class_share: float) -> tuple[slice, slice]:
    """Draw the rows and columns of the square, see `training_crop`."""
    height, width = mask.shape
    rows = columns = slice(0, crop)
    for _ in range(ATTEMPTS + 1 if max_class_share < 1 else 1):
        row = int(random.integers(0, max(0, height - crop) + 1)[0])
        column = int(random.integers(0, max(0, width - crop) + 1)[0])
        rows, columns = slice(row, row + crop), slice(column, column + crop)
        # pixels of each class; ignored ones, of number 255, are cut off
        counts = torch.bincount(mask[rows, columns].flatten().long(), minlength=IGNORE)[:IGNORE]
        if int(counts.count_nonzero()) > 1 and int(counts.max()) < max_class_share * int(counts.sum()):
            break
    return rows, columns


def photometric_distortion(image: Tensor, random: SampleRandom) -> Tensor:
    """Change brightness, contrast, saturation and hue of an image uint8 [3, H, W], each with probability 0.5.

    The distortion of SSD (Liu et al. 2016, arXiv 1512.02325) with the ranges of MMSegmentation's
    `PhotoMetricDistortion`: up to 32 of 255 are added; values are multiplied by 0.5 to 1.5, before or behind the two
    changes of colour; saturation, of HSV, is multiplied by 0.5 to 1.5; hue is turned by up to 36 degrees. Values are
    kept between 0 and 255 behind each. Nothing is rounded but the result, where the other rounds in between.

    Args:
        image: uint8 [3, H, W].
    """
    # all numbers are drawn, used or not, so that no number depends on which changes are made
    does = [bool(random.bernoulli(0.5)[0]) for _ in range(4)]
    is_contrast_first = bool(random.bernoulli(0.5)[0])
    shift = float(random.uniform(-BRIGHTNESS, BRIGHTNESS)[0])
    contrast, saturation = (float(random.uniform(*FACTORS)[0]) for _ in range(2))
    turn = int(random.integers(-HUE, HUE)[0]) / 360
    x = image.float() / 255
    if does[0]:
        x = (x + shift / 255).clamp(0, 1)
    if does[1] and is_contrast_first:
        x = (x * contrast).clamp(0, 1)
    if does[2]:
        x = _saturated(x, saturation)
    if does[3]:
        x = adjust_hue(x[None], torch.tensor([turn]))[0]
    if does[1] and not is_contrast_first:
        x = (x * contrast).clamp(0, 1)
    return (255 * x).round().byte()


def _saturated(image: Tensor, factor: float) -> Tensor:
    """Multiply the HSV saturation, up to 1, of colours in [0, 1] [3, H, W]; the value of HSV stays."""
    value, least = image.amax(dim=0, keepdim=True), image.amin(dim=0, keepdim=True)
    most = value / (value - least).clamp_min(1e-12)  # the factor that makes the least channel 0
    return value - (value - image) * most.clamp_max(factor)


def windows(side: int, crop: int, stride: int) -> Iterator[int]:
    """Yield the first pixels of windows that cover a side, the last of which ends with it.

    >>> list(windows(10, crop=4, stride=3))
    [0, 3, 6]
    """
    first = 0
    while first + crop < side:
        yield first
        first += stride
    yield max(0, side - crop)


@torch.no_grad()
def slid(score: Callable[[Tensor], Tensor], image: Tensor, crop: int, stride: int) -> Tensor:
    """Return the scores of all pixels, each the mean over the windows that contain it.

    Args:
        score: function from normalised images [B, 3, crop, crop] to scores [B, K, crop, crop].
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
        for first in windows(width, crop, stride):
            rows, columns = slice(top, top + crop), slice(first, first + crop)
            part = score(image[None, :, rows, columns])[0].float()  # [K, crop, crop]
            if total is None:
                total = part.new_zeros(len(part), height, width)
            total[:, rows, columns] += part
            seen[rows, columns] += 1
    assert total is not None
    return total / seen
