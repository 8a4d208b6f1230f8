"""The channels that a network sees: RGB, BGR, grey, lightness, or those of an image as they are stored."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from raysl.transforms.functional import grayscale, normalize, to_float
from raysl.transforms.functional_color import to_lab

Channels = Literal["rgb", "bgr", "gray", "lab_l"] | int


SHOWN = 3


def to_shown(images: Tensor) -> Tensor:
    """Return three channels to look at of images [..., C, H, W]: the first three, or of fewer the first one thrice.

    >>> import torch
    >>> to_shown(torch.zeros(5, 12, 8, 8)).shape, to_shown(torch.zeros(2, 8, 8)).shape
    (torch.Size([5, 3, 8, 8]), torch.Size([3, 8, 8]))
    """
    if images.shape[-3] >= SHOWN:
        return images[..., :SHOWN, :, :]
    return images[..., :1, :, :].expand(*images.shape[:-3], SHOWN, -1, -1)


def to_pixels(images: Tensor, mean: Sequence[float], std: Sequence[float], channels: Channels = "rgb") -> Tensor:
    """Return what the images for a network look like, uint8 [..., 3, H, W]: `network_input` undone, as far as its
    channels allow. NaN is the middle grey.

    >>> import torch
    >>> to_pixels(torch.tensor([1.0, -1.0, torch.nan]).view(3, 1, 1), (0.5,) * 3, (0.5,) * 3).flatten()
    tensor([255,   0, 128], dtype=torch.uint8)

    Args:
        images: normalised images [..., C, H, W].
        mean, std, channels: arguments of `network_input`.
    """
    values = images.flip(-3) if channels == "bgr" else images
    scale, shift = (values.new_tensor(numbers)[:, None, None] for numbers in (std, mean))
    shown = to_shown(values * scale + shift)
    return shown.nan_to_num(nan=128 / 255).clamp(0, 1).mul(255).round().to(torch.uint8)


def network_input(images: Tensor, mean: Sequence[float], std: Sequence[float], channels: Channels = "rgb") -> Tensor:
    """Normalise images [..., C, H, W] for a network, where C is 3 unless `channels` is a number.

    >>> import torch
    >>> network_input(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8), (0.5,) * 3, (0.5,) * 3)[0, :, 0, 0]
    tensor([1., 1., 1.])

    Args:
        images: RGB or of `channels`, uint8 or float in [0, 1], [..., C, H, W].
        mean, std: per channel, in the order of `rgb` also for `bgr`.
        channels: `rgb`; `bgr`, normalised as `rgb` and then reversed; `gray`, 0.299 R + 0.587 G + 0.114 B repeated
            three times; `lab_l`, L / 100 of CIE `L*a*b*` repeated three times. The last two are computed before the
            normalisation. A number leaves the channels as they are.
    """
    if channels == "rgb" or isinstance(channels, int):
        return normalize(images, mean, std)
    if channels == "bgr":
        return normalize(images, mean, std).flip(-3)
    floats = images if images.is_floating_point() else to_float(images)
    flat = floats.reshape(-1, *images.shape[-3:])
    if channels == "gray":
        one = grayscale(flat, flat.new_ones(len(flat)).bool())
    else:
        one = to_lab(flat)[:, :1].expand_as(flat)
    return normalize(one.reshape(images.shape), mean, std)
