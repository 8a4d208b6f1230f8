"""Training crops of images and their depths, as the Monocular Depth Estimation Toolbox makes them of NYU Depth v2."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.transforms.random import SampleRandom

Area = tuple[int, int, int, int]
"""First row, row after the last, first column, column after the last."""

DEGREES = 2.5
"""Largest turn of half of the images."""
GAMMA, BRIGHTNESS, COLOR = (0.9, 1.1), (0.75, 1.25), (0.9, 1.1)
"""Powers of the values in 255ths, factors of all channels, and factors of each, for half of the images."""


def depth_crop(
    image: Tensor, depth: Tensor, area: Area | None, crop: tuple[int, int], random: SampleRandom
) -> tuple[Tensor, Tensor]:
    """Cut a random crop of an image and its depths; half are turned, mirrored and coloured, each half for itself.

    Args:
        image: uint8 [3, H, W].
        depth: float32 [H, W], 0 where unknown.
        area: part of the image that is seen, without the white border of NYU Depth v2; None is all.
        crop: height and width in pixels. What lies beyond the area is black and of unknown depth.
        random: numbers of this sample, one row.

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
        pixels = colored(pixels, random)
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


def colored(image: Tensor, random: SampleRandom) -> Tensor:
    """Change gamma, brightness and the colours of an image in [0, 1] [3, H, W], which is kept in [0, 1].

    The power is taken of the values between 0 and 255, so it changes the brightness too.
    """
    gamma, brightness = float(random.uniform(*GAMMA)[0]), float(random.uniform(*BRIGHTNESS)[0])
    factors = torch.tensor([brightness * float(random.uniform(*COLOR)[0]) for _ in range(3)])
    return ((255 * image) ** gamma * factors[:, None, None] / 255).clamp(0, 1)
