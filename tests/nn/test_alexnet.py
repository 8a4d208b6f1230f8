"""AlexNets: the layers, sizes and edges of each paper's."""

from typing import Any

import pytest
import torch
from torch import nn

from raysl.errors import ConfigError
from raysl.nn.backbones.alexnet import VARIANTS, AlexNet, Sobel

SIDES = {
    "bvlc": (54, 26, 26, 12, 12, 12, 12, 5),
    "colorization": (54, 26, 26, 12, 12, 12, 12, 5),
    "deepcluster": (55, 27, 27, 13, 13, 13, 13, 6),
    "jigsaw": (107, 53, 53, 26, 26, 26, 26, 12),
    "rotnet": (55, 27, 27, 13, 13, 13, 13, 6),
}
"""Sides of the maps of 224 pixels."""
STAGES = ["conv1", "pool1", "conv2", "pool2", "conv3", "conv4", "conv5", "pool5", "features"]


def made(**fields: object) -> AlexNet:
    torch.manual_seed(0)
    return AlexNet(AlexNet.Config(**fields))


def meta(**fields: object) -> AlexNet:
    return AlexNet.without_weights(AlexNet.Config(**fields))


@pytest.mark.parametrize("variant", VARIANTS)
def test_maps_are_as_large_and_wide_as_said(variant: str) -> None:
    network = meta(variant=variant)
    names = STAGES[::-1]
    found = network.stages(torch.zeros(2, 3, 224, 224, device="meta"), names)
    assert list(found) == names
    assert list(network.stage_widths) == STAGES
    assert {name: out.shape[1] for name, out in found.items()} == network.stage_widths
    assert tuple(found[name].shape[-1] for name in STAGES[:-1]) == SIDES[variant]
    assert AlexNet.info(network.config).feature_dim == network.feature_dim == found["features"].shape[1]


def test_the_reference_network_of_caffe_has_60_965_224_parameters_with_its_classifier() -> None:
    network = meta(variant="bvlc", image_size=227)
    assert network.feature_dim == 9216
    classifier = (9216 + 1) * 4096 + (4096 + 1) * 4096 + (4096 + 1) * 1000
    assert sum(parameter.numel() for parameter in network.parameters()) + classifier == 60_965_224


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("bvlc", ([], [1, 2, 1, 2, 2], "LM", 3)),
        ("colorization", ([1, 2, 3, 4, 5], [1, 2, 1, 2, 2], "M", 1)),
        ("deepcluster", ([1, 2, 3, 4, 5], [1, 1, 1, 1, 1], "M", 2)),
        ("jigsaw", ([3, 4, 5], [1, 2, 1, 2, 2], "ML", 3)),
        ("rotnet", ([1, 2, 3, 4, 5], [1, 1, 1, 1, 1], "M", 3)),
    ],
)
def test_each_has_the_normalisation_groups_and_input_of_its_paper(variant: str, expected: Any) -> None:
    network = meta(variant=variant)
    layers = [network.get_submodule(f"conv{number}") for number in range(1, 6)]
    normed = [number for number, layer in enumerate(layers, 1) if isinstance(layer[1], nn.BatchNorm2d)]
    kinds = "".join(type(layer).__name__[0] for layer in network.pool1)
    assert (normed, [layer[0].groups for layer in layers], kinds, layers[0][0].in_channels) == expected
    assert [type(layer).__name__[0] for layer in network.pool5] == ["M"]


def test_edges_are_those_of_a_sobel_filter() -> None:
    images = torch.randn(1, 3, 6, 6)
    gray = nn.functional.pad(images.mean(dim=1)[0], (1, 1, 1, 1))
    found = Sobel()(images)
    for i in range(6):
        for j in range(6):
            window = gray[i : i + 3, j : j + 3]
            across = window[0, 0] + 2 * window[1, 0] + window[2, 0] - window[0, 2] - 2 * window[1, 2] - window[2, 2]
            along = window[0, 0] + 2 * window[0, 1] + window[0, 2] - window[2, 0] - 2 * window[2, 1] - window[2, 2]
            torch.testing.assert_close(found[0, :, i, j], torch.stack([across, along]))
    assert list(made(variant="deepcluster", image_size=64).filter.parameters()) == []
    assert not [name for name in made(variant="deepcluster", image_size=64).state_dict() if "filter" in name]


def test_colorization_sees_the_first_channel_alone() -> None:
    network = made(variant="colorization", image_size=96).eval()
    images = torch.randn(2, 3, 96, 96)
    other = torch.cat([images[:, :1], torch.randn(2, 2, 96, 96)], dim=1)
    assert torch.equal(network(images), network(other))
    assert not torch.equal(network(images), network(images.flip(1)))


def test_the_mean_takes_images_of_any_size_and_all_places_those_of_one() -> None:
    mean, flat = made(output="mean").eval(), made(image_size=64).eval()
    flat.load_state_dict(mean.state_dict())
    small, large = torch.randn(2, 3, 64, 64), torch.randn(1, 3, 96, 80)
    assert (mean.feature_dim, flat.feature_dim) == (256, 256)
    assert torch.equal(flat(small), flat.stages(small, ["pool5"])["pool5"].flatten(1))
    torch.testing.assert_close(mean(large), mean.stages(large, ["pool5"])["pool5"].mean(dim=(2, 3)))
    with pytest.raises(ValueError, match=r"96x80 pixels .* backbone.image_size=64; set .* or backbone.output=mean"):
        flat(large)


@pytest.mark.thorough
def test_all_of_it_trains() -> None:
    for variant in VARIANTS:
        network = made(variant=variant, image_size=96)
        network(torch.randn(2, 3, 96, 96)).square().mean().backward()
        assert [name for name, parameter in network.named_parameters() if parameter.grad is None] == []


def test_images_that_do_not_fit_are_refused_before_there_are_weights() -> None:
    AlexNet.check_side(AlexNet.Config(output="mean"), 63)
    with pytest.raises(
        ConfigError, match=r"62x62 pixels leave an empty .* rotnet AlexNet; give images of at least 63x63"
    ):
        AlexNet.check_side(AlexNet.Config(output="mean"), 62)
    with pytest.raises(
        ConfigError, match=r"96x96 pixels have another number of features than those of backbone.image_size=224"
    ):
        AlexNet.check_side(AlexNet.Config(), 96)
    with pytest.raises(ConfigError, match=r"image_size 32 leaves an empty .* give at least 67"):
        AlexNet(AlexNet.Config(variant="bvlc", image_size=32))
    with pytest.raises(ValueError, match=r"no stage 'fc6' in this AlexNet; its stages: conv1, .*, features"):
        made().stages(torch.zeros(1, 3, 224, 224), ["fc6"])
