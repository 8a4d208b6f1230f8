"""Colour changes of `raysl.transforms.functional` in few passes over memory, for GPUs, where passes are what costs.

The results differ from those of CPUs in the last bits. As there, an image's result does not depend on the other images
of its batch: each value comes from the pixel's own values and the image's own numbers.
"""

import torch
from torch import Tensor

from raysl.transforms.device import to_type_of

CENTRES = (0.0, 2.0, 4.0)
"""Hues of red, green and blue, in sixths of a turn."""


def turn_hue(images: Tensor, factor: Tensor) -> Tensor:
    """Turn the hue of images [B, 3, H, W] by `factor` [B] in [-0.5, 0.5] turns: 15 passes, where a computation of the
    hue takes 50.

    With low and high the least and the largest value of a pixel, and chroma = high - low, the hue's distance from red
    is g + b - r + high - 2 low, in units of chroma sixths of a turn, on the side of green where g > b. A channel is
    high up to one unit from its own hue, low from two units on, and falls evenly in between. Nothing is divided, so
    greys need no care.

    >>> turn_hue(torch.tensor([1.0, 0.5, 0.0]).view(1, 3, 1, 1), torch.tensor([1 / 3])).flatten()  # orange to mint
    tensor([0.0000, 1.0000, 0.5000])
    """
    red, green, blue = images.unbind(1)  # [B, H, W] each
    lowest, highest = torch.aminmax(images, dim=1, keepdim=True)  # [B, 1, H, W] each
    chroma = highest - lowest
    hue = (green + blue).sub_(red)[:, None].add_(highest).sub_(lowest, alpha=2.0)  # [0, 3 chroma]
    hue.copysign_((green - blue)[:, None])

    # Distances between a turned hue and those of the channels, each in [-3, 3], so that the sum with a hue is in
    # [-6, 6] units: the distance along the circle is then 3 - |3 - |sum||.
    distances = (factor.double()[:, None] * 6.0 - factor.new_tensor(CENTRES, dtype=torch.float64) + 3.0) % 6.0 - 3.0
    out = torch.addcmul(hue, chroma, to_type_of(distances, images)[:, :, None, None])  # [B, 3, H, W]
    out.abs_().sub_(chroma, alpha=3.0).abs_().add_(lowest - chroma)
    return out.clamp_(lowest, highest)


def blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """Return factor * images + (1 - factor) * other, clamped to [0, 1].

    >>> blend(torch.full((1, 1, 1, 1), 0.5), torch.zeros(1, 1, 1, 1), torch.tensor([1.5])).item()
    0.75

    Args:
        images: [B, C, H, W].
        other: tensor of a shape that broadcasts to that.
        factor: [B].
    """
    return torch.lerp(other, images, to_type_of(factor, images)[:, None, None, None]).clamp_(0.0, 1.0)


def weighted(images: Tensor, weights: tuple[float, float, float]) -> Tensor:
    """Return the weighted sum [B, 1, H, W] of three channels.

    >>> weighted(torch.ones(1, 3, 1, 1), (0.25, 0.5, 0.25)).item()
    1.0
    """
    red, green, blue = images.unbind(1)  # [B, H, W] each
    total = (red * weights[0]).add_(green, alpha=weights[1]).add_(blue, alpha=weights[2])
    return total[:, None]
