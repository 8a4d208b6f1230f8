"""AlexNet (Krizhevsky, Sutskever and Hinton 2012), as the papers of the first pretext tasks changed it.

What each has is what VISSL collected of their code: Caffe's reference network (BVLC), Zhang et al. 2016 (colorization,
arXiv 1603.08511), Noroozi and Favaro 2016 (jigsaw, arXiv 1603.09246), Caron et al. 2018 (DeepCluster, arXiv 1807.05520)
and Gidaris et al. 2018 (RotNet, arXiv 1803.07728). torchvision's `alexnet` is another one, of 2014.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from raysl.config.ranges import Side
from raysl.config.schema import BackboneConfig
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone


@dataclass(frozen=True)
class _Variant:
    """What sets one AlexNet apart: channels in and out, stride and padding of the first convolution, and the rest."""

    widths: tuple[int, int, int, int, int]
    channels: int = 3
    stride: int = 4
    padding: int = 0
    groups: int = 1
    normed: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Convolutions that batch normalisation follows."""
    response_norm: Literal["none", "before pool", "after pool"] = "none"


_WIDTHS = (96, 256, 384, 384, 256)
VARIANTS = {
    "bvlc": _Variant(_WIDTHS, groups=2, normed=(), response_norm="before pool"),
    "colorization": _Variant(_WIDTHS, channels=1, groups=2),
    "deepcluster": _Variant(_WIDTHS, channels=2, padding=2),
    "jigsaw": _Variant(_WIDTHS, stride=2, groups=2, normed=(3, 4, 5), response_norm="after pool"),
    "rotnet": _Variant((64, 192, 384, 256, 256), padding=2),
}
"""By `backbone.variant`."""
_POOLED = (1, 2, 5)


class AlexNet(Backbone):
    """The five convolutions of an AlexNet; features are all places of its last map, or their mean.

    Stages are `conv1` (with its normalisation and ReLU), `pool1`, `conv2`, `pool2`, `conv3`, `conv4`, `conv5`, `pool5`
    and `features`. Weights start as torch's convolutions do.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(BackboneConfig):
        """Settings of an AlexNet."""

        name: str = "alexnet"
        variant: Literal["bvlc", "colorization", "deepcluster", "jigsaw", "rotnet"] = "rotnet"
        """Whose: bvlc (two groups, local response normalisation, no batch normalisation), colorization (sees the first
        channel alone: give it data.channels=lab_l or gray), deepcluster (sees the edges that a Sobel filter finds),
        jigsaw (stride 2, for tiles), rotnet."""
        image_size: Side = 224
        """Side of the images in pixels, which sets how wide output=flatten is."""
        output: Literal["flatten", "mean"] = "flatten"
        """Features: all places of the last map, as in the papers, of images of one size; or the mean over them."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.native_size = config.image_size
        own = VARIANTS[config.variant]
        self.filter = Sobel() if config.variant == "deepcluster" else nn.Identity()
        channels = own.channels
        for number, width in enumerate(own.widths, 1):
            self.add_module(f"conv{number}", _convolution(own, number, channels, width))
            if number in _POOLED:
                self.add_module(f"pool{number}", _pool(own, number))
            channels = width
        self.side = _side(own, config.image_size)
        if self.side < 1:
            raise ConfigError(
                f"backbone.image_size {config.image_size} leaves nothing of the last map of the {config.variant} "
                f"AlexNet; give at least {_least(own)}"
            )
        self.feature_dim = channels if config.output == "mean" else channels * self.side**2

    @classmethod
    def check_side(cls, config: Any, side: int) -> None:
        """Refuse images of another size than `image_size`, or, for output=mean, ones that are too small.

        Raises:
            ConfigError: with a size that fits.
        """
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
        """What `forward` gives."""
        return ("features",)

    def forward(self, images: Tensor) -> Tensor:
        """Features [B, feature_dim] of normalised images [B, 3, H, W].

        Raises:
            ValueError: if images of this size do not fit.
        """
        return self.stages(images, ["features"])["features"]

    def stages(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Inner features by name, in the order asked for; nothing is computed beyond the deepest one.

        Args:
            images: normalised images [B, 3, H, W].
            names: of `stage_widths`: maps [B, C, H', W'], and `features` [B, feature_dim].

        Raises:
            ValueError: if a name is no stage of this network, or the images do not fit.
        """
        known = list(self.stage_widths)
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"no stage {unknown[0]!r} in this AlexNet; its stages: {', '.join(known)}")
        if "features" in names and (problem := _size_problem(self.config, *images.shape[-2:])):
            raise ValueError(problem)
        found: dict[str, Tensor] = {}
        x = self._entered(images)
        for name in known[: max((known.index(name) for name in names), default=-1) + 1]:
            if name == "features":
                x = x.mean(dim=(2, 3)) if self.config.output == "mean" else x.flatten(1)  # [B, feature_dim]
            else:
                x = self.get_submodule(name)(x)
            found[name] = x
        return {name: found[name] for name in names}

    def _entered(self, images: Tensor) -> Tensor:
        """What the first convolution gets: the images, their edges, or their first channel."""
        x: Tensor = self.filter(images)
        return x[:, : VARIANTS[self.config.variant].channels]


class Sobel(nn.Module):
    """Edges of the mean of the channels, along and across: [B, 3, H, W] to [B, 2, H, W]; nothing in it trains."""

    kernels: Tensor

    def __init__(self) -> None:
        super().__init__()
        across = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]], device="cpu")
        self.register_buffer("kernels", torch.stack([across, across.T])[:, None], persistent=False)  # [2, 1, 3, 3]

    def forward(self, images: Tensor) -> Tensor:
        """The edges; beyond the image all is 0."""
        return nn.functional.conv2d(images.mean(dim=1, keepdim=True), self.kernels.to(images), padding=1)


def _convolution(own: _Variant, number: int, channels: int, width: int) -> nn.Sequential:
    kernel, stride, padding = {1: (11, own.stride, own.padding), 2: (5, 1, 2)}.get(number, (3, 1, 1))
    groups = own.groups if number in (2, 4, 5) else 1
    layers: list[nn.Module] = [nn.Conv2d(channels, width, kernel, stride, padding, groups=groups)]
    if number in own.normed:
        layers.append(nn.BatchNorm2d(width))
    return nn.Sequential(*layers, nn.ReLU())


def _pool(own: _Variant, number: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.MaxPool2d(3, stride=2)]
    if own.response_norm != "none" and number != 5:
        norm = nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75)
        layers = [norm, *layers] if own.response_norm == "before pool" else [*layers, norm]
    return nn.Sequential(*layers)


def _side(own: _Variant, size: int) -> int:
    """Side of the last map of images of so many pixels; 0 or less where there is none."""
    side = (size + 2 * own.padding - 11) // own.stride + 1
    for _ in _POOLED:
        side = (side - 3) // 2 + 1
    return side


def _least(own: _Variant) -> int:
    return next(size for size in range(11, 224) if _side(own, size) >= 1)


def _size_problem(config: AlexNet.Config, height: int, width: int) -> str:
    """What to say of images that do not fit; empty of others."""
    own = VARIANTS[config.variant]
    if min(_side(own, height), _side(own, width)) < 1:
        return (
            f"images of {height}x{width} pixels leave nothing of the last map of the {config.variant} AlexNet; "
            f"{_least(own)}x{_least(own)} and larger ones do"
        )
    if config.output == "flatten" and not _side(own, height) == _side(own, width) == _side(own, config.image_size):
        return (
            f"images of {height}x{width} pixels have not as many features as those of backbone.image_size="
            f"{config.image_size}; set backbone.image_size to their side, or backbone.output=mean"
        )
    return ""
