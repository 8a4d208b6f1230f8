"""AlexNet (Krizhevsky, Sutskever and Hinton 2012) in the variants of the first pretext-task papers.

The variants follow VISSL's collection of the papers' code: Caffe's reference network (BVLC), Zhang et al. 2016
(colorization, arXiv 1603.08511), Noroozi and Favaro 2016 (jigsaw, arXiv 1603.09246), Caron et al. 2018 (DeepCluster,
arXiv 1807.05520) and Gidaris et al. 2018 (RotNet, arXiv 1803.07728). torchvision's `alexnet` is another one, of 2014.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from raysl.config.ranges import Side
from raysl.config.schema import BackboneConfig
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone

RGB = 3


@dataclass(frozen=True)
class _Variant:
    """Differences between AlexNets; stride and padding are those of the first convolution."""

    widths: tuple[int, int, int, int, int]
    channels: int = RGB  # of the first convolution; RGB stands for all of the images
    stride: int = 4
    padding: int = 0
    groups: int = 1
    normed: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Numbers of the convolutions followed by batch normalisation."""
    response_norm: Literal["none", "before pool", "after pool"] = "none"


_WIDTHS = (96, 256, 384, 384, 256)
VARIANTS = {
    "bvlc": _Variant(_WIDTHS, groups=2, normed=(), response_norm="before pool"),
    "colorization": _Variant(_WIDTHS, channels=1, groups=2),
    "deepcluster": _Variant(_WIDTHS, channels=2, padding=2),
    "jigsaw": _Variant(_WIDTHS, stride=2, groups=2, normed=(3, 4, 5), response_norm="after pool"),
    "rotnet": _Variant((64, 192, 384, 256, 256), padding=2),
}
"""Variants by `backbone.variant`."""
_POOLED = (1, 2, 5)


class AlexNet(Backbone):
    """The five convolutions of an AlexNet; features are its last map, flattened or averaged.

    Stages are `conv1` (with its normalisation and ReLU), `pool1`, `conv2`, `pool2`, `conv3`, `conv4`, `conv5`, `pool5`
    and `features`. Weights start as torch's convolutions do.

    >>> AlexNet(AlexNet.Config(output="mean"))(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 256])
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(BackboneConfig):
        """Settings of an AlexNet."""

        name: str = "alexnet"
        variant: Literal["bvlc", "colorization", "deepcluster", "jigsaw", "rotnet"] = "rotnet"
        """Variant: bvlc (two groups, local response normalisation, no batch normalisation), colorization (sees only the
        first channel: use data.channels=lab_l or gray), deepcluster (sees edges from a Sobel filter), jigsaw (stride 2,
        for tiles), rotnet."""
        image_size: Side = 224
        """Side of the images in pixels, which sets the width of output=flatten."""
        output: Literal["flatten", "mean"] = "flatten"
        """Features: the flattened last map, as in the papers, for images of one size; or its spatial mean."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.native_size = config.image_size
        variant = VARIANTS[config.variant]
        self.filter = Sobel() if config.variant == "deepcluster" else nn.Identity()
        channels = self.in_channels if variant.channels == RGB else variant.channels
        self.first_channels = channels
        for number, width in enumerate(variant.widths, 1):
            self.add_module(f"conv{number}", _convolution(variant, number, channels, width))
            if number in _POOLED:
                self.add_module(f"pool{number}", _pool(variant, number))
            channels = width
        self.side = _side(variant, config.image_size)
        if self.side < 1:
            raise ConfigError(
                f"backbone.image_size {config.image_size} leaves an empty last map of the {config.variant} "
                f"AlexNet; give at least {_smallest_side(variant)}"
            )
        self.feature_dim = channels if config.output == "mean" else channels * self.side**2

    @classmethod
    def check_side(cls, config: Any, side: int) -> None:
        """Refuse images of another size than `image_size`, or, for output=mean, images that are too small."""
        if problem := _size_problem(config, side, side):
            raise ConfigError(problem)

    @property
    def stage_widths(self) -> dict[str, int]:
        """Channels of the maps, and the width of `features`."""
        widths = VARIANTS[self.config.variant].widths
        names = [name for name, _ in self.named_children() if name != "filter"]
        return {**{name: widths[int(name[-1]) - 1] for name in names}, "features": self.feature_dim}

    @property
    def feature_stages(self) -> tuple[str, ...]:
        """Names of the stages that `forward` returns."""
        return ("features",)

    @override
    def forward(self, images: Tensor) -> Tensor:
        return self.stages(images, ["features"])["features"]

    @override
    def stages(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        known = self.stages_up_to(names)
        if "features" in names and (problem := _size_problem(self.config, *images.shape[-2:])):
            raise ValueError(problem)
        outputs: dict[str, Tensor] = {}
        x = self._first_input(images)
        for name in known:
            if name == "features":
                x = x.mean(dim=(2, 3)) if self.config.output == "mean" else x.flatten(1)  # [B, feature_dim]
            else:
                x = self.get_submodule(name)(x)
            outputs[name] = x
        return {name: outputs[name] for name in names}

    def _first_input(self, images: Tensor) -> Tensor:
        """Return the input of the first convolution: the images, their edges, or their first channel."""
        x: Tensor = self.filter(images)
        return x[:, : self.first_channels]


class Sobel(nn.Module):
    """Horizontal and vertical edges of the mean channel, [B, C, H, W] to [B, 2, H, W], without trainable weights."""

    kernels: Tensor

    def __init__(self) -> None:
        super().__init__()
        across = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]], device="cpu")
        self.register_buffer("kernels", torch.stack([across, across.T])[:, None], persistent=False)  # [2, 1, 3, 3]

    def forward(self, images: Tensor) -> Tensor:
        """Return the edges; pixels outside the image count as 0."""
        return nn.functional.conv2d(images.mean(dim=1, keepdim=True), self.kernels.to(images), padding=1)


def _convolution(variant: _Variant, number: int, channels: int, width: int) -> nn.Sequential:
    kernel, stride, padding = {1: (11, variant.stride, variant.padding), 2: (5, 1, 2)}.get(number, (3, 1, 1))
    groups = variant.groups if number in (2, 4, 5) else 1
    layers: list[nn.Module] = [nn.Conv2d(channels, width, kernel, stride, padding, groups=groups)]
    if number in variant.normed:
        layers.append(nn.BatchNorm2d(width))
    return nn.Sequential(*layers, nn.ReLU())


def _pool(variant: _Variant, number: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.MaxPool2d(3, stride=2)]
    if variant.response_norm != "none" and number != 5:
        norm = nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75)
        layers = [norm, *layers] if variant.response_norm == "before pool" else [*layers, norm]
    return nn.Sequential(*layers)


def _side(variant: _Variant, size: int) -> int:
    """Return the side of the last map for images of this side in pixels; 0 or less if it is empty."""
    side = (size + 2 * variant.padding - 11) // variant.stride + 1
    for _ in _POOLED:
        side = (side - 3) // 2 + 1
    return side


def _smallest_side(variant: _Variant) -> int:
    return next(size for size in range(11, 224) if _side(variant, size) >= 1)


def _size_problem(config: AlexNet.Config, height: int, width: int) -> str:
    """Return the problem with images of this size; empty if they fit."""
    variant = VARIANTS[config.variant]
    if min(_side(variant, height), _side(variant, width)) < 1:
        return (
            f"images of {height}x{width} pixels leave an empty last map of the {config.variant} AlexNet; "
            f"give images of at least {_smallest_side(variant)}x{_smallest_side(variant)}"
        )
    if config.output == "flatten" and not _side(variant, height) == _side(variant, width) == _side(
        variant, config.image_size
    ):
        return (
            f"images of {height}x{width} pixels have another number of features than those of backbone.image_size="
            f"{config.image_size}; set backbone.image_size to their side, or backbone.output=mean"
        )
    return ""
