"""Selective kernels (Li et al. 2019, arXiv 1903.06586), as SimCLRv2 has them (Chen et al. 2020, arXiv 2006.10029).

Two 3x3 convolutions side by side, mixed channel by channel by weights that the image as a whole decides on. Where the
first paper gives one of them a wider kernel, SimCLRv2 makes both alike, and takes stem and shortcuts from ResNet-D (He
et al. 2018, arXiv 1812.01187, section 4.1).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.nn.backbones.blocks import Norm

LEAST_MIDDLE = 32
"""Channels of the narrow layer of the mixing weights, at least."""


class SelectiveKernels(nn.Module):
    """Two convolutions with their normalisation and ReLU, mixed: [B, channels, H, W] to [B, channels, H/s, W/s].

    Args:
        channels: that come in and go out.
        stride: s, of both convolutions.
        ratio: width of the narrow layer of the mixing weights, as a share of the channels; see `middle_of`.
        norm: makes the normalisation of so many channels.
    """

    def __init__(self, channels: int, stride: int, ratio: float, norm: Norm) -> None:
        super().__init__()
        middle = middle_of(channels, ratio)
        self.conv = nn.Conv2d(channels, 2 * channels, 3, stride, 1, bias=False)
        self.bn = norm(2 * channels)
        self.mix1 = nn.Conv2d(channels, middle, 1, bias=False)
        self.mix_bn = norm(middle)
        self.mix2 = nn.Conv2d(middle, 2 * channels, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """The mixture; nothing in it is below 0."""
        streams = self.relu(self.bn(self.conv(x))).unflatten(1, (2, -1))  # [B, 2, C, H', W']
        whole = streams.sum(dim=1).mean(dim=(2, 3), keepdim=True)  # [B, C, 1, 1]
        weights = self.mix2(self.relu(self.mix_bn(self.mix1(whole)))).unflatten(1, (2, -1))  # [B, 2, C, 1, 1]
        mixed: Tensor = (streams * torch.softmax(weights, dim=1)).sum(dim=1)
        return mixed


class MeanOfFour(nn.Module):
    """Means of 2x2 places, each with those below and to the right of it: [B, C, H, W] to [B, C, H/s, W/s], rounded up.

    At the lower and right edges they are means of what there is.
    """

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """The means."""
        if self.stride == 1:
            return F.avg_pool2d(x, 2, 1, padding=1, count_include_pad=False)[:, :, 1:, 1:]
        return F.avg_pool2d(x, 2, self.stride, ceil_mode=True)


def middle_of(channels: int, ratio: float) -> int:
    """Width of the narrow layer of the mixing weights."""
    return max(int(channels * ratio), LEAST_MIDDLE)


def mean_shortcut(channels: int, width: int, stride: int, norm: Norm) -> nn.Sequential:
    """The shortcut of ResNet-D: what a stride would skip is averaged first."""
    return nn.Sequential(MeanOfFour(stride), nn.Conv2d(channels, width, 1, bias=False), norm(width))


def three_convolutions(width: int, norm: Norm) -> nn.Sequential:
    """The stem of ResNet-D in place of a 7x7 convolution: [B, 3, H, W] to [B, width, H/2, W/2], not normalised yet."""
    narrow = width // 2
    return nn.Sequential(
        nn.Conv2d(3, narrow, 3, 2, 1, bias=False),
        norm(narrow),
        nn.ReLU(inplace=True),
        nn.Conv2d(narrow, narrow, 3, 1, 1, bias=False),
        norm(narrow),
        nn.ReLU(inplace=True),
        nn.Conv2d(narrow, width, 3, 1, 1, bias=False),
    )
