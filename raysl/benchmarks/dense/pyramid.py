"""Maps of several scales for a detector.

Feature pyramids (Lin et al. 2016, arXiv 1612.03144) over the stages of a convolutional network, and the simple one of
ViTDet (Li et al. 2022, arXiv 2203.16527, section 3) from the last map of a plain ViT.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.convnext import LayerNorm2d
from torchvision.ops import FeaturePyramidNetwork

from raysl.benchmarks.dense.maps import MapStage, map_stages, maps_of
from raysl.nn.backbones.backbone import Backbone, TokenBackbone

WIDTH = 256
MOST_LEVELS = 4


class Pyramid(nn.Module):
    """Maps of `WIDTH` channels from images, the finest first, and one with twice the last one's stride.

    Args:
        backbone: network whose stages they are made of; not a submodule.
        norm: makes the normalisation of a number of channels behind the convolutions of a convolutional network, or
            None.
    """

    def __init__(self, backbone: Backbone, norm: Callable[[int], nn.Module] | None) -> None:
        super().__init__()
        stages = map_stages(backbone)
        if isinstance(backbone, TokenBackbone):
            self.stages = stages[-1:]
            patch = self.stages[0].stride
            self.neck: nn.Module = SimplePyramid(self.stages[0].width)
            strides = [max(1, patch // 4), max(1, patch // 2), patch, 2 * patch]
        else:
            self.stages = levels_of(stages)
            self.neck = FeaturePyramidNetwork([stage.width for stage in self.stages], WIDTH, norm_layer=norm)
            strides = [stage.stride for stage in self.stages]
        self.strides = [*strides, 2 * strides[-1]]

    @property
    def names(self) -> list[str]:
        """Names of the maps, the finest first; the last one is for proposals only."""
        return [str(level) for level in range(len(self.strides))]

    def forward(self, backbone: Backbone, images: Tensor) -> "OrderedDict[str, Tensor]":
        """Compute maps [B, WIDTH, h, w] of images [B, 3, H, W], by `names`."""
        maps = maps_of(backbone, images, self.stages)
        inputs = OrderedDict(zip(self.names, maps, strict=False))
        levels = list(self.neck(inputs).values())
        levels.append(F.max_pool2d(levels[-1], 1, 2))  # as torchvision's LastLevelMaxPool
        return OrderedDict(zip(self.names, levels, strict=True))


class SimplePyramid(nn.Module):
    """Maps of 4, 2, 1 and 1/2 times the resolution of one map, each through a 1x1 and a 3x3 convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half, quarter = max(1, width // 2), max(1, width // 4)
        up = nn.Sequential(
            nn.ConvTranspose2d(width, half, 2, 2),
            LayerNorm2d(half, eps=1e-6),
            nn.GELU(),
            nn.ConvTranspose2d(half, quarter, 2, 2),
        )
        scales = [(up, quarter), (nn.ConvTranspose2d(width, half, 2, 2), half), (nn.Identity(), width)]
        scales.append((nn.MaxPool2d(2, ceil_mode=True), width))
        self.levels = nn.ModuleList(nn.Sequential(scale, *_out(channels)) for scale, channels in scales)

    def forward(self, maps: "OrderedDict[str, Tensor]") -> "OrderedDict[str, Tensor]":
        """Compute four maps of WIDTH channels from one [B, C, h, w], by their numbers."""
        (values,) = maps.values()
        return OrderedDict((str(number), level(values)) for number, level in enumerate(self.levels))


def _out(channels: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, WIDTH, 1, bias=False),
        LayerNorm2d(WIDTH, eps=1e-6),
        nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False),
        LayerNorm2d(WIDTH, eps=1e-6),
    ]


def levels_of(stages: Sequence[MapStage]) -> list[MapStage]:
    """Return the last stage of each stride, at most the four coarsest: res2 to res5 of a ResNet."""
    last = {stage.stride: stage for stage in stages}
    return [last[stride] for stride in sorted(last)][-MOST_LEVELS:]


def padded_sides(height: int, width: int, multiple: int) -> tuple[int, int]:
    """Round sides up to multiples of a number, so that maps of all strides fit.

    >>> padded_sides(33, 64, 32)
    (64, 64)
    """
    return -(-height // multiple) * multiple, -(-width // multiple) * multiple
