"""ResNets with selective kernels: as large as SimCLRv2's, and computed as its code does."""

from typing import Any

import pytest
import torch
from torch import nn

from raysl.errors import ConfigError
from raysl.nn.backbones.blocks import MeanOfFour, SelectiveKernels
from raysl.nn.backbones.resnet import ResNet

SIMCLR_V2 = {
    (50, 1, None): 24, (50, 1, 0.0625): 35, (50, 2, None): 94, (50, 2, 0.0625): 140, (101, 1, 0.0625): 65,
    (101, 2, 0.0625): 257, (152, 1, 0.0625): 89, (152, 3, 0.0625): 795,
}  # fmt: skip
"""Millions of parameters by depth, width and ratio, of table 1."""


def small(**fields: object) -> ResNet:
    torch.manual_seed(0)
    return ResNet(ResNet.Config(**({"depth": 14, "width": 8, "sk_ratio": 0.0625} | fields)))


@pytest.mark.thorough
@pytest.mark.parametrize("shape", SIMCLR_V2)
def test_networks_are_as_large_as_published(shape: tuple[int, int, float | None]) -> None:
    depth, times, ratio = shape
    network = ResNet.without_weights(ResNet.Config(depth=depth, width=64 * times, sk_ratio=ratio))
    assert round(sum(parameter.numel() for parameter in network.parameters()) / 1e6) == SIMCLR_V2[shape]


@pytest.mark.parametrize("stride", [1, 2])
def test_two_convolutions_are_mixed_by_the_mean_of_the_image(stride: int) -> None:
    torch.manual_seed(0)
    layer = SelectiveKernels(6, stride, 0.5, nn.BatchNorm2d).train()
    nn.init.normal_(layer.bn.weight)
    x = torch.randn(4, 6, 5, 5)
    expected = torch.zeros(4, 6, (5 + stride - 1) // stride, (5 + stride - 1) // stride)
    kernels = layer.conv.weight.chunk(2)
    scales, shifts = layer.bn.weight.chunk(2), layer.bn.bias.chunk(2)
    streams = []
    for kernel, scale, shift in zip(kernels, scales, shifts, strict=True):
        maps = nn.functional.conv2d(x, kernel, stride=stride, padding=1)
        maps = nn.functional.batch_norm(maps, None, None, scale, shift, training=True)
        streams.append(maps.clamp(min=0))
    means = (streams[0] + streams[1]).mean(dim=(2, 3))  # [4, 6]
    hidden = nn.functional.batch_norm(means @ layer.mix1.weight[:, :, 0, 0].T, None, None, training=True).clamp(min=0)
    scores = hidden @ layer.mix2.weight[:, :, 0, 0].T  # [4, 12]
    for image in range(4):
        for channel in range(6):
            first, second = scores[image, channel].exp(), scores[image, 6 + channel].exp()
            mixed = first * streams[0][image, channel] + second * streams[1][image, channel]
            expected[image, channel] = mixed / (first + second)
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)
    assert layer.mix1.out_channels == 32


@pytest.mark.parametrize(("stride", "side"), [(1, 4), (2, 4), (2, 5)])
def test_shortcuts_average_what_a_stride_would_skip(stride: int, side: int) -> None:
    x = torch.randn(2, 3, side, side)
    expected = torch.stack(
        [
            torch.stack([x[:, :, i : i + 2, j : j + 2].mean(dim=(2, 3)) for j in range(0, side, stride)], dim=-1)
            for i in range(0, side, stride)
        ],
        dim=-2,
    )
    torch.testing.assert_close(MeanOfFour(stride)(x), expected)


@pytest.mark.parametrize("fields", [{}, {"stem": "cifar"}, {"last_stride": 1}, {"norm": "group", "norm_groups": 4}])
def test_all_of_it_trains_and_stages_are_as_wide_as_said(fields: dict[str, Any]) -> None:
    network = small(**fields)
    names = list(network.stage_widths)
    found = network.stages(torch.randn(2, 3, 32, 32), names)
    assert {name: out.shape[1] for name, out in found.items()} == network.stage_widths
    found["avgpool"].square().sum().backward()
    assert [name for name, parameter in network.named_parameters() if parameter.grad is None] == []


def test_the_stem_has_three_convolutions_where_others_have_one() -> None:
    assert [tuple(layer.weight.shape) for layer in small().conv1 if isinstance(layer, nn.Conv2d)] == [
        (4, 3, 3, 3), (4, 4, 3, 3), (8, 4, 3, 3),
    ]  # fmt: skip
    assert small(stem="cifar").conv1.weight.shape == (8, 3, 3, 3)
    assert small().stages(torch.zeros(1, 3, 32, 32), ["stem"])["stem"].shape == (1, 8, 8, 8)


def test_zero_init_residual_starts_blocks_as_the_identity() -> None:
    assert all(module.bn3.weight.abs().max() == 0 for module in small(zero_init_residual=True).layer1)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"depth": 18}, "sk_ratio=0.0625 needs bottlenecks; a ResNet-18 has none; set backbone.depth=50"),
        ({"groups": 2}, "sk_ratio=0.0625 goes with backbone.groups=1 .* not with 2 and 8"),
        ({"norm": "group", "norm_groups": 8}, "norm_groups 8 .* try norm_groups=4"),
    ],
)
def test_what_has_no_place_for_them_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        small(**fields)
