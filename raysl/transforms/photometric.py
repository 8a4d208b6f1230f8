"""Transforms that change colours and sharpness."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from raysl.config.ranges import Positives, Share
from raysl.transforms import functional, programs
from raysl.transforms.device import to_device
from raysl.transforms.programs import Program, single_operation
from raysl.transforms.transform import Masked, SampleRandom, Transform

Range = float | tuple[float, float]
Arithmetic = Literal["torchvision", "tensorflow"]

Operation = Callable[[Tensor, Tensor], Tensor]

OPERATIONS: dict[str, tuple[Operation, int]] = {
    "brightness": (functional.adjust_brightness, programs.BRIGHTNESS),
    "contrast": (functional.adjust_contrast, programs.CONTRAST),
    "saturation": (functional.adjust_saturation, programs.SATURATION),
    "hue": (functional.adjust_hue, programs.HUE),
}
"""Functions of torchvision's operations, and the codes of their compiled loops, by name."""
TENSORFLOW: dict[str, tuple[Operation, int]] = {
    "brightness": (functional.shift_brightness, programs.SHIFT),
    "contrast": (functional.adjust_channel_contrast, programs.CHANNEL_CONTRAST),
    "saturation": (functional.adjust_hsv_saturation, programs.HSV_SATURATION),
}
"""Operations of `arithmetic="tensorflow"` that differ from torchvision's."""
IDENTITY = {"brightness": (1.0, 1.0), "contrast": (1.0, 1.0), "saturation": (1.0, 1.0), "hue": (0.0, 0.0)}


@dataclass(frozen=True, kw_only=True)
class ColorJitter(Transform):
    """Change brightness, contrast, saturation and hue, in an order drawn for each image, as torchvision's ColorJitter.

    The defaults are SimCLR's at colour strength 1 (Chen et al. 2020, appendix A).

    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(2), view=0)
    >>> sorted(ColorJitter(hue=0.0).draw(random, (32, 32)))  # a factor of 1 or a turn of 0 is not drawn
    ['brightness', 'contrast', 'mask', 'order', 'saturation']
    """

    p: Share = 0.8
    """Probability for each image."""
    brightness: Range = 0.8
    """Range of the factor, at least 0; one number x means (max(0, 1 - x), 1 + x)."""
    contrast: Range = 0.8
    """As brightness."""
    saturation: Range = 0.8
    """As brightness."""
    hue: Range = 0.2
    """Range of the turn, in [-0.5, 0.5]; one number x means (-x, x)."""
    arithmetic: Arithmetic = "torchvision"
    """Effect of a factor f: torchvision multiplies brightness by f, and contrast and saturation are distances from the
    mean grey and the pixel's grey; tensorflow adds f - 1 to the brightness, contrast is the distance from each
    channel's mean, and saturation is that of HSV (BYOL, Grill et al. 2020, and its code)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, (low, high) in self._ranges().items():
            floor, ceiling = (-0.5, 0.5) if name == "hue" else (0.0, float("inf"))
            if not floor <= low <= high <= ceiling:
                raise ValueError(f"{name}={getattr(self, name)} must be a rising range inside [{floor}, {ceiling}]")

    def _ranges(self) -> dict[str, tuple[float, float]]:
        """Return the bounds of each operation's factor, by name."""
        return {
            "brightness": _around_one(self.brightness),
            "contrast": _around_one(self.contrast),
            "saturation": _around_one(self.saturation),
            "hue": self.hue if isinstance(self.hue, tuple) else (-self.hue, self.hue),
        }

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        mask = torch.from_numpy(random.bernoulli(self.p))
        order = torch.from_numpy(random.permutation(len(OPERATIONS)))  # [B, 4]
        ranges = self._ranges()
        # all factors are drawn, so that those of an operation do not depend on which others are used
        factors = {name: torch.from_numpy(random.uniform(*bounds)) for name, bounds in ranges.items()}
        used = {name: factors[name] for name in OPERATIONS if ranges[name] != IDENTITY[name]}
        return {"mask": mask, "order": order, **used}

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        used = [(number, name) for number, name in enumerate(OPERATIONS) if name in params]
        factors = (params[name] for _, name in used)
        change = partial(_jitter, [(number, self._operations[name][0]) for number, name in used])
        return functional.change_where(params["mask"], images, change, params["order"], *factors)

    def program(self, params: dict[str, Tensor], size: tuple[int, int]) -> Program:
        order = params["order"].numpy()  # [B, 4]
        codes, factors = np.zeros_like(order), np.zeros((*order.shape, 2))
        for number, name in enumerate(OPERATIONS):
            if name in params:
                is_stage = (order == number) & params["mask"].numpy()[:, None]
                codes[is_stage] = self._operations[name][1]
                factors[..., 0] += np.where(is_stage, params[name].numpy()[:, None], 0.0)
        return codes, factors

    def channels_problem(self, num: int) -> str | None:
        if num in (1, 3) or self._ranges()["hue"] == IDENTITY["hue"]:
            return None
        return "a hue to turn is defined for red, green and blue alone; set the last number of method.views.jitter to 0"

    @property
    def _operations(self) -> dict[str, tuple[Operation, int]]:
        """Functions and codes of the operations, by name."""
        return OPERATIONS | (TENSORFLOW if self.arithmetic == "tensorflow" else {})


def _jitter(operations: list[tuple[int, Operation]], images: Tensor, order: Tensor, *factors: Tensor) -> Tensor:
    """Apply numbered operations to each image, in its `order` [B, 4] of their numbers."""
    # The first stage writes every image if every number has an operation.
    out = torch.empty_like(images) if len(operations) == order.shape[1] else images.clone()
    for stage in range(order.shape[1]):
        before = images if stage == 0 else out
        for (number, operation), factor in zip(operations, factors, strict=True):
            rows = (order[:, stage] == number).nonzero().flatten()
            on_device = to_device(rows, images.device)
            changed = operation(before.index_select(0, on_device), factor.index_select(0, rows))
            out.index_copy_(0, on_device, changed)
    return out


@dataclass(frozen=True, kw_only=True)
class Grayscale(Masked):
    """Turn images grey; the number of channels stays.

    >>> Grayscale().apply(torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1), {"mask": torch.tensor([True])}).flatten()
    tensor([0.2989, 0.2989, 0.2989])
    """

    p: Share = 0.2
    """Probability for each image."""

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return functional.grayscale(images, params["mask"])

    def program(self, params: dict[str, Tensor], size: tuple[int, int]) -> Program:
        return single_operation(programs.GRAYSCALE, params["mask"])


@dataclass(frozen=True, kw_only=True)
class GaussianBlur(Transform):
    """Blur with a Gaussian of random width (SimCLR, Chen et al. 2020, appendix A).

    >>> GaussianBlur(kernel_size=3).apply(torch.eye(3).view(1, 1, 3, 3), {"sigma": torch.tensor([0.0])}).view(3, 3)
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]])
    """

    p: Share = 0.5
    """Probability for each image."""
    sigma: Positives = (0.1, 2.0)
    """Range of the standard deviation, in pixels, above 0."""
    kernel_size: int | None = None
    """Side of the kernel, odd; default: the odd number nearest to a tenth of the image's side, at least 3."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel_size is not None and (self.kernel_size < 1 or self.kernel_size % 2 == 0):
            raise ValueError(f"kernel_size={self.kernel_size} must be odd; try {self.kernel_size // 2 * 2 + 1}")

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        mask = random.bernoulli(self.p)
        return {"sigma": torch.from_numpy(random.uniform(*self.sigma) * mask)}

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        kernel_size = self._kernel_size((images.shape[-2], images.shape[-1]))
        return functional.gaussian_blur(images, params["sigma"], kernel_size)

    def program(self, params: dict[str, Tensor], size: tuple[int, int]) -> Program:
        radius = self._kernel_size(size) // 2
        functional.check_blur(radius, size)
        sigma = params["sigma"]
        return single_operation(programs.BLUR, sigma > 0.0, sigma, torch.full_like(sigma, radius))

    def _kernel_size(self, size: tuple[int, int]) -> int:
        return self.kernel_size or blur_kernel_size(min(size))


@dataclass(frozen=True, kw_only=True)
class Solarize(Transform):
    """Invert the bright values (BYOL, Grill et al. 2020, appendix B; with a range of thresholds PIRL's).

    >>> Solarize().apply(torch.tensor([0.25, 1.0]).view(1, 1, 1, 2), {"threshold": torch.tensor([0.5])}).flatten()
    tensor([0.2500, 0.0000])
    """

    p: Share = 0.2
    """Probability for each image."""
    threshold: float | tuple[float, float] = 0.5
    """Lowest value that is inverted, in [0, 1]; from a range one of 256 levels is drawn for each image."""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self._range()
        if not 0.0 <= low <= high <= 1.0:
            raise ValueError(f"threshold={self.threshold} is outside [0, 1]; 128 of 255 is 0.5")

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        mask = torch.from_numpy(random.bernoulli(self.p))
        low, high = self._range()
        if low == high:
            return {"threshold": torch.where(mask, low, float("inf"))}
        level = random.integers(round(low * 255), round(high * 255) + 1)
        return {"threshold": torch.where(mask, torch.from_numpy(level / 255), float("inf"))}

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return functional.solarize(images, params["threshold"])

    def program(self, params: dict[str, Tensor], size: tuple[int, int]) -> Program:
        threshold = params["threshold"]
        return single_operation(programs.SOLARIZE, threshold <= 1.0, threshold)

    def _range(self) -> tuple[float, float]:
        return self.threshold if isinstance(self.threshold, tuple) else (self.threshold, self.threshold)


def blur_kernel_size(side: int) -> int:
    """Return the odd number nearest to a tenth of `side`, at least 3.

    >>> blur_kernel_size(32), blur_kernel_size(224)
    (3, 23)
    """
    return max(3, side // 20 * 2 + 1)


def _around_one(value: Range) -> tuple[float, float]:
    return value if isinstance(value, tuple) else (max(0.0, 1.0 - value), 1.0 + value)
