"""Residual networks (He et al. 2015, arXiv 1512.03385) with torchvision's parameter names, so that its weights load."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor, nn

from raysl.config.ranges import Within
from raysl.config.schema import BackboneConfig, ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.blocks import BasicBlock, Bottleneck

LAYERS: dict[int, tuple[type[BasicBlock | Bottleneck], tuple[int, int, int, int]]] = {
    10: (BasicBlock, (1, 1, 1, 1)),
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
    152: (Bottleneck, (3, 8, 36, 3)),
}


class ResNet(Backbone):
    """A ResNet without its classifier; features are the global average pool of the last stage.

    The state dict is torchvision's less `fc.*`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(BackboneConfig):
        """Settings of a ResNet."""

        name: str = "resnet"
        depth: Literal[10, 18, 34, 50, 101, 152] = 50
        """Layers: 18 to 152 as in table 1 of the paper; 10 has one basic block a stage, for small images."""
        num_stages: Literal[1, 2, 3, 4] = 4
        """Stages res2, res3, ... to build; each halves the side and doubles the channels of the one before."""
        width: Annotated[int, Within(1, 4096)] = 64
        """Channels of the stem and the first stage; 128 is the "2x" network of the SimCLR paper."""
        stem: Literal["imagenet", "cifar"] = "imagenet"
        """7x7 convolution of stride 2 and a max-pool, or for images below about 64 px a 3x3 convolution of stride 1."""
        zero_init_residual: bool = False
        """Start the last batch norm of every block at 0, so that it begins as the identity (arXiv 1706.02677, 5.1)."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.depth not in LAYERS:
            raise ConfigError(f"backbone.depth {config.depth} is no ResNet; choose from {', '.join(map(str, LAYERS))}")
        if config.width < 1 or not 1 <= config.num_stages <= 4:
            raise ConfigError(
                f"backbone.width {config.width} must be at least 1, backbone.num_stages {config.num_stages} in 1 to 4"
            )
        block, layers = LAYERS[config.depth]
        is_imagenet = config.stem == "imagenet"
        kernel, stride, padding = (7, 2, 3) if is_imagenet else (3, 1, 1)
        self.conv1 = nn.Conv2d(3, config.width, kernel, stride, padding, bias=False)
        self.bn1 = nn.BatchNorm2d(config.width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if is_imagenet else nn.Identity()
        channels = config.width
        for stage in range(config.num_stages):
            width = config.width * 2**stage
            self.add_module(f"layer{stage + 1}", _stage(block, channels, width, layers[stage], 1 if stage == 0 else 2))
            channels = width * block.expansion
        self.feature_dim = channels
        self._init_weights(config.zero_init_residual)

    @property
    def stage_widths(self) -> dict[str, int]:
        """Channels of `stem`, `res2` to `res5` as far as they are built, and `avgpool`."""
        first = self.config.width * LAYERS[self.config.depth][0].expansion
        widths = {f"res{stage + 2}": first * 2**stage for stage in range(self.config.num_stages)}
        return {"stem": self.config.width, **widths, "avgpool": self.feature_dim}

    def forward(self, images: Tensor) -> Tensor:
        """Features [B, feature_dim] of normalised images [B, 3, H, W]."""
        return self.stages(images, ["avgpool"])["avgpool"]

    def stages(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Inner features by name, in the order asked for; nothing is computed beyond the deepest one.

        Args:
            images: normalised images [B, 3, H, W].
            names: of `stem` (after its pool), `res2` to `res5` [B, C, H', W'], and `avgpool` [B, feature_dim].

        Raises:
            ValueError: if a name is no stage of this network; the message lists those that are.
        """
        known = list(self.stage_widths)
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"no stage {unknown[0]!r} in this ResNet; its stages: {', '.join(known)}")
        found: dict[str, Tensor] = {}
        x = images
        for name in known[: max((known.index(name) for name in names), default=-1) + 1]:
            x = self._run(name, x)
            found[name] = x
        return {name: found[name] for name in names}

    def _run(self, name: str, x: Tensor) -> Tensor:
        if name == "stem":
            out: Tensor = self.maxpool(self.relu(self.bn1(self.conv1(x))))  # [B, width, H', W']
        elif name == "avgpool":
            out = x.mean(dim=(2, 3))  # [B, D]
        else:
            out = self.get_submodule(f"layer{int(name.removeprefix('res')) - 1}")(x)
        return out

    def _init_weights(self, zero_init_residual: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if zero_init_residual and isinstance(module, BasicBlock):
                nn.init.zeros_(module.bn2.weight)
            if zero_init_residual and isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.weight)


def _stage(
    block: type[BasicBlock | Bottleneck], channels: int, width: int, num_blocks: int, stride: int
) -> nn.Sequential:
    out = width * block.expansion
    shortcut = None
    if stride != 1 or channels != out:
        shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
    return nn.Sequential(block(channels, width, stride, shortcut), *(block(out, width) for _ in range(num_blocks - 1)))
