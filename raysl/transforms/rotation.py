"""Turns by quarters, which RotNet has to recognise."""

from dataclasses import dataclass

import torch
from torch import Tensor

from raysl.transforms.functional import change_where
from raysl.transforms.random import SampleRandom
from raysl.transforms.transform import Transform


@dataclass(frozen=True, kw_only=True)
class RandomRotation90(Transform):
    """Turn square images by 0, 90, 180 or 270 degrees, each as often (RotNet, Gidaris et al. 2018).

    Counter-clockwise, as torchvision's `rotate` by positive angles; no pixel changes its value. The number of quarters
    is in the extras as `rotation`, int64 [B].
    """

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        return {"quarters": torch.from_numpy(random.integers(0, 4))}

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return rotate_quarters(images, params["quarters"])

    def extras(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"rotation": params["quarters"]}


def rotate_quarters(images: Tensor, quarters: Tensor) -> Tensor:
    """Turn each image [B, C, H, H], of any type, counter-clockwise by `quarters` [B] of 90 degrees, in [0, 4).

    Raises:
        ValueError: if the images are not square.
    """
    height, width = images.shape[-2:]
    if height != width:
        raise ValueError(f"images of {height}x{width} cannot turn by 90 degrees in place; crop them to squares before")
    for number in range(1, 4):
        images = change_where(quarters == number, images, lambda chosen, k=number: chosen.rot90(k, (-2, -1)))
    return images
