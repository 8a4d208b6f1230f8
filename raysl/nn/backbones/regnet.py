"""RegNets by their parameters (Radosavovic et al. 2020, arXiv 2003.13678), up to those of SEER (arXiv 2103.01988)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import nn

from raysl.config.ranges import Share, Within
from raysl.config.schema import BackboneConfig
from raysl.errors import ConfigError
from raysl.nn.backbones.torchvision_models import TorchvisionModel


class RegNet(TorchvisionModel):
    """A RegNet X, or with squeeze and excitation a RegNet Y, by the parameters of its design space.

    Widths of blocks are w_0 + w_a * block, rounded to powers of w_m times w_0 and to multiples of 8; blocks of one
    width form a stage (equations 2 to 4). It is torchvision's network, which has some of these by name
    (`backbone=torchvision backbone.model=regnet_y_16gf`). Its stages are `stage1` (the stem), `stage2`, ...,
    and `features`.

    >>> config = RegNet.Config(depth=13, w_0=24, w_a=36.44, w_m=2.49, group_width=8, se_ratio=0.0)
    >>> RegNet.info(config).stages  # the RegNetX-200MF
    {'stage1': 32, 'stage2': 24, 'stage3': 56, 'stage4': 152, 'stage5': 368, 'features': 368}
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(BackboneConfig):
        """Settings of a RegNet; the defaults are those of the RegNetY-16GF."""

        model: ClassVar[str] = "this RegNet"
        image_size: ClassVar[None] = None

        name: str = "regnet"
        depth: Annotated[int, Within(1, 200)] = 18
        """Number of blocks in all stages."""
        w_0: Annotated[int, Within(8, 65_536)] = 200
        """Width of the first block, a multiple of 8."""
        w_a: Annotated[float, Within(0, 65_536)] = 106.23
        """Slope of the widths."""
        w_m: Annotated[float, Within(1, 100, above=True)] = 2.48
        """Factor between the widths of stages."""
        group_width: Annotated[int, Within(1, 65_536)] = 112
        """Channels per group of the 3x3 convolutions; widths become multiples of it."""
        se_ratio: Share = 0.25
        """Hidden width of squeeze and excitation, as a share of a block's input; 0 for none (RegNet X)."""

    def _build_whole(self) -> tuple[nn.Module, int]:
        from torchvision.models.regnet import BlockParams
        from torchvision.models.regnet import RegNet as Network

        config = self.config
        if config.w_0 % 8:
            near = max(round(config.w_0 / 8), 1) * 8
            raise ConfigError(f"backbone.w_0 {config.w_0} is not a multiple of 8; try {near}")
        with torch.device("cpu"):  # it computes the widths with tensors
            params = BlockParams.from_init_params(
                depth=config.depth,
                w_0=config.w_0,
                w_a=config.w_a,
                w_m=config.w_m,
                group_width=config.group_width,
                se_ratio=config.se_ratio or None,
            )
        return Network(params), 224
