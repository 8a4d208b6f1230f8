"""Colour transforms of AutoAugment, PIRL and Colorization."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from raysl.config.ranges import Amounts, Rising, Share, Within
from raysl.transforms import functional, functional_color
from raysl.transforms.functional_color import to_lab
from raysl.transforms.transform import Masked, SampleRandom, Transform

Bits = Annotated[tuple[Annotated[int, Within(0, 8)], Annotated[int, Within(0, 8)]], Rising()]
Levels = Annotated[tuple[Annotated[int, Within(0, 255)], Annotated[int, Within(0, 255)]], Rising()]


@dataclass(frozen=True, kw_only=True)
class Posterize(Transform):
    """Keep only the highest bits of each value.

    >>> Posterize().apply(torch.full((1, 3, 1, 1), 0.6), {"bits": torch.tensor([1])})[0, 0]  # 128 of 255
    tensor([[0.5020]])
    """

    p: Share = 0.5
    """Probability for each image."""
    bits: Bits = (4, 7)
    """Range of the number of bits kept, in [0, 8]; both ends may be drawn."""

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        mask = torch.from_numpy(random.bernoulli(self.p))
        bits = torch.from_numpy(random.integers(self.bits[0], self.bits[1] + 1))
        return {"bits": torch.where(mask, bits, 8)}

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return functional_color.posterize(images, params["bits"])


@dataclass(frozen=True, kw_only=True)
class Sharpness(Transform):
    """Smooth or sharpen.

    >>> images = torch.rand(1, 3, 8, 8)
    >>> torch.equal(Sharpness().apply(images, {"factor": torch.tensor([1.0])}), images)
    True
    """

    p: Share = 0.5
    """Probability for each image."""
    factor: Amounts = (0.1, 1.9)
    """Range of the factor, at least 0: 0 smooths, 1 changes nothing, 2 sharpens."""

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        mask = torch.from_numpy(random.bernoulli(self.p))
        return {"factor": torch.where(mask, torch.from_numpy(random.uniform(*self.factor)), 1.0)}

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return functional_color.adjust_sharpness(images, params["factor"])


@dataclass(frozen=True, kw_only=True)
class Autocontrast(Masked):
    """Stretch each channel to the full range.

    >>> images = torch.tensor([0.2, 0.4, 0.6]).view(1, 1, 1, 3)
    >>> Autocontrast().apply(images, {"mask": torch.tensor([True])}).flatten()
    tensor([0.0000, 0.5000, 1.0000])
    """

    p: Share = 0.5
    """Probability for each image."""

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return functional_color.autocontrast(images, params["mask"])


@dataclass(frozen=True, kw_only=True)
class Equalize(Masked):
    """Spread the levels of each channel evenly.

    >>> images = torch.linspace(0.4, 0.6, 1024).view(1, 1, 32, 32)
    >>> Equalize().apply(images, {"mask": torch.tensor([True])}).aminmax()
    torch.return_types.aminmax(
    min=tensor(0.),
    max=tensor(1.))
    """

    p: Share = 0.1
    """Probability for each image."""

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return functional_color.equalize(images, params["mask"])


@dataclass(frozen=True, kw_only=True)
class Invert(Masked):
    """Replace each value x by 1 - x.

    >>> Invert().apply(torch.full((1, 3, 1, 1), 0.25), {"mask": torch.tensor([True])}).flatten()
    tensor([0.7500, 0.7500, 0.7500])
    """

    p: Share = 0.5
    """Probability for each image."""

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return functional_color.invert(images, params["mask"])


@dataclass(frozen=True, kw_only=True)
class RandomPhotometric(Transform):
    """Posterise, sharpen, solarise and stretch the contrast, in this order: all four or none (PIRL, Misra 2020).

    >>> import numpy as np
    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(2), view=0)
    >>> sorted(RandomPhotometric().draw(random, (32, 32)))
    ['bits', 'mask', 'sharpness', 'threshold']
    """

    p: Share = 0.66
    """Probability for each image."""
    bits: Bits = (4, 7)
    """Range of the number of bits kept, in [0, 8]; both ends may be drawn."""
    sharpness: Amounts = (0.1, 1.9)
    """Range of the sharpness factor, at least 0."""
    threshold: Levels = (0, 255)
    """Range of the level from which values are inverted, in [0, 255]; both ends may be drawn."""

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        return {
            "mask": torch.from_numpy(random.bernoulli(self.p)),
            "bits": torch.from_numpy(random.integers(self.bits[0], self.bits[1] + 1)),
            "sharpness": torch.from_numpy(random.uniform(*self.sharpness)),
            "threshold": torch.from_numpy(random.integers(self.threshold[0], self.threshold[1] + 1) / 255.0),
        }

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        values = (params[name] for name in ("bits", "sharpness", "threshold"))
        return functional.change_where(params["mask"], images, _photometric, *values)


def _photometric(images: Tensor, bits: Tensor, sharpness: Tensor, threshold: Tensor) -> Tensor:
    out = functional_color.posterize(images, bits)
    out = functional_color.adjust_sharpness(out, sharpness)
    out = functional.solarize(out, threshold)
    return functional_color.autocontrast(out, torch.ones(len(out), dtype=torch.bool))


@dataclass(frozen=True, kw_only=True)
class ToLab(Transform):
    """From sRGB to L / 100, (a + 128) / 255, (b + 128) / 255 of CIE `L*a*b*`, for Colorization (Zhang et al. 2016).

    >>> ToLab().apply(torch.ones(1, 3, 1, 1), {}).flatten()  # white
    tensor([1.0000, 0.5020, 0.5020])
    """

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        return {}

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return to_lab(images)

    def channels_problem(self, num: int) -> str | None:
        return None if num == 3 else "CIE L*a*b* is defined for red, green and blue alone; leave data.channels out"
