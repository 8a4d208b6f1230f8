"""Residual networks (He et al. 2015, arXiv 1512.03385) with torchvision's parameter names, so that its weights load."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from torch import Tensor, nn

from raysl.config.ranges import Within
from raysl.config.schema import BackboneConfig
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.blocks import (
    BasicBlock,
    Bottleneck,
    Norm,
    SelectiveKernels,
    mean_shortcut,
    mixing_width,
    three_convolutions,
)

LAYERS: dict[int, tuple[type[BasicBlock | Bottleneck], tuple[int, int, int, int]]] = {
    10: (BasicBlock, (1, 1, 1, 1)),
    14: (Bottleneck, (1, 1, 1, 1)),
    18: (BasicBlock, (2, 2, 2, 2)),
    26: (Bottleneck, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
    152: (Bottleneck, (3, 8, 36, 3)),
    200: (Bottleneck, (3, 24, 36, 3)),
}
SMALL_SIDE = 64
"""Largest side in pixels of images for which the small stem is advised."""


class ResNet(Backbone):
    """A ResNet, optionally wide or with groups (ResNeXt); features are the global average pool of the last stage.

    The state dict is torchvision's without `fc.*`, for any `norm`, except with selective kernels.

    >>> ResNet.info(ResNet.Config(depth=50)).stages
    {'conv1': 64, 'stem': 64, 'res2': 256, 'res3': 512, 'res4': 1024, 'res5': 2048, 'avgpool': 2048}
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(BackboneConfig):
        """Settings of a ResNet."""

        name: str = "resnet"
        depth: Literal[10, 14, 18, 26, 34, 50, 101, 152, 200] = 50
        """Layers: 18 to 152 as in table 1 of the paper, 200 as in arXiv 1603.05027 with blocks of the first paper; 10
        has one basic block a stage, for small images, 14 and 26 one and two bottlenecks, as in timm."""
        num_stages: Literal[1, 2, 3, 4] = 4
        """Stages res2, res3, ... to build; each halves the side and doubles the channels of the one before."""
        width: Annotated[int, Within(1, 4096)] = 64
        """Channels of the stem and the first stage; 128 is the "2x" network of the SimCLR paper."""
        groups: Annotated[int, Within(1, 4096)] = 1
        """Groups of the 3x3 convolutions of bottlenecks (ResNeXt, arXiv 1611.05431): 32, with width_per_group=4."""
        width_per_group: Annotated[int, Within(1, 4096)] = 64
        """Channels per group of those convolutions in the first stage at width 64; the output width of blocks does not
        change. 128 with one group is Wide ResNet-50-2 (arXiv 1605.07146), where `width` widens all layers."""
        stem: Literal["imagenet", "cifar"] = "imagenet"
        """7x7 convolution of stride 2 and a max-pool, or for images below about 64 px a 3x3 convolution of stride 1."""
        sk_ratio: Annotated[float, Within(0, 1, above=True)] | None = None
        """Selective kernels in the bottlenecks (arXiv 1903.06586), with the stem and the shortcuts of SimCLRv2: width
        of the layer before their mixing weights, as a share of the channels; SimCLRv2 has 0.0625. Default: none."""
        last_stride: Literal[1, 2] = 2
        """Stride of the last stage, unless it is the first; with 1 its maps are as large as the stage before's."""
        norm: Literal["batch", "group", "layer"] = "batch"
        """Normalisation: over the batch, over groups of channels of each image (arXiv 1803.08494), or over all its
        channels and pixels; the last two use no other images and no running statistics."""
        norm_groups: Annotated[int, Within(1, 4096)] = 32
        """Groups of norm=group; a divisor of the channels of every layer."""
        zero_init_residual: bool = False
        """Start the last normalisation of every block at 0, so that blocks start as the identity (arXiv 1706.02677,
        5.1)."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        block, _ = LAYERS[config.depth]
        norm = _norm(config)
        is_imagenet = config.stem == "imagenet"
        kernel, stride, padding = (7, 2, 3) if is_imagenet else (3, 1, 1)
        if is_imagenet and config.sk_ratio is not None:
            self.conv1: nn.Module = three_convolutions(config.in_channels, config.width, norm)
        else:
            self.conv1 = nn.Conv2d(config.in_channels, config.width, kernel, stride, padding, bias=False)
        self.bn1 = norm(config.width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if is_imagenet else nn.Identity()
        channels = config.width
        for stage in range(config.num_stages):
            self.add_module(f"layer{stage + 1}", _stage(config, stage, channels, norm))
            channels = config.width * 2**stage * block.expansion
        self.feature_dim = channels
        self._init_weights(config.zero_init_residual)

    @classmethod
    def advice(cls, config: Any, side: int) -> str | None:
        """Advise the small stem for small images, since ImageNet's stem shrinks their side to a quarter."""
        if config.stem != "imagenet" or side > SMALL_SIDE:
            return None
        return (
            f"images of {side} pixels leave maps of {max(side // 4, 1)} behind backbone.stem=imagenet; "
            "set backbone.stem=cifar, which is made for small images"
        )

    @property
    def stage_widths(self) -> dict[str, int]:
        """Channels of `conv1`, of `stem`, of the built stages from `res2` to `res5`, and of `avgpool`."""
        first = self.config.width * LAYERS[self.config.depth][0].expansion
        widths = {f"res{stage + 2}": first * 2**stage for stage in range(self.config.num_stages)}
        return {"conv1": self.config.width, "stem": self.config.width, **widths, "avgpool": self.feature_dim}

    @property
    def feature_stages(self) -> tuple[str, ...]:
        """Names of the stages that `forward` returns."""
        return ("avgpool",)

    @property
    def num_layers(self) -> int:
        """Number of built stages; the stem is layer 0."""
        return int(self.config.num_stages)

    def layer_of(self, name: str) -> int:
        """Return 0 for `conv1` and `bn1`, and n for `layer`n."""
        stage = name.partition(".")[0]
        return int(stage.removeprefix("layer")) if stage.startswith("layer") else 0

    def units(self) -> dict[str, list[nn.Module]]:
        """Return the residual blocks of the built stages from `res2` to `res5`."""
        layers = [self.get_submodule(f"layer{stage + 1}") for stage in range(self.config.num_stages)]
        return {f"res{stage + 2}": list(layer.children()) for stage, layer in enumerate(layers)}

    def forward(self, images: Tensor) -> Tensor:
        """Return features [B, feature_dim] of normalised images [B, 3, H, W]."""
        return self.stages(images, ["avgpool"])["avgpool"]

    def stages(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Return some of `conv1`, `stem` (`conv1` behind the max-pool), `res2` to `res5` [B, C, H', W'], and `avgpool`
        [B, feature_dim]."""
        outputs: dict[str, Tensor] = {}
        x = images
        for name in self.stages_up_to(names):
            x = self._run(name, x)
            outputs[name] = x
        return {name: outputs[name] for name in names}

    def _run(self, name: str, x: Tensor) -> Tensor:
        if name == "conv1":
            out: Tensor = self.relu(self.bn1(self.conv1(x)))  # [B, width, H', W']
        elif name == "stem":
            out = self.maxpool(x)
        elif name == "avgpool":
            out = x.mean(dim=(2, 3))  # [B, D]
        else:
            out = self.get_submodule(f"layer{int(name.removeprefix('res')) - 1}")(x)
        return out

    def _init_weights(self, zero_init_residual: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            # a last scale of 0 lets each residual branch begin at 0
            if zero_init_residual and isinstance(module, BasicBlock):
                nn.init.zeros_(module.bn2.get_parameter("weight"))
            if zero_init_residual and isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.get_parameter("weight"))


def _stage(config: ResNet.Config, stage: int, channels: int, norm: Norm) -> nn.Sequential:
    """Build the blocks of a stage, counted from 0, for this number of input channels."""
    block, layers = LAYERS[config.depth]
    width = config.width * 2**stage
    out = width * block.expansion
    is_last = stage == config.num_stages - 1
    stride = 1 if stage == 0 else config.last_stride if is_last else 2
    shortcut = None
    if stride != 1 or channels != out:
        shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), norm(out))
        if config.sk_ratio is not None:
            shortcut = mean_shortcut(channels, out, stride, norm)
    make: Callable[..., nn.Module] = block
    if block is Bottleneck:
        middle = None if config.sk_ratio is None else partial(SelectiveKernels, ratio=config.sk_ratio, norm=norm)
        make = partial(Bottleneck, groups=config.groups, inner=_inner(config, stage), middle=middle)
    blocks = [make(channels, width, stride, shortcut, norm=norm)]
    return nn.Sequential(*blocks, *(make(out, width, norm=norm) for _ in range(layers[stage] - 1)))


def _inner(config: ResNet.Config, stage: int) -> int:
    """Return the channels of a bottleneck's 3x3 convolution, as torchvision counts them."""
    width: int = config.width * 2**stage
    return width * config.width_per_group // 64 * config.groups


def _check_selective(config: ResNet.Config) -> None:
    """Refuse selective kernels for blocks that have no room for them."""
    if config.sk_ratio is None:
        return
    if LAYERS[config.depth][0] is BasicBlock:
        raise ConfigError(
            f"backbone.sk_ratio={config.sk_ratio:g} needs bottlenecks; a ResNet-{config.depth} has none; set "
            "backbone.depth=50 or deeper, or 14 or 26"
        )
    if config.groups != 1 or config.width < 2:
        raise ConfigError(
            f"backbone.sk_ratio={config.sk_ratio:g} goes with backbone.groups=1 and backbone.width=2 or more, not with "
            f"{config.groups} and {config.width}"
        )


def _norm(config: ResNet.Config) -> Norm:
    """Return the constructor of a normalisation from its channels; raise ConfigError if groups do not fit."""
    block, _ = LAYERS[config.depth]
    if block is BasicBlock and (config.groups, config.width_per_group) != (1, 64):
        raise ConfigError(
            f"backbone.groups={config.groups} and backbone.width_per_group={config.width_per_group} need bottlenecks; "
            f"a ResNet-{config.depth} has none; set backbone.depth=50 or deeper, or 14 or 26"
        )
    _check_selective(config)
    inner = [_inner(config, stage) for stage in range(config.num_stages)] if block is Bottleneck else []
    if not all(inner):
        least = -(-64 // config.width)
        raise ConfigError(
            f"backbone.width_per_group {config.width_per_group} leaves no channel in a group at backbone.width "
            f"{config.width}; give at least {least}"
        )
    if config.norm == "batch":
        return nn.BatchNorm2d
    if config.norm == "layer":
        return partial(nn.GroupNorm, 1)
    if config.sk_ratio is not None:
        inner += [config.width // 2, *(mixing_width(channels, config.sk_ratio) for channels in inner)]
    common = math.gcd(config.width, *inner)
    if common % config.norm_groups:
        fit = max(number for number in range(1, min(common, config.norm_groups) + 1) if common % number == 0)
        raise ConfigError(
            f"backbone.norm_groups {config.norm_groups} do not divide the channels of every layer; "
            f"try norm_groups={fit}, or norm=layer"
        )
    return partial(nn.GroupNorm, config.norm_groups)
