"""What networks see of images: red, green and blue, the same backwards, or lightness alone."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from raysl.transforms.functional import grayscale, normalize, to_float
from raysl.transforms.functional_color import to_lab

Channels = Literal["rgb", "bgr", "gray", "lab_l"]


def network_input(images: Tensor, mean: Sequence[float], std: Sequence[float], channels: Channels = "rgb") -> Tensor:
    """Normalised images [..., 3, H, W] for a network.

    Args:
        images: red, green and blue [..., 3, H, W], uint8, or float in [0, 1].
        mean, std: of the normalisation, for each channel of `rgb`, `gray` and `lab_l`; `bgr` has those of its colours.
        channels: `rgb`; `bgr`, normalised as that and then turned round; `gray`, 0.299 R + 0.587 G + 0.114 B three
            times; `lab_l`, L / 100 of CIE `L*a*b*` three times. The latter two are made before the normalisation.
    """
    if channels == "rgb":
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
