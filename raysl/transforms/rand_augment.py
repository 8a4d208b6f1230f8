"""RandAugment: random operations of one magnitude."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from raysl.config.ranges import LARGEST, Amount, Count, Share, Within
from raysl.transforms.augment_ops import OPS, apply_ops, operation_values
from raysl.transforms.random import Floats, SampleRandom
from raysl.transforms.transform import Transform, no_box

NUM_OPS = OPS.index("invert")
"""RandAugment chooses from the operations before this one."""


@dataclass(frozen=True, kw_only=True)
class RandAugment(Transform):
    """A few operations one after the other, each drawn uniformly from 14, all of one magnitude (Cubuk et al. 2020).

    The defaults are torchvision's, except that interpolation is bilinear. timm's version has `p` 0.5, 11 bins, a fill
    of 0.5 and other operations.

    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(4), view=0)
    >>> RandAugment(num_ops=3).draw(random, (32, 32))["ops"].shape
    torch.Size([4, 3])
    """

    num_ops: Count = 2
    """Operations applied one after the other."""
    magnitude: float = 9.0
    """Strength of each, in [0, num_bins - 1]."""
    magnitude_std: Amount = 0.0
    """Standard deviation of normal noise on each operation's magnitude, which is then clamped to its range."""
    p: Share = 1.0
    """Probability that an operation is applied."""
    num_bins: Annotated[int, Within(2, LARGEST)] = 31
    """Number of magnitudes; the strongest is num_bins - 1."""
    fill: float = 0.0
    """Value of pixels that enter from outside the image, in [0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.magnitude <= self.num_bins - 1:
            raise ValueError(f"magnitude={self.magnitude} must be in [0, {self.num_bins - 1}], the range of num_bins")
        if not 0.0 <= self.fill <= 1.0:
            raise ValueError(f"fill={self.fill} is outside [0, 1]; 128 of 255 is 0.5")

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        num = self.num_ops
        ops = (random.uniforms(num) * NUM_OPS).astype(np.int64)  # [B, num_ops]
        is_done = random.uniforms(num) < self.p
        signs = np.where(random.uniforms(num) < 0.5, -1.0, 1.0)
        magnitude = self.magnitude + self.magnitude_std * _normals(random, num)
        levels = magnitude.clip(0.0, self.num_bins - 1) / (self.num_bins - 1)
        return {
            "ops": torch.from_numpy(np.where(is_done, ops, 0)),
            "values": torch.from_numpy(operation_values(ops, levels, signs, size)),
        }

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return apply_ops(images, params["ops"], params["values"], self.fill)

    def moved(self, box: Tensor, params: dict[str, Tensor]) -> Tensor:
        raise no_box("RandAugment")


def _normals(random: SampleRandom, num: int) -> Floats:
    """Draw float64 [B, num] from the standard normal distribution by the Box-Muller transform."""
    radii, angles = random.uniforms(num), random.uniforms(num, 0.0, 2.0 * math.pi)
    pairs = zip(radii.ravel().tolist(), angles.ravel().tolist(), strict=True)
    # Plain Python floats: vectorised logarithms and cosines may differ in the last bit between positions in an array.
    values = [math.sqrt(-2.0 * math.log(1.0 - radius)) * math.cos(angle) for radius, angle in pairs]
    return np.array(values, dtype=np.float64).reshape(radii.shape)
