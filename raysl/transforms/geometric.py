"""Transforms that move pixels: flips, affine maps and quarter turns."""

from dataclasses import dataclass

import torch
from torch import Tensor

from raysl.config.ranges import Positives, Share
from raysl.transforms import functional, programs
from raysl.transforms.device import to_device
from raysl.transforms.functional import change_where
from raysl.transforms.programs import Program, single_operation
from raysl.transforms.transform import Masked, SampleRandom, Transform, no_box


@dataclass(frozen=True, kw_only=True)
class HorizontalFlip(Masked):
    """Mirror left to right.

    >>> HorizontalFlip().apply(torch.tensor([[[[1.0, 2.0]]]]), {"mask": torch.tensor([True])})
    tensor([[[[2., 1.]]]])
    """

    p: Share = 0.5
    """Probability for each image."""

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return functional.horizontal_flip(images, params["mask"])

    def program(self, params: dict[str, Tensor], size: tuple[int, int]) -> Program:
        return single_operation(programs.FLIP, params["mask"])

    def moved(self, box: Tensor, params: dict[str, Tensor]) -> Tensor:
        return _swapped(box, 1, 3, params["mask"])


@dataclass(frozen=True, kw_only=True)
class VerticalFlip(Masked):
    """Mirror top to bottom.

    >>> VerticalFlip().apply(torch.tensor([[[[1.0], [2.0]]]]), {"mask": torch.tensor([True])}).flatten()
    tensor([2., 1.])
    """

    p: Share = 0.5
    """Probability for each image."""

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return functional.vertical_flip(images, params["mask"])

    def moved(self, box: Tensor, params: dict[str, Tensor]) -> Tensor:
        return _swapped(box, 0, 2, params["mask"])


@dataclass(frozen=True, kw_only=True)
class Affine(Transform):
    """Rotate, shift, scale and shear about the centre, as torchvision's RandomAffine; black outside.

    >>> random = SampleRandom(seed=0, epoch=0, index=torch.arange(4).numpy(), view=0)
    >>> Affine(translate=(0.5, 0.0)).draw(random, (8, 8))["translate"].shape
    torch.Size([4, 2])
    """

    p: Share = 1.0
    """Probability for each image."""
    degrees: float | tuple[float, float] = 0.0
    """Range of the rotation, clockwise; one number d means (-d, d)."""
    translate: tuple[Share, Share] = (0.0, 0.0)
    """Largest shifts as shares of width and height, in [0, 1]; whole pixels are drawn."""
    scale: Positives = (1.0, 1.0)
    """Range of the scale, above 0."""
    shear: float | tuple[float, float] | tuple[float, float, float, float] = 0.0
    """Degrees along x, and with four numbers along y too; one number s means (-s, s)."""

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        height, width = size
        max_x, max_y = self.translate[0] * width, self.translate[1] * height
        shear = self.shear if isinstance(self.shear, tuple) else (-self.shear, self.shear)
        degrees = self.degrees if isinstance(self.degrees, tuple) else (-self.degrees, self.degrees)
        mask = random.bernoulli(self.p)
        angle = random.uniform(*degrees)
        shift_x = random.uniform(-max_x, max_x).round()
        shift_y = random.uniform(-max_y, max_y).round()
        scale = random.uniform(*self.scale)
        shear_x = random.uniform(shear[0], shear[1])
        shear_y = random.uniform(shear[2], shear[3]) if len(shear) == 4 else shear_x * 0.0
        return {
            "mask": torch.from_numpy(mask),
            "angle": torch.from_numpy(angle),
            "translate": torch.stack([torch.from_numpy(shift_x), torch.from_numpy(shift_y)], dim=1),
            "scale": torch.from_numpy(scale),
            "shear": torch.stack([torch.from_numpy(shear_x), torch.from_numpy(shear_y)], dim=1),
        }

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        values = (params[name] for name in ("angle", "translate", "scale", "shear"))
        return functional.change_where(params["mask"], images, functional.affine, *values)

    def moved(self, box: Tensor, params: dict[str, Tensor]) -> Tensor:
        raise no_box("an affine map")


@dataclass(frozen=True, kw_only=True)
class RandomRotation90(Transform):
    """Turn square images by 0, 90, 180 or 270 degrees, equally often (RotNet, Gidaris et al. 2018).

    Counter-clockwise, as torchvision's `rotate` by positive angles; no pixel changes its value. The number of quarters
    is in the extras as `rotation`, int64 [B].

    >>> RandomRotation90().apply(torch.arange(4.0).view(1, 1, 2, 2), {"quarters": torch.tensor([1])})[0, 0]
    tensor([[1., 3.],
            [0., 2.]])
    """

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        return {"quarters": torch.from_numpy(random.integers(0, 4))}

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return rotate_quarters(images, params["quarters"])

    def extras(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"rotation": params["quarters"]}

    def moved(self, box: Tensor, params: dict[str, Tensor]) -> Tensor:
        raise no_box("a quarter turn")


def rotate_quarters(images: Tensor, quarters: Tensor) -> Tensor:
    """Turn each image [B, C, H, H], of any type, counter-clockwise by `quarters` [B] of 90 degrees, in [0, 4).

    Raises:
        ValueError: if the images are not square.
    """
    height, width = images.shape[-2:]
    if height != width:
        raise ValueError(f"images of {height}x{width} cannot turn by 90 degrees in place; crop them to squares first")
    for number in range(1, 4):
        images = change_where(quarters == number, images, lambda chosen, k=number: chosen.rot90(k, (-2, -1)))
    return images


def _swapped(box: Tensor, first: int, second: int, mask: Tensor) -> Tensor:
    """Exchange two edges of the boxes [B, 6] of which the mask, bool [B] on the CPU, is true."""
    edges, mask = list(box.unbind(dim=1)), to_device(mask, box.device)
    low, high = edges[first], edges[second]
    edges[first], edges[second] = torch.where(mask, high, low), torch.where(mask, low, high)
    return torch.stack(edges, dim=1)
