"""The two blocks of residual networks (He et al. 2015, arXiv 1512.03385, figure 5), with torchvision's parameter names.

Importing torchvision for them costs a process nearly two seconds: it loads torch's compiler.
"""

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

Norm = Callable[[int], nn.Module]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: [B, channels, H, W] to [B, width, H/stride, W/stride].

    Args:
        channels: that come in.
        width: channels that go out.
        stride: of the first convolution.
        shortcut: makes the input fit the output; None where it does.
        norm: makes the normalisation of so many channels.
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
        """The output of the block."""
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut: [B, channels, H, W] to [B, 4 width, H/stride, W/stride].

    The stride is that of the 3x3 convolution ("ResNet v1.5"), where the paper has it in the first one.

    Args:
        channels: that come in.
        width: a quarter of the channels that go out.
        stride: of the 3x3 convolution.
        shortcut: makes the input fit the output; None where it does.
        norm: makes the normalisation of so many channels.
        groups: of the 3x3 convolution, into which it splits its channels.
        inner: channels of the 3x3 convolution, a multiple of `groups`. Default: `width`.
        middle: stands in for the 3x3 convolution and its normalisation, makes a module of (channels, stride). Default:
            none does.
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
        """The output of the block."""
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        return self.relu(out)  # type: ignore[no-any-return]
