import functools
from typing import Any

import pytest
import torch
import torchvision

from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import BackboneInfo
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.heads import mlp


def small(**fields: object) -> ResNet:
    torch.manual_seed(0)
    return ResNet(ResNet.Config(**({"depth": 10, "num_stages": 3, "width": 8, "stem": "cifar"} | fields)))


@pytest.mark.thorough
@pytest.mark.parametrize(("depth", "num_parameters"), [(18, 11_176_512), (34, 21_284_672), (50, 23_508_032)])
def test_weights_are_torchvisions_less_the_classifier(depth: int, num_parameters: int) -> None:
    theirs = getattr(torchvision.models, f"resnet{depth}")().eval()
    theirs.fc = torch.nn.Identity()
    ours = ResNet(ResNet.Config(depth=depth)).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    images = torch.randn(1, 3, 64, 64)
    assert sum(parameter.numel() for parameter in ours.parameters()) == num_parameters
    assert ours.feature_dim == theirs(images).shape[1]
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(("depth", "num_parameters"), [(26, 13_946_176), (200, 62_624_832)])
def test_depths_that_torchvision_has_not_are_as_large_as_timms(depth: int, num_parameters: int) -> None:
    with torch.device("meta"):
        network = ResNet(ResNet.Config(depth=depth))
    assert sum(parameter.numel() for parameter in network.parameters()) == num_parameters


@pytest.mark.thorough
@pytest.mark.parametrize("depth", [101, 152])
def test_deep_ones_have_torchvisions_names_too(depth: int) -> None:
    with torch.device("meta"):
        theirs = getattr(torchvision.models, f"resnet{depth}")().state_dict()
        ours = ResNet(ResNet.Config(depth=depth)).state_dict()
    shapes = {name: value.shape for name, value in ours.items()}
    assert shapes == {name: value.shape for name, value in theirs.items() if not name.startswith("fc.")}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("resnext50_32x4d", {"groups": 32, "width_per_group": 4}),
        ("resnext101_64x4d", {"depth": 101, "groups": 64, "width_per_group": 4}),
        ("wide_resnet50_2", {"width_per_group": 128}),
        ("wide_resnet101_2", {"depth": 101, "width_per_group": 128}),
    ],
)
def test_wide_and_grouped_bottlenecks_are_torchvisions(name: str, fields: dict[str, int]) -> None:
    with torch.device("meta"):
        theirs = {key: value.shape for key, value in torchvision.models.get_model(name).state_dict().items()}
        ours = {key: value.shape for key, value in ResNet(ResNet.Config(**fields)).state_dict().items()}
    assert ours == {key: shape for key, shape in theirs.items() if not key.startswith("fc.")}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ({"groups": 32, "width_per_group": 4}, {"groups": 32, "width_per_group": 4}),
        ({"width_per_group": 128}, {"width_per_group": 128}),
        ({"norm": "group"}, {"norm_layer": functools.partial(torch.nn.GroupNorm, 32)}),
        ({"norm": "layer"}, {"norm_layer": functools.partial(torch.nn.GroupNorm, 1)}),
    ],
)
def test_each_kind_of_block_computes_what_torchvisions_does(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layers = torchvision.models.resnet.ResNet(torchvision.models.resnet.Bottleneck, [1, 1, 1, 1], **theirs)
    layers.fc = torch.nn.Identity()
    ours = ResNet(ResNet.Config(depth=14, **mine))
    ours.load_state_dict(layers.state_dict(), strict=True)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours.train()(images), layers.train()(images), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.eval()(images), layers.eval()(images), rtol=1e-5, atol=1e-5)


def test_width_widens_all_layers_and_width_per_group_the_inner_ones() -> None:
    wider, inside = small(depth=14, width=16), small(depth=14, width_per_group=128)
    assert (wider.feature_dim, wider.conv1.out_channels, wider.layer2[0].conv2.out_channels) == (256, 16, 32)
    assert (inside.feature_dim, inside.conv1.out_channels, inside.layer2[0].conv2.out_channels) == (128, 8, 32)


@pytest.mark.parametrize("depth", [10, 14])
def test_last_stride_one_keeps_the_resolution_of_the_stage_before(depth: int) -> None:
    halved, kept = small(depth=depth), small(depth=depth, last_stride=1)
    kept.load_state_dict(halved.state_dict())
    images = torch.randn(2, 3, 16, 16)
    sides = {name: out.shape[-1] for name, out in kept.stages(images, ["res2", "res3", "res4"]).items()}
    assert sides == {"res2": 16, "res3": 8, "res4": 8}
    assert halved.stages(images, ["res4"])["res4"].shape[-1] == 4


@pytest.mark.parametrize("norm", ["group", "layer"])
def test_without_batch_norm_an_image_does_not_know_its_neighbours(norm: str) -> None:
    network = small(norm=norm, norm_groups=4, zero_init_residual=True).train()
    images = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(network(images)[:1], network(images[:1]))
    assert not list(network.buffers())
    assert network.layer2[0].bn2.weight.abs().max() == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"norm": "group"}, "norm_groups 32 .* try norm_groups=8"),
        ({"norm": "group", "norm_groups": 5, "width": 12}, "norm_groups 5 .* try norm_groups=4"),
        ({"groups": 32}, "groups=32 .* ResNet-10 has none; set backbone.depth=50"),
        ({"depth": 14, "width_per_group": 4}, "width_per_group 4 .* at least 8"),
    ],
)
def test_groups_that_do_not_fit_are_refused_with_what_does(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        small(**fields)


@pytest.mark.thorough
def test_convolutions_start_with_kaiming_fan_out() -> None:
    network = ResNet(ResNet.Config(depth=18))
    assert network.layer4[1].conv2.weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert network.layer1[0].bn2.weight.min() == 1


@pytest.mark.parametrize(("depth", "last"), [(10, "bn2"), (50, "bn3")])
def test_zero_init_residual_starts_blocks_as_the_identity(depth: int, last: str) -> None:
    network = small(depth=depth, zero_init_residual=True, num_stages=2)
    blocks = [*network.layer1, *network.layer2]
    assert all(getattr(block, last).weight.abs().max() == 0 for block in blocks)
    assert all(block.bn1.weight.min() == 1 for block in blocks)


def test_small_network_for_sixteen_pixels() -> None:
    network = small()
    images = torch.randn(2, 3, 16, 16)
    shapes = {name: tuple(out.shape[1:]) for name, out in network.stages(images, ["avgpool", "res4", "stem"]).items()}
    assert shapes == {"avgpool": (32,), "res4": (32, 4, 4), "stem": (8, 16, 16)}
    assert list(shapes) == ["avgpool", "res4", "stem"]
    assert network.feature_dim == network(images).shape[1] == 32


def test_the_stem_is_conv1_behind_the_max_pool() -> None:
    network = small(stem="imagenet").eval()
    outputs = network.stages(torch.randn(2, 3, 32, 32), ["conv1", "stem"])
    assert outputs["conv1"].shape == (2, 8, 16, 16)
    assert outputs["conv1"].min() == 0
    torch.testing.assert_close(outputs["stem"], network.maxpool(outputs["conv1"]), rtol=0, atol=0)


def test_stages_stop_at_the_deepest_one_asked_for() -> None:
    network = small().eval()
    ran: list[int] = []
    network.layer3.register_forward_hook(lambda *_: ran.append(3))
    images = torch.randn(1, 3, 16, 16)
    early = network.stages(images, ["res2", "res3"])
    assert not ran
    late = network.stages(images, ["res2", "res3", "avgpool"])
    assert ran
    assert torch.equal(early["res2"], late["res2"])
    assert torch.equal(early["res3"], late["res3"])
    assert torch.equal(late["avgpool"], network(images))


def test_channels_last_gives_the_same_features() -> None:
    network = small().eval()
    images = torch.randn(2, 3, 16, 16)
    plain = network(images)
    network.to(memory_format=torch.channels_last)
    torch.testing.assert_close(network(images.to(memory_format=torch.channels_last)), plain, rtol=1e-5, atol=1e-5)


def test_unknown_stage_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no stage 'res5' .* conv1, stem, res2, res3, res4, avgpool"):
        small().stages(torch.zeros(1, 3, 8, 8), ["res5"])


@pytest.mark.parametrize("fields", [{"depth": 20}, {"num_stages": 5}, {"width": 0}])
def test_impossible_networks_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=str(next(iter(fields.values())))):
        small(**fields)


@pytest.mark.parametrize("depth", [10, 50])
def test_stage_widths_are_those_of_what_comes_out(depth: int) -> None:
    network = small(depth=depth)
    found = network.stages(torch.zeros(2, 3, 8, 8), list(network.stage_widths))
    assert network.stage_widths == {name: out.shape[1] for name, out in found.items()}
    expected = {"conv1": 64, "stem": 64, "res2": 256, "res3": 512, "res4": 1024, "res5": 2048, "avgpool": 2048}
    assert ResNet.info(ResNet.Config()) == BackboneInfo(2048, None, expected, num_layers=4)
    assert network.no_decay() == set()


def test_mlp_has_relu_between_layers_and_a_plain_last_one() -> None:
    names = [[type(layer).__name__ for layer in mlp([4, 8, 8, 2], norm=norm)] for norm in (False, True)]
    assert names[0] == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert names[1] == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert [layer.bias is None for layer in mlp([4, 8, 2], norm=True) if hasattr(layer, "in_features")] == [True, False]
    assert mlp([4, 8, 2])(torch.zeros(3, 4)).shape == (3, 2)
    with pytest.raises(ValueError, match="at least an input and an output"):
        mlp([4])


def test_mlp_may_end_with_batch_normalisation() -> None:
    for kind, has_scale in (("plain", False), ("affine", True)):
        *_, linear, last = mlp([4, 8, 2], norm=True, output_norm=kind)
        assert isinstance(last, torch.nn.BatchNorm1d)
        assert (linear.bias is None, last.affine) == (True, has_scale)
    made = mlp([4, 8, 2], output_norm="plain")(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(made.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
