"""Blocks of residual networks (He et al. 2015, arXiv 1512.03385, figure 5), with torchvision's parameter names.

Importing torchvision for them would cost a process nearly two seconds, since it loads torch's compiler.

Selective kernels (Li et al. 2019, arXiv 1903.06586) are those of SimCLRv2 (Chen et al. 2020, arXiv 2006.10029): two 3x3
convolutions side by side, mixed channel by channel with weights computed from the whole image. The first paper gives
one of them a wider kernel; SimCLRv2 makes both alike, and takes stem and shortcuts from ResNet-D (He et al. 2018, arXiv
1812.01187, section 4.1).
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Norm = Callable[[int], nn.Module]
MIN_MIXING_WIDTH = 32
"""Smallest width of the layer before the mixing weights."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: [B, channels, H, W] to [B, width, H/stride, W/stride].

    >>> BasicBlock(channels=64, width=64)(torch.zeros(1, 64, 8, 8)).shape
    torch.Size([1, 64, 8, 8])

    Args:
        channels: input channels.
        width: output channels.
        stride: step of the first convolution.
        shortcut: maps the input to the output's shape; None if they are equal.
        norm: makes a normalisation from a number of channels.
    """

    expansion: ClassVar[int] = 1

    def __init__(
        self,
        channels: int,
        width: int,
        stride: int = 1,
        shortcut: nn.Module | None = None,
        norm: Norm = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = norm(width)
        self.downsample = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut: [B, channels, H, W] to [B, 4 width, H/stride, W/stride].

    The 3x3 convolution has the stride ("ResNet v1.5"); in the paper it is in the first one.

    Args:
        channels: input channels.
        width: a quarter of the output channels.
        stride: step of the 3x3 convolution.
        shortcut: maps the input to the output's shape; None if they are equal.
        norm: makes a normalisation from a number of channels.
        groups: number of groups into which the 3x3 convolution splits its channels.
        inner: channels of the 3x3 convolution, a multiple of `groups`. Default: `width`.
        middle: replaces the 3x3 convolution and its normalisation: makes a module from (channels, stride). Default: no
            replacement.
    """

    expansion: ClassVar[int] = 4

    def __init__(
        self,
        channels: int,
        width: int,
        stride: int = 1,
        shortcut: nn.Module | None = None,
        norm: Norm = nn.BatchNorm2d,
        groups: int = 1,
        inner: int | None = None,
        middle: Callable[[int, int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        inner = inner or width
        self.conv1 = nn.Conv2d(channels, inner, 1, bias=False)
        self.bn1 = norm(inner)
        if middle is None:
            self.conv2: nn.Module = nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False)
            self.bn2: nn.Module = norm(inner)
        else:
            self.conv2, self.bn2 = middle(inner, stride), nn.Identity()
        self.conv3 = nn.Conv2d(inner, width * self.expansion, 1, bias=False)
        self.bn3 = norm(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        return self.relu(out)  # type: ignore[no-any-return]


class SelectiveKernels(nn.Module):
    """Two convolutions with their normalisation and ReLU, mixed: [B, channels, H, W] to [B, channels, H/s, W/s].

    Args:
        stride: s, of both convolutions.
        ratio: width of the layer before the mixing weights, as a share of the channels, see `mixing_width`.
        norm: makes a normalisation from a number of channels.
    """

    def __init__(self, channels: int, stride: int, ratio: float, norm: Norm) -> None:
        super().__init__()
        middle = mixing_width(channels, ratio)
        self.conv = nn.Conv2d(channels, 2 * channels, 3, stride, 1, bias=False)
        self.bn = norm(2 * channels)
        self.mix1 = nn.Conv2d(channels, middle, 1, bias=False)
        self.mix_bn = norm(middle)
        self.mix2 = nn.Conv2d(middle, 2 * channels, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixture, which is not negative."""
        streams = self.relu(self.bn(self.conv(x))).unflatten(1, (2, -1))  # [B, 2, C, H', W']
        whole = streams.sum(dim=1).mean(dim=(2, 3), keepdim=True)  # [B, C, 1, 1]
        weights = self.mix2(self.relu(self.mix_bn(self.mix1(whole)))).unflatten(1, (2, -1))  # [B, 2, C, 1, 1]
        mixed: Tensor = (streams * torch.softmax(weights, dim=1)).sum(dim=1)
        return mixed


class MeanOfFour(nn.Module):
    """Means of 2x2 pixels, each with its lower and right neighbours: [B, C, H, W] to [B, C, H/s, W/s], rounded up.

    At the lower and right edges the means are over the existing neighbours.
    """

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Return the means."""
        if self.stride == 1:
            return F.avg_pool2d(x, 2, 1, padding=1, count_include_pad=False)[:, :, 1:, 1:]
        return F.avg_pool2d(x, 2, self.stride, ceil_mode=True)


def mixing_width(channels: int, ratio: float) -> int:
    """Return the width of the layer before the mixing weights."""
    return max(int(channels * ratio), MIN_MIXING_WIDTH)


def mean_shortcut(channels: int, width: int, stride: int, norm: Norm) -> nn.Sequential:
    """Return the shortcut of ResNet-D, which averages the pixels that a stride would skip."""
    return nn.Sequential(MeanOfFour(stride), nn.Conv2d(channels, width, 1, bias=False), norm(width))


def three_convolutions(in_channels: int, width: int, norm: Norm) -> nn.Sequential:
    """Return the stem of ResNet-D that replaces a 7x7 convolution: [B, C, H, W] to [B, width, H/2, W/2]."""
    narrow = width // 2
    return nn.Sequential(
        nn.Conv2d(in_channels, narrow, 3, 2, 1, bias=False),
        norm(narrow),
        nn.ReLU(inplace=True),
        nn.Conv2d(narrow, narrow, 3, 1, 1, bias=False),
        norm(narrow),
        nn.ReLU(inplace=True),
        nn.Conv2d(narrow, width, 3, 1, 1, bias=False),
    )
