"""AutoAugment with its published policies."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raysl.transforms.augment_ops import OPS, apply_ops, operation_values
from raysl.transforms.transform import SampleRandom, Transform, no_box

BINS = 10

POLICIES = {
    "imagenet": """
        posterize .4 8, rotate .6 9 | solarize .6 5, autocontrast .6 0 | equalize .8 0, equalize .6 0
        posterize .6 7, posterize .6 6 | equalize .4 0, solarize .2 4 | equalize .4 0, rotate .8 8
        solarize .6 3, equalize .6 0 | posterize .8 5, equalize 1 0 | rotate .2 3, solarize .6 8
        equalize .6 0, posterize .4 6 | rotate .8 8, color .4 0 | rotate .4 9, equalize .6 0
        equalize 0 0, equalize .8 0 | invert .6 0, equalize 1 0 | color .6 4, contrast 1 8
        rotate .8 8, color 1 2 | color .8 8, solarize .8 7 | sharpness .4 7, invert .6 0
        shear_x .6 5, equalize 1 0 | color .4 0, equalize .6 0 | equalize .4 0, solarize .2 4
        solarize .6 5, autocontrast .6 0 | invert .6 0, equalize 1 0 | color .6 4, contrast 1 8
        equalize .8 0, equalize .6 0
    """,
    "cifar10": """
        invert .1 0, contrast .2 6 | rotate .7 2, translate_x .3 9 | sharpness .8 1, sharpness .9 3
        shear_y .5 8, translate_y .7 9 | autocontrast .5 0, equalize .9 0 | shear_y .2 7, posterize .3 7
        color .4 3, brightness .6 7 | sharpness .3 9, brightness .7 9 | equalize .6 0, equalize .5 0
        contrast .6 7, sharpness .6 5 | color .7 7, translate_x .5 8 | equalize .3 0, autocontrast .4 0
        translate_y .4 3, sharpness .2 6 | brightness .9 6, color .2 8 | solarize .5 2, invert 0 0
        equalize .2 0, autocontrast .6 0 | equalize .2 0, equalize .6 0 | color .9 9, equalize .6 0
        autocontrast .8 0, solarize .2 8 | brightness .1 3, color .7 0 | solarize .4 5, autocontrast .9 0
        translate_y .9 9, translate_y .7 9 | autocontrast .9 0, solarize .8 3 | equalize .8 0, invert .1 0
        translate_y .7 9, autocontrast .9 0
    """,
    "svhn": """
        shear_x .9 4, invert .2 0 | shear_y .9 8, invert .7 0 | equalize .6 0, solarize .6 6
        invert .9 0, equalize .6 0 | equalize .6 0, rotate .9 3 | shear_x .9 4, autocontrast .8 0
        shear_y .9 8, invert .4 0 | shear_y .9 5, solarize .2 6 | invert .9 0, autocontrast .8 0
        equalize .6 0, rotate .9 3 | shear_x .9 4, solarize .3 3 | shear_y .8 8, invert .7 0
        equalize .9 0, translate_y .6 6 | invert .9 0, equalize .6 0 | contrast .3 3, rotate .8 4
        invert .8 0, translate_y 0 2 | shear_y .7 6, solarize .4 8 | invert .6 0, rotate .8 4
        shear_y .3 7, translate_x .9 3 | shear_x .1 6, invert .6 0 | solarize .7 2, translate_y .6 7
        shear_y .8 4, invert .8 0 | shear_x .7 9, translate_y .8 3 | shear_y .8 5, autocontrast .7 0
        shear_x .7 2, invert .1 0
    """,
}
"""The 25 pairs of each policy (Cubuk et al. 2019, appendix), as (operation, probability, magnitude in tenths)."""


@dataclass(frozen=True, kw_only=True)
class AutoAugment(Transform):
    """One pair of operations of a learned policy, drawn uniformly from 25 (Cubuk et al. 2019).

    Equal to torchvision's, except that interpolation is bilinear.

    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(4), view=0)
    >>> {name: tuple(value.shape) for name, value in AutoAugment().draw(random, (32, 32)).items()}
    {'ops': (4, 2), 'values': (4, 2)}
    """

    policy: str = "imagenet"
    """Dataset that the policy was learned on: imagenet, cifar10 or svhn."""
    fill: float = 0.0
    """Value of pixels that enter from outside the image, in [0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy not in POLICIES:
            raise ValueError(f"policy={self.policy!r} is unknown; give one of {', '.join(POLICIES)}")
        if not 0.0 <= self.fill <= 1.0:
            raise ValueError(f"fill={self.fill} is outside [0, 1]; 128 of 255 is 0.5")

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        table = policy_table(self.policy)
        pair = table[random.integers(0, len(table))]  # [B, 2, 3]
        ops = pair[..., 0].astype(np.int64)
        is_done = random.uniforms(2) < pair[..., 1]
        signs = np.where(random.uniforms(2) < 0.5, -1.0, 1.0)
        return {
            "ops": torch.from_numpy(np.where(is_done, ops, 0)),
            "values": torch.from_numpy(operation_values(ops, pair[..., 2] / (BINS - 1), signs, size)),
        }

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        return apply_ops(images, params["ops"], params["values"], self.fill)

    def moved(self, box: Tensor, params: dict[str, Tensor]) -> Tensor:
        raise no_box("AutoAugment")


def policy_table(policy: str) -> np.ndarray[tuple[int, int, int], np.dtype[np.float64]]:
    """Return float64 [25, 2, 3]: index into OPS, probability and magnitude of both operations of each pair."""
    pairs = [pair for line in POLICIES[policy].strip().splitlines() for pair in line.split("|")]
    operations = [[op.split() for op in pair.split(",")] for pair in pairs]
    return np.array([[(OPS.index(name), float(p), float(bin_)) for name, p, bin_ in pair] for pair in operations])
