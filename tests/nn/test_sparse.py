"""Layers that see the visible squares of images alone."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysl.nn.batch_norm import SyncBatchNorm, convert_sync_batch_norm
from raysl.nn.sparse import Sparse

MASK = torch.tensor([[[True, False], [False, True]], [[False, True], [True, False]]])
"""Hidden squares of two images of 2 x 2 squares, two of each."""
NUM_VISIBLE = 2


def maps(channels: int, side: int) -> Tensor:
    """Two random maps [2, C, side, side], with numbers in the hidden squares too."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, channels, side, side, dtype=torch.float64, generator=generator)


def seen(image: int, row: int, column: int, side: int) -> bool:
    cell = side // 2
    return not bool(MASK[image, row // cell, column // cell])


def places(side: int) -> list[tuple[int, int, int]]:
    """Image, row and column of all visible places."""
    every = [(image, row, column) for image in range(2) for row in range(side) for column in range(side)]
    return [place for place in every if seen(*place, side)]


def sparse_of(*layers: nn.Module) -> Sparse:
    sparse = Sparse(layers)
    sparse.show(MASK, NUM_VISIBLE)
    return sparse


@pytest.mark.parametrize(
    ("kernel", "stride", "groups", "bias"), [(3, 1, 1, False), (3, 2, 1, True), (1, 2, 1, False), (5, 1, 2, True)]
)
def test_a_convolution_is_a_sum_over_visible_places_at_visible_places(
    kernel: int, stride: int, groups: int, bias: bool
) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 4, kernel, stride, kernel // 2, groups=groups, bias=bias).double()
    sparse = sparse_of(layer)
    x = maps(2, 8)
    found = layer(sparse.hide(x))
    side, share = 8 // stride, 2 // groups
    expected = torch.zeros(2, 4, side, side, dtype=torch.float64)
    for image, row, column in places(side):
        for channel in range(4):
            total = layer.bias[channel] if layer.bias is not None else torch.zeros(())
            for i in range(kernel):
                for j in range(kernel):
                    y, z = row * stride + i - kernel // 2, column * stride + j - kernel // 2
                    if not (0 <= y < 8 and 0 <= z < 8 and seen(image, y, z, 8)):
                        continue
                    for k in range(share):
                        source = channel // (4 // groups) * share + k
                        total = total + layer.weight[channel, k, i, j] * x[image, source, y, z]
            expected[image, channel, row, column] = total
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_a_pool_takes_the_largest_value_of_each_window_at_visible_places() -> None:
    layer = nn.MaxPool2d(3, stride=2, padding=1)
    sparse = sparse_of(layer)
    x = sparse.hide(maps(2, 8).relu())
    found = layer(x)
    for image in range(2):
        for row in range(4):
            for column in range(4):
                window = x[image, :, max(0, 2 * row - 1) : 2 * row + 2, max(0, 2 * column - 1) : 2 * column + 2]
                expected = window.amax(dim=(1, 2)) if seen(image, row, column, 4) else torch.zeros(2)
                torch.testing.assert_close(found[image, :, row, column], expected, rtol=0, atol=0, check_dtype=False)


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, SyncBatchNorm])
def test_batch_normalisation_takes_the_statistics_of_visible_places_alone(kind: Any) -> None:
    layer = kind(3, momentum=0.25).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
        layer.bias.copy_(torch.tensor([-1.0, 0.0, 1.0]))
    sparse_of(layer)
    x = maps(3, 4)
    found = layer(x)
    values = torch.stack([x[image, :, row, column] for image, row, column in places(4)])  # [16, C]
    mean, var = values.mean(dim=0), values.var(dim=0, correction=0)
    for image in range(2):
        for row in range(4):
            for column in range(4):
                normal = (x[image, :, row, column] - mean) / (var + 1e-5).sqrt() * layer.weight + layer.bias
                expected = normal if seen(image, row, column, 4) else torch.zeros(3)
                torch.testing.assert_close(
                    found[image, :, row, column], expected, rtol=1e-9, atol=1e-12, check_dtype=False
                )
    torch.testing.assert_close(layer.running_mean, 0.25 * mean)
    torch.testing.assert_close(layer.running_var, 0.75 + 0.25 * values.var(dim=0))


def test_group_normalisation_takes_the_statistics_of_each_images_visible_places() -> None:
    layer = nn.GroupNorm(2, 4).double()
    sparse_of(layer)
    x = maps(4, 4)
    found = layer(x)
    for image in range(2):
        here = [(row, column) for number, row, column in places(4) if number == image]
        for group in (slice(0, 2), slice(2, 4)):
            values = torch.stack([x[image, group, row, column] for row, column in here])
            for row, column in here:
                normal = (x[image, group, row, column] - values.mean()) / (values.var(correction=0) + 1e-5).sqrt()
                torch.testing.assert_close(found[image, group, row, column], normal, rtol=1e-9, atol=1e-12)
    assert not found[:, :, :2, :2][0].any()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 2, 3, padding=1),
    ]
    return nn.Sequential(*layers, nn.BatchNorm2d(2)).double()


def test_nothing_of_hidden_squares_reaches_outputs_and_gradients() -> None:
    layers = network()
    sparse = sparse_of(layers)
    results = []
    for other in (0.0, 1e3):
        x = maps(1, 8)
        x = torch.where(sparse.spread(x), x, x + other).requires_grad_()
        layers.zero_grad()
        out = layers(sparse.hide(x))
        (out * maps(2, 4)).sum().backward()
        assert x.grad is not None
        assert not x.grad[~sparse.spread(x)].any()
        assert not out[~sparse.spread(out).expand_as(out)].any()
        results.append([out.detach(), *(p.grad.clone() for p in layers.parameters() if p.grad is not None)])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_without_hidden_squares_a_network_computes_and_is_stored_as_before() -> None:
    layers = network()
    plain = copy.deepcopy(layers)
    sparse = sparse_of(layers)
    sparse.show_all()
    x = maps(1, 8)
    assert torch.equal(layers(x), plain(x))
    assert list(layers.state_dict()) == list(plain.state_dict())
    nothing = torch.zeros(2, 2, 2, dtype=torch.bool)
    sparse.show(nothing, num_visible=4)
    torch.testing.assert_close(layers(x), plain(x), rtol=1e-12, atol=1e-12)


def test_a_copy_of_a_network_has_a_mask_of_its_own() -> None:
    layers = network()
    sparse = sparse_of(layers)
    sparse.show_all()
    pair = copy.deepcopy(nn.ModuleList([layers]))
    sparse.show(MASK, NUM_VISIBLE)
    x = maps(1, 8)
    assert pair[0](x)[0, :, :2, :2].all(), "the square is hidden from the first network alone"


def test_layers_stay_sparse_when_batch_normalisation_becomes_synchronised() -> None:
    layers = network()
    sparse = Sparse([layers])
    plain = copy.deepcopy(layers)
    convert_sync_batch_norm(layers)
    assert isinstance(layers[1], SyncBatchNorm)
    sparse.show(MASK, NUM_VISIBLE)
    own = sparse_of(plain)
    x = maps(1, 8)
    assert torch.equal(layers(sparse.hide(x)), plain(own.hide(x)))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.Sigmoid(), "Sigmoid is none of the layers that can leave out hidden squares"),
        (nn.LayerNorm(8), "LayerNorm is none of the layers"),
        (nn.AdaptiveAvgPool2d(1), "AdaptiveAvgPool2d is none of the layers"),
        (nn.Conv2d(1, 1, 3), r"gives \[2, 1, 6, 6\], where 4 x 4 squares cannot be hidden"),
        (
            nn.AvgPool2d(8),
            r"gives \[2, 1, 1, 1\], where 4 x 4 squares cannot be hidden; networks with layers over whole",
        ),
    ],
)
def test_layers_that_would_see_hidden_squares_are_refused_while_squares_are_hidden(
    layer: nn.Module, message: str
) -> None:
    sparse = Sparse([layer])
    x = torch.randn(2, 1, 8, 8)
    layer(x)
    mask = torch.zeros(2, 4, 4, dtype=torch.bool)
    sparse.show(mask, num_visible=16)
    with pytest.raises(ValueError, match=message):
        layer(x)
