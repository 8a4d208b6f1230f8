"""Stages as vectors: each pool beside a slow one, the order asked for, the widths of the published linear probes."""

import pytest
import torch
from torch import Tensor

from raysl.nn.backbones.resnet import ResNet
from raysl.nn.backbones.vit import ViT
from raysl.nn.pooling import Pool, pooled_stages

VISSL = {
    "res2": (Pool(kernel=16, stride=8), 9216),
    "res3": (Pool(kernel=13, stride=5), 8192),
    "res4": (Pool(kernel=8, stride=3), 9216),
    "res5": (Pool(kernel=6, stride=1), 8192),
    "avgpool": (Pool(kind="none"), 2048),
}
"""Pools of ResNet-50's linear probes on ImageNet, and how wide what they give is."""


def resnet() -> ResNet:
    torch.manual_seed(0)
    return ResNet(ResNet.Config(depth=10, width=8, stem="cifar", num_stages=3)).eval()


@pytest.mark.parametrize(("kind", "of"), [("avg", Tensor.mean), ("max", Tensor.amax)])
def test_windows_and_grids_are_means_and_maxima_of_their_places(kind: str, of: object) -> None:
    maps = torch.randn(2, 3, 6, 6)
    windows = [maps[:, :, i : i + 3, j : j + 3] for i in (0, 2) for j in (0, 2)]
    expected = torch.stack([of(window, dim=(2, 3)) for window in windows], dim=2).flatten(1)  # type: ignore[operator]
    torch.testing.assert_close(Pool(kind=kind, kernel=3, stride=2)(maps), expected)
    halves = [maps[:, :, i : i + 3, j : j + 3] for i in (0, 3) for j in (0, 3)]
    expected = torch.stack([of(half, dim=(2, 3)) for half in halves], dim=2).flatten(1)  # type: ignore[operator]
    torch.testing.assert_close(Pool(kind=kind, size=2)(maps), expected)
    torch.testing.assert_close(Pool(kind=kind)(maps), of(maps, dim=(2, 3)))  # type: ignore[operator]


def test_padding_counts_as_nothing_in_means() -> None:
    assert Pool(kernel=3, padding=1)(torch.ones(1, 1, 3, 3)).item() == pytest.approx(4 / 9)


def test_tokens_have_a_class_and_patches() -> None:
    tokens = torch.randn(2, 5, 4)
    assert torch.equal(Pool(kind="class")(tokens, 2), tokens[:, 0])
    torch.testing.assert_close(Pool()(tokens, 2), tokens[:, 2:].mean(dim=1))
    assert torch.equal(Pool(kind="max")(tokens, 2), tokens[:, 2:].amax(dim=1))
    assert torch.equal(Pool(kind="none")(tokens, 2), tokens.flatten(1))
    assert torch.equal(Pool(kind="max", size=3)(tokens[:, 0]), tokens[:, 0])


def test_vectors_come_in_the_order_asked_for_and_one_stage_may_be_asked_for_twice() -> None:
    network, images = resnet(), torch.randn(2, 3, 16, 16)
    ran: list[int] = []
    network.layer1.register_forward_hook(lambda *_: ran.append(1))
    asked = [("res4", Pool()), ("avgpool", Pool(kind="none")), ("res2", Pool(size=2)), ("res4", Pool(kind="max"))]
    last, whole, early, highest = pooled_stages(network, images, asked)
    assert len(ran) == 1
    stages = network.stages(images, ["res2", "res4"])
    torch.testing.assert_close(last, whole)
    assert torch.equal(highest, stages["res4"].amax(dim=(2, 3)))
    assert torch.equal(early, Pool(size=2)(stages["res2"]))


def test_a_vits_stages_leave_registers_out_of_their_means() -> None:
    torch.manual_seed(0)
    network = ViT(ViT.Config(width=24, depth=2, heads=3, patch_size=8, image_size=16, num_registers=2)).eval()
    images = torch.randn(2, 3, 16, 16)
    mean, first = pooled_stages(network, images, [("norm", Pool()), ("norm", Pool(kind="class"))])
    torch.testing.assert_close(mean, network.stages(images, ["mean"])["mean"])
    assert torch.equal(first, network(images))


@pytest.mark.thorough
def test_the_probes_of_a_resnet50_are_as_wide_as_published() -> None:
    network = ResNet.without_weights(ResNet.Config())
    asked = [(name, pool) for name, (pool, _) in VISSL.items()]
    found = pooled_stages(network, torch.zeros(1, 3, 224, 224, device="meta"), asked)
    assert [vector.shape[1] for vector in found] == [width for _, width in VISSL.values()]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \[1, 3, 4, 4\] has no class token; take kind='avg'"):
        Pool(kind="class")(torch.zeros(1, 3, 4, 4))
    with pytest.raises(ValueError, match="windows of side 6 do not fit a map of 4x4 with a border of 0"):
        Pool(kernel=6)(torch.zeros(1, 3, 4, 4))
    with pytest.raises(ValueError, match="no stage 'res9'"):
        pooled_stages(resnet(), torch.zeros(1, 3, 8, 8), [("res9", Pool())])
