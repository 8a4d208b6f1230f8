"""Transforms of colours that AutoAugment, PIRL and Colorization use."""

from dataclasses import dataclass

import torch
from torch import Tensor

from raysl.transforms import functional, functional_color
from raysl.transforms.functional_color import to_lab
from raysl.transforms.random import SampleRandom
from raysl.transforms.transform import Masked, Transform, check_probability


@dataclass(frozen=True, kw_only=True)
class Posterize(Transform):
    """Keep only the highest bits of each value."""

    p: float = 0.5
    """Probability for each image."""
    bits: tuple[int, int] = (4, 7)
    """Fewest and most bits that are kept, in [0, 8]; both may be drawn."""

    def __post_init__(self) -> None:
        check_probability(self.p)
        if not 0 <= self.bits[0] <= self.bits[1] <= 8:
            raise ValueError(f"bits={self.bits} must be a rising range inside [0, 8]")

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        mask = torch.from_numpy(random.bernoulli(self.p))
        bits = torch.from_numpy(random.integers(self.bits[0], self.bits[1] + 1))
        return {"bits": torch.where(mask, bits, 8)}

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return functional_color.posterize(images, params["bits"])


@dataclass(frozen=True, kw_only=True)
class Sharpness(Transform):
    """Smooth or sharpen."""

    p: float = 0.5
    """Probability for each image."""
    factor: tuple[float, float] = (0.1, 1.9)
    """Range of the factor, at least 0: 0 smooths, 1 changes nothing, 2 sharpens."""

    def __post_init__(self) -> None:
        check_probability(self.p)
        if not 0.0 <= self.factor[0] <= self.factor[1]:
            raise ValueError(f"factor={self.factor} must be a rising range of numbers from 0 on")

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        mask = torch.from_numpy(random.bernoulli(self.p))
        return {"factor": torch.where(mask, torch.from_numpy(random.uniform(*self.factor)), 1.0)}

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return functional_color.adjust_sharpness(images, params["factor"])


@dataclass(frozen=True, kw_only=True)
class Autocontrast(Masked):
    """Stretch each channel to the full range."""

    p: float = 0.5
    """Probability for each image."""

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return functional_color.autocontrast(images, params["mask"])


@dataclass(frozen=True, kw_only=True)
class Equalize(Masked):
    """Spread the levels of each channel evenly."""

    p: float = 0.1
    """Probability for each image."""

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return functional_color.equalize(images, params["mask"])


@dataclass(frozen=True, kw_only=True)
class Invert(Masked):
    """The negative."""

    p: float = 0.5
    """Probability for each image."""

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return functional_color.invert(images, params["mask"])


@dataclass(frozen=True, kw_only=True)
class RandomPhotometric(Transform):
    """Posterise, sharpen, solarise and stretch the contrast, in this order: all four or none (PIRL, Misra 2020)."""

    p: float = 0.66
    """Probability for each image."""
    bits: tuple[int, int] = (4, 7)
    """Fewest and most bits that are kept, in [0, 8]; both may be drawn."""
    sharpness: tuple[float, float] = (0.1, 1.9)
    """Range of the factor of the sharpness, at least 0."""
    threshold: tuple[int, int] = (0, 255)
    """Lowest and highest level from which values are inverted, in [0, 255]; both may be drawn."""

    def __post_init__(self) -> None:
        check_probability(self.p)
        if not 0 <= self.bits[0] <= self.bits[1] <= 8:
            raise ValueError(f"bits={self.bits} must be a rising range inside [0, 8]")
        if not 0.0 <= self.sharpness[0] <= self.sharpness[1]:
            raise ValueError(f"sharpness={self.sharpness} must be a rising range of numbers from 0 on")
        if not 0 <= self.threshold[0] <= self.threshold[1] <= 255:
            raise ValueError(f"threshold={self.threshold} must be a rising range of levels inside [0, 255]")

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
    """From sRGB to L / 100, (a + 128) / 255, (b + 128) / 255 of CIE L*a*b*, for Colorization (Zhang et al. 2016)."""

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        return {}

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return to_lab(images)
