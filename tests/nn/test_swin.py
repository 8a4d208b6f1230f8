"""Swin transformers: beside torchvision's, and with parts of several images kept apart."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.models.swin_transformer import SwinTransformer

from raysl.errors import ConfigError
from raysl.nn.backbones.shapes import SHAPES
from raysl.nn.backbones.swin import Swin
from raysl.nn.backbones.windows import SwinBlock, Windows

SMALL = {"width": 16, "head_dim": 8, "depths": (2, 2), "windows": (4,), "image_size": 32}


def swin(**settings: Any) -> Swin:
    torch.manual_seed(0)
    return Swin(Swin.Config(**{**SMALL, **settings})).double().eval()


def images_of(side: int, width: int | None = None, num: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(num, 3, side, width or side, dtype=torch.float64, generator=generator)


def torchvision_name(name: str) -> str:
    """Name in torchvision of one of our parameters."""
    name = name.replace("patch_embed.proj", "features.0.0").replace("patch_embed.norm", "features.0.2")
    name = re.sub(r"layers\.(\d+)\.blocks", lambda match: f"features.{2 * int(match[1]) + 1}", name)
    name = re.sub(r"layers\.(\d+)\.downsample", lambda match: f"features.{2 * int(match[1]) + 2}", name)
    return name.replace("mlp.fc1", "mlp.0").replace("mlp.fc2", "mlp.3")


@pytest.mark.thorough
def test_features_and_gradients_are_torchvisions() -> None:
    ours = swin(windows=(7,), image_size=112)  # windows of 7 on maps of 28 and 14
    theirs = SwinTransformer([4, 4], 16, [2, 2], [2, 4], [7, 7], stochastic_depth_prob=0.0).double().eval()
    named = {torchvision_name(name): parameter for name, parameter in ours.named_parameters()}
    for parameter in named.values():
        torch.nn.init.normal_(parameter, std=0.1)
    missing, unknown = theirs.load_state_dict({name: p.detach() for name, p in named.items()}, strict=False)
    assert unknown == []
    assert all(name.startswith("head.") or name.endswith("relative_position_index") for name in missing)
    images = images_of(112)
    expected = theirs.avgpool(theirs.permute(theirs.norm(theirs.features(images)))).flatten(1)
    features = ours(images)
    torch.testing.assert_close(features, expected, rtol=1e-10, atol=1e-10)
    weights = torch.randn(features.shape, dtype=torch.float64)
    (features * weights).sum().backward()
    (expected * weights).sum().backward()
    others = dict(theirs.named_parameters())
    for name, parameter in named.items():
        torch.testing.assert_close(parameter.grad, others[name].grad, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.thorough
def test_parameters_are_those_that_papers_tell() -> None:
    def millions(shape: str, with_classifier: bool = True) -> float:
        network = Swin.without_weights(Swin.Config(**SHAPES["swin"][shape]))
        num_parameters = sum(parameter.numel() for parameter in network.parameters())
        return round((num_parameters + with_classifier * 1000 * (network.feature_dim + 1)) / 1e6)

    assert [millions(f"swin_{size}_patch4_window7") for size in ("tiny", "small", "base", "large")] == [28, 50, 88, 197]
    assert [millions(f"mixmim_{size}") for size in ("base", "large")] == [88, 197]


def plain_block(block: SwinBlock, x: Tensor, side: int, shifts: list[int], groups: Tensor) -> Tensor:
    """A block, a query at a time: [h, w, C] of one image."""
    height, width, _ = x.shape
    heads, table = block.attn.heads, block.attn.relative_position_bias_table
    q, k, v = block.attn.qkv(block.norm1(x)).chunk(3, dim=2)
    size = x.shape[2] // heads

    def window(*place: int) -> list[int]:
        return [(at + side - shift) // side if shift else at // side for at, shift in zip(place, shifts, strict=True)]

    rows = []
    for y in range(height):
        row = []
        for column in range(width):
            keys = [
                (i, j)
                for i in range(height)
                for j in range(width)
                if window(i, j) == window(y, column) and groups[i, j] == groups[y, column]
            ]
            parts = []
            for head in range(heads):
                at = slice(head * size, (head + 1) * size)
                logits = torch.stack(
                    [
                        q[y, column, at] @ k[i, j, at] / size**0.5
                        + table[(y - i + side - 1) * (2 * side - 1) + column - j + side - 1, head]
                        for i, j in keys
                    ]
                )
                shares = logits.softmax(dim=0)
                parts.append(sum(share * v[i, j, at] for share, (i, j) in zip(shares, keys, strict=True)))
            row.append(torch.cat(parts))  # type: ignore[arg-type]
        rows.append(torch.stack(row))
    x = x + block.attn.proj(torch.stack(rows))
    return x + block.mlp(block.norm2(x))


@pytest.mark.thorough
@pytest.mark.parametrize("size", [(8, 8), (6, 9), (3, 8), (2, 3)])
@pytest.mark.parametrize("has_shift", [False, True])
def test_attention_is_that_of_a_loop_over_places_of_a_window_and_a_group(
    size: tuple[int, int], has_shift: bool
) -> None:
    torch.manual_seed(0)
    block = SwinBlock(8, heads=2, window=4).double()
    x = torch.randn(2, *size, 8, dtype=torch.float64)
    groups = torch.rand(2, *size) < 0.5
    windows = Windows.of(size, 4, has_shift, groups, x.device)
    found = block(x, windows)
    for image in range(2):
        # windows along an axis that one of them covers are not shifted
        shifts = [2 if has_shift and side > 4 else 0 for side in size]
        expected = plain_block(block, x[image], 4, shifts, groups[image])
        torch.testing.assert_close(found[image], expected, rtol=1e-10, atol=1e-12)
    whole = block(x, Windows.of(size, 4, has_shift, None, x.device))
    same = block(x, Windows.of(size, 4, has_shift, torch.ones(2, *size, dtype=torch.int64), x.device))
    torch.testing.assert_close(whole, same, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("settings", [{"shift": False}, {"shift": True}, {"position": "sincos", "windows": (8, 4)}])
def test_squares_of_a_group_know_nothing_of_other_groups(settings: dict[str, Any]) -> None:
    network = swin(**settings)
    assert network.map_stride == 8
    groups = torch.tensor([[0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1], [2, 0, 2, 1]]).expand(2, 4, 4)
    pixels = groups.repeat_interleave(8, dim=1).repeat_interleave(8, dim=2)[:, None].expand(2, 3, 32, 32)
    images = images_of(32)
    before = network.grouped_map(images, groups)
    assert before.shape == (2, 32, 4, 4)
    for group in range(3):
        changed = torch.where(pixels == group, images, images + 3).requires_grad_()
        after = network.grouped_map(changed, groups)
        own = (groups == group)[:, None].expand_as(before)
        torch.testing.assert_close(after[own], before[own], rtol=0, atol=1e-12)
        assert not torch.isclose(after[~own], before[~own], atol=1e-6).any()
        after[own].square().sum().backward()
        assert not changed.grad[pixels != group].any()
        assert (changed.grad[pixels == group] != 0).float().mean() > 0.9
    one = network.grouped_map(images, torch.zeros(2, 4, 4, dtype=torch.bool))
    torch.testing.assert_close(one, network.stages(images, ["norm"])["norm"], rtol=1e-12, atol=1e-12)


def test_groups_that_do_not_fit_the_images_are_refused() -> None:
    network = swin()
    told = re.escape("groups [2, 2, 4] do not fit images [2, 3, 32, 32]; give one for each square of 8 pixels")
    with pytest.raises(ValueError, match=told):
        network.grouped_map(images_of(32), torch.zeros(2, 2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="which have to cover the images"):
        network.grouped_map(images_of(36), torch.zeros(2, 4, 4, dtype=torch.bool))
    from raysl.nn.backbones.resnet import ResNet

    resnet = ResNet(ResNet.Config(depth=10, width=4))
    assert resnet.map_stride is None
    with pytest.raises(TypeError, match="ResNet cannot keep parts of an image apart; take backbone=swin"):
        resnet.grouped_map(torch.zeros(1, 3, 32, 32), torch.zeros(1, 4, 4))


@pytest.mark.parametrize("settings", [{}, {"position": "sincos"}])
@pytest.mark.parametrize("size", [(32, 32), (32, 48), (20, 36), (33, 50), (8, 8), (5, 3)])
def test_images_of_any_size_have_features(size: tuple[int, int], settings: dict[str, Any]) -> None:
    network = swin(**settings)
    maps = network.stages(images_of(*size), ["stage1", "stage2", "norm", "mean"])
    grid = [-(-side // 4) for side in size]
    assert maps["stage1"].shape == (2, 16, *grid)
    assert maps["stage2"].shape == maps["norm"].shape == (2, 32, *(-(-side // 2) for side in grid))
    torch.testing.assert_close(maps["mean"], maps["norm"].mean(dim=(2, 3)))
    assert torch.equal(network(images_of(*size)), maps["mean"])
    assert maps["mean"].isfinite().all()


def test_padding_is_seen_by_nobody() -> None:
    torch.manual_seed(0)
    block = SwinBlock(8, heads=2, window=4).double()
    x = torch.randn(1, 6, 6, 8, dtype=torch.float64)
    found = block(x, Windows.of((6, 6), 4, False, None, x.device))
    corner = block(x[:, 4:, 4:], Windows.of((2, 2), 4, False, None, x.device))
    torch.testing.assert_close(found[:, 4:, 4:], corner, rtol=1e-12, atol=1e-12)
    torch.nn.init.normal_(block.attn.qkv.bias, std=10.0)  # padded keys would have large values of their own
    found = block(x, Windows.of((6, 6), 4, False, None, x.device))
    corner = block(x[:, 4:, 4:], Windows.of((2, 2), 4, False, None, x.device))
    torch.testing.assert_close(found[:, 4:, 4:], corner, rtol=1e-12, atol=1e-12)


def test_windows_are_at_most_as_large_as_the_maps_of_native_images() -> None:
    network = swin(windows=(14, 14), image_size=32)
    sides = [stage.window for stage in network.layers]
    assert sides == [8, 4]
    tables = [stage.blocks[0].attn.relative_position_bias_table.shape for stage in network.layers]
    assert tables == [(225, 2), (49, 4)]


def test_facts_are_known_without_weights_and_stages_end_early() -> None:
    info = Swin.info(Swin.Config(**SMALL))
    assert info.stages == {"stage1": 16, "stage2": 32, "norm": 32, "mean": 32}
    assert (info.feature_dim, info.patch_size, info.map_stage, info.num_layers) == (32, None, "norm", 4)
    network = swin()
    network.layers[1].forward = None  # type: ignore[assignment]
    network.layers[0].downsample.forward = None  # type: ignore[assignment]
    assert list(network.stages(images_of(32), ["stage1"])) == ["stage1"]
    assert network.stages(images_of(32), []) == {}
    with pytest.raises(ValueError, match="no stage 'block1' in this Swin; its stages: stage1, stage2, norm, mean"):
        network.stages(images_of(32), ["block1"])


def test_drop_path_rises_to_the_last_block_and_every_block_draws_by_itself() -> None:
    network = swin(drop_path=0.3)
    blocks = [block for stage in network.layers for block in stage.blocks]
    assert [block.drop_path2.rate for block in blocks] == pytest.approx([0, 0.1, 0.2, 0.3])
    assert len({slot for block in blocks for slot in (block.drop_path1.slot, block.drop_path2.slot)}) == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 20}, "backbone.width 20 is not a multiple of backbone.head_dim 8; try width=16"),
        ({"width": 18, "head_dim": 6, "position": "sincos"}, "needs a width that is a multiple of 4, not 18; try 20"),
        ({"windows": (7, 7, 7)}, "backbone.windows has 3 sides for 2 stages (backbone.depths); give one for each"),
    ],
)
def test_what_makes_no_network_is_refused_with_what_does(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        swin(**settings)
