"""Training crops of images with depths, and scores of predicted depths.

Crops as the Monocular Depth Estimation Toolbox makes them, and scores of Eigen, Puhrsch and Fergus 2014 (arXiv
1406.2283).
"""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.benchmarks.dense.depth_files import PROTOCOLS, Area
from raysl.benchmarks.metric import Metric, mean_of
from raysl.transforms.random import SampleRandom

DEGREES = 2.5
"""Largest turn of half of the images."""
GAMMA, COLOR = (0.9, 1.1), (0.9, 1.1)
"""Powers of the values in 255ths, and factors of each channel, for half of the images."""


def depth_crop(
    image: Tensor,
    depth: Tensor,
    area: Area | None,
    crop: tuple[int, int],
    random: SampleRandom,
    brightness: tuple[float, float] = PROTOCOLS["nyu"].brightness,
) -> tuple[Tensor, Tensor]:
    """Cut a random crop of an image and its depths; half are turned, mirrored and coloured, each half for itself.

    Args:
        image: uint8 [3, H, W].
        depth: float32 [H, W], 0 where unknown.
        area: part of the image that is seen, without the white border of NYU Depth v2; None is all.
        crop: height and width in pixels. What lies beyond the area is black and of unknown depth.
        brightness: factors of all channels, lowest and highest.

    Returns:
        The crop float32 in [0, 1] [3, h, w], and its depths float32 [h, w].
    """
    if area is not None:
        image, depth = (values[..., area[0] : area[1], area[2] : area[3]] for values in (image, depth))
    pixels = image.float() / 255
    does_turn, does_mirror, does_color = (bool(random.bernoulli(0.5)[0]) for _ in range(3))
    angle = float(random.uniform(-DEGREES, DEGREES)[0])
    # depths are not interpolated: a mean with an unknown neighbour, 0, would be a wrong depth
    if does_turn:
        pixels, depth = turned(pixels, angle, "bilinear"), turned(depth[None], angle, "nearest")[0]
    if does_mirror:
        pixels, depth = pixels.flip(2), depth.flip(1)
    height, width = depth.shape
    row = int(random.integers(0, max(0, height - crop[0]) + 1)[0])
    column = int(random.integers(0, max(0, width - crop[1]) + 1)[0])
    pixels, depth = (values[..., row : row + crop[0], column : column + crop[1]] for values in (pixels, depth))
    if does_color:
        pixels = colored(pixels, random, brightness)
    missing = (0, crop[1] - depth.shape[1], 0, crop[0] - depth.shape[0])
    return F.pad(pixels, missing), F.pad(depth, missing)


def turned(values: Tensor, angle: float, mode: str) -> Tensor:
    """Turn planes [C, H, W] about their centre by an angle in degrees; 0 beyond them."""
    height, width = values.shape[1:]
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    # affine_grid counts each side from -1 to 1, so the sines need the ratio of the sides
    matrix = torch.tensor([[[cosine, -sine * height / width, 0], [sine * width / height, cosine, 0]]])
    grid = F.affine_grid(matrix, [1, 1, height, width], align_corners=False)
    return F.grid_sample(values[None], grid, mode=mode, align_corners=False)[0]


def colored(
    image: Tensor, random: SampleRandom, brightness: tuple[float, float] = PROTOCOLS["nyu"].brightness
) -> Tensor:
    """Change gamma, brightness and the colours of an image in [0, 1] [3, H, W], which is kept in [0, 1].

    The power is taken of the values between 0 and 255, so it changes the brightness too.
    """
    gamma, factor = float(random.uniform(*GAMMA)[0]), float(random.uniform(*brightness)[0])
    factors = torch.tensor([factor * float(random.uniform(*COLOR)[0]) for _ in range(3)])
    return ((255 * image) ** gamma * factors[:, None, None] / 255).clamp(0, 1)


SCORE_TITLES = {
    "rmse": ("Depth, RMSE", "m"),
    "abs_rel": ("Depth, absolute relative error", ""),
    "log10": ("Depth, error of log10", ""),
    "delta1": ("Depth within a factor of 1.25", "%"),
    "delta2": ("Depth within 1.25²", "%"),
    "delta3": ("Depth within 1.25³", "%"),
}
SCORE_NAMES = tuple(SCORE_TITLES)


def depth_scores(predicted: Tensor, label: Tensor) -> Tensor:
    """Return the scores of an image by SCORE_NAMES, float64 [6] on the CPU; NaN without a pixel.

    Args:
        predicted: metres, above 0, of the pixels that count [N].
        label: theirs, above 0 [N].

    >>> depth_scores(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0]))[3].item()
    0.5
    """
    if not len(label):
        return torch.full((len(SCORE_NAMES),), math.nan, dtype=torch.float64)
    predicted, label = predicted.double(), label.double()
    factor = torch.maximum(predicted / label, label / predicted)
    scores = [
        (predicted - label).square().mean().sqrt(),
        ((predicted - label).abs() / label).mean(),
        (predicted.log10() - label.log10()).abs().mean(),
        *((factor < 1.25**power).double().mean() for power in (1, 2, 3)),
    ]
    return torch.stack(scores).cpu()


def depth_metrics(scores: Tensor, seed: int = 0) -> list[Metric]:
    """Return the means over images that have a pixel, as the field reports them, with intervals over images.

    Args:
        scores: numbers of each image, see `depth_scores` [N, 6].
    """
    scores = scores[~scores.isnan().all(dim=1)]  # of a prediction that is not a number, some are NaN
    metrics = []
    for (name, (title, unit)), values in zip(SCORE_TITLES.items(), scores.T, strict=True):
        metric = mean_of(name, values, unit=unit, title=title, is_headline=name == "rmse", seed=seed)
        metrics.append(replace(metric, is_lower_better=unit != "%"))
    return metrics
