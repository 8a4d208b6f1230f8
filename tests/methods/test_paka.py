import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.ops import roi_align

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.paka import PaKA, aligned_patches
from raysl.nn.backbones.vit import ViT
from raysl.plan.setup import Setup
from raysl.schedule import Step
from tests.methods.test_dino_v2 import SMALL, expected_losses
from tests.methods.test_ibot import whole_batch

STEP = Step(0, 100, 10)
WORDS = (*SMALL, "method.paka_hidden_dim=12", "method.paka_dim=6", "method.num_paka=3")


def setup_of(*words: str) -> Setup:
    return Setup.of(load_config("digits/paka", [*WORDS, *words]), 6)


def small_paka(*words: str) -> PaKA:
    torch.manual_seed(0)
    setup = setup_of(*words)
    method = PaKA(setup, ViT(setup.config.backbone)).double()
    with torch.no_grad():  # a teacher that has gone its own way
        for teacher in (method.teacher, method.teacher_head, method.teacher_patch_head, method.teacher_paka_head):
            for parameter in teacher.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return method


def paka_batch() -> Batch:
    """Three images of 40 x 50 pixels: boxes of two large views, and of three small ones in the first, second, first."""
    generator = torch.Generator().manual_seed(2)
    batch = whole_batch()
    batch.views["clean"] = torch.randn(3, 2, 3, 16, 16, dtype=torch.float64, generator=generator)
    batch.views["paka"] = torch.randn(3, 3, 3, 12, 12, dtype=torch.float64, generator=generator)
    large = torch.tensor([[2.0, 3.0, 34.0, 43.0, 40.0, 50.0], [4.0, 46.0, 28.0, 6.0, 40.0, 50.0]])
    small = torch.tensor(
        [
            [5.0, 7.0, 17.0, 23.0, 40.0, 50.0],
            [20.0, 30.0, 10.0, 12.0, 40.0, 50.0],  # mirrored both ways
            [8.0, 40.0, 32.0, 11.0, 40.0, 50.0],
        ]
    )
    batch.extras.update({"clean.box": large.expand(3, 2, 6), "paka.box": small.expand(3, 3, 6)})
    return batch


def bilinear(values: Tensor, y: float, x: float) -> Tensor:
    """Value of a map [D, Y, X] at a point, with centres of its places at halves and its edges repeated."""
    height, width = values.shape[1:]
    y, x = min(max(y - 0.5, 0), height - 1), min(max(x - 0.5, 0), width - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    down, along = y - top, x - left
    upper = (1 - along) * values[:, top, left] + along * values[:, top, right]
    lower = (1 - along) * values[:, bottom, left] + along * values[:, bottom, right]
    return (1 - down) * upper + down * lower


def slow_aligned(values: Tensor, outer: list[float], inner: list[float], side: int) -> Tensor:
    """The mean of four points of each patch of a view, read from a map [D, Y, X] of another view."""
    rows = []
    for row in range(side):
        for column in range(side):
            points = []
            for down in (0.25, 0.75):
                for along in (0.25, 0.75):
                    y = inner[0] + (row + down) / side * (inner[2] - inner[0])
                    x = inner[1] + (column + along) / side * (inner[3] - inner[1])
                    v = (y - outer[0]) / (outer[2] - outer[0]) * values.shape[1]
                    u = (x - outer[1]) / (outer[3] - outer[1]) * values.shape[2]
                    points.append(bilinear(values, v, u))
            rows.append(torch.stack(points).mean(dim=0))
    return torch.stack(rows)


def slow_cka(one: Tensor, other: Tensor) -> Tensor:
    """Kernels by a product for each pair of patches, centred by a matrix."""
    num = len(one)
    centring = torch.eye(num, dtype=one.dtype) - 1 / num
    kernels = []
    for z in (one, other):
        kernel = torch.stack([torch.stack([(z[i] * z[j]).sum() for j in range(num)]) for i in range(num)])
        kernels.append(centring @ kernel @ centring)
    return (kernels[0] * kernels[1]).sum() / (kernels[0].norm() * kernels[1].norm())


def expected_paka(method: PaKA, batch: Batch) -> Tensor:
    terms, prefix = [], method.backbone.num_prefix_tokens
    for image in range(3):
        for number in range(3):
            around = number % 2
            seen = method.backbone.tokens(batch.views["paka"][image, [number]])[0, prefix:]
            whole = method.teacher.module.tokens(batch.views["clean"][image, [around]])[0, prefix:]
            boxes = batch.extras["clean.box"][image, around], batch.extras["paka.box"][image, number]
            aligned = slow_aligned(whole.T.reshape(-1, 4, 4), boxes[0].tolist(), boxes[1].tolist(), side=3)
            terms.append(1 - slow_cka(method.paka_head(seen), method.teacher_paka_head.module(aligned).detach()))
    return torch.stack(terms).mean()


@pytest.mark.thorough
def test_the_loss_is_dino_v2s_and_that_of_relations_between_patches() -> None:
    method, batch = small_paka("method.paka_weight=0.7"), paka_batch()
    out = method(batch, STEP)
    expected = expected_losses(method, batch) | {"paka": expected_paka(method, batch)}
    for name, value in expected.items():
        torch.testing.assert_close(out.metrics[name], value.detach(), rtol=1e-8, atol=0)
    total = expected["class_loss"] + expected["patch_loss"] + 0.1 * expected["koleo"] + 0.7 * expected["paka"]
    torch.testing.assert_close(out.loss, total, rtol=1e-8, atol=0)
    assert tuple(out.metrics) == PaKA.logged


@pytest.mark.thorough
def test_gradients_are_those_of_the_loss_by_hand() -> None:
    method, batch = small_paka(), paka_batch()
    method(batch, STEP).loss.backward()
    ours = {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}
    assert ours["paka_head.0.weight"].abs().max() > 0
    assert not any(name.startswith("teacher") for name in ours)
    method.zero_grad()
    expected = expected_losses(method, batch)
    (
        expected["class_loss"] + expected["patch_loss"] + 0.1 * expected["koleo"] + expected_paka(method, batch)
    ).backward()
    for name, grad in ours.items():
        torch.testing.assert_close(grad, method.get_parameter(name).grad, rtol=1e-7, atol=1e-11)


@pytest.mark.parametrize("flips", [(), (1,), (0,), (0, 1)], ids=str)
def test_the_teachers_map_is_read_as_by_roi_align_where_views_are_mirrored(flips: tuple[int, ...]) -> None:
    maps = torch.randn(1, 5, 6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outer = torch.tensor([[10.0, 20.0, 70.0, 90.0, 100.0, 100.0]])  # ten pixels to a place
    inner = torch.tensor([[22.0, 31.0, 58.0, 77.0, 100.0, 100.0]])
    roi = torch.tensor([[0, (31 - 20) / 10, (22 - 10) / 10, (77 - 20) / 10, (58 - 10) / 10]], dtype=torch.float64)
    expected = roi_align(maps, roi, (3, 4), sampling_ratio=2, aligned=True)  # [1, 5, 3, 4]
    for axis in flips:
        inner[:, [axis, axis + 2]] = inner[:, [axis + 2, axis]]
        expected = expected.flip(2 + axis)
    found = aligned_patches(maps, outer, inner, 3, 4)
    torch.testing.assert_close(found, expected.flatten(2).mT, rtol=1e-9, atol=1e-12)
    # the map of a mirrored view, whose box says so, shows the same
    mirrored = outer[:, [0, 3, 2, 1, 4, 5]]
    torch.testing.assert_close(aligned_patches(maps.flip(3), mirrored, inner, 3, 4), found, rtol=1e-9, atol=1e-12)


def test_small_views_lie_in_large_ones_that_are_there_once_more_in_their_own_colours() -> None:
    setup = setup_of("method.views.flip=0.5", "method.views.jitter_p=1", "method.paka_scale=[0.1,0.4]")
    PaKA.check(setup)
    recipe = PaKA.views(setup)
    assert {name: len(views) for name, views in recipe.groups.items()} == {
        "global": 2,
        "local": 1,
        "clean": 2,
        "paka": 3,
    }
    assert [view.inside for view in recipe.groups["paka"]] == [0, 1, 0]
    generator = torch.Generator().manual_seed(0)
    images = [torch.randint(0, 256, (3, 60, 80), dtype=torch.uint8, generator=generator) for _ in range(8)]
    index = np.arange(8)
    crops = recipe.crop(images, index, seed=0, epoch=0)
    assert torch.equal(crops["clean"], crops["global"])  # before the transforms
    augmented = recipe.augment(crops, index, seed=0, epoch=0)
    outer, inner = augmented.extras["clean.box"], augmented.extras["paka.box"]
    for number in range(3):
        large, small = outer[:, number % 2], inner[:, number]
        for axis in (0, 1):
            low, high = (torch.minimum(box[:, axis], box[:, axis + 2]) for box in (large, small))
            assert (high >= low).all()
            low, high = (torch.maximum(box[:, axis], box[:, axis + 2]) for box in (large, small))
            assert (high <= low).all()
        share = area(small) / area(large)
        assert 0.08 < share.min() < share.max() < 0.42
    assert not torch.equal(inner[:, 0], inner[:, 2])  # two views in one large view are not the same
    mirrored = (outer[..., 1] > outer[..., 3]).tolist()
    assert sum(map(sum, mirrored)) not in (0, 16)
    plain = recipe.crop(images, index, seed=0, epoch=0)["global"]
    for image in range(8):
        for view in range(2):
            shown = plain[image, view].flip(-1) if mirrored[image][view] else plain[image, view]
            assert torch.equal(augmented.views["clean"][image, view], shown)


def area(box: Tensor) -> Tensor:
    return ((box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])).abs()


def test_after_an_update_the_projector_of_the_teacher_has_followed() -> None:
    method, batch = small_paka("method.momentum=0.75"), paka_batch()
    out = method(batch, STEP)
    before = {name: value.clone() for name, value in method.teacher_paka_head.module.named_parameters()}
    method.after_update(STEP, batch, out.carry)
    for name, was in before.items():
        expected = 0.75 * was + 0.25 * method.paka_head.get_parameter(name)
        torch.testing.assert_close(method.teacher_paka_head.module.get_parameter(name), expected, rtol=1e-9, atol=1e-12)


def test_the_projectors_have_three_layers_and_the_backbone_is_exported_without_them() -> None:
    config: Any = PaKA.Config()
    assert (config.paka_weight, config.num_paka, config.paka_scale) == (1, 8, (0.05, 0.4))
    assert (config.paka_hidden_dim, config.paka_dim) == (2048, 256)
    method = small_paka()
    widths = [tuple(layer.weight.shape) for layer in method.paka_head if hasattr(layer, "weight")]
    assert widths == [(12, 8), (12, 12), (6, 12)]
    assert method.export() is method.teacher.module
    assert not any("paka" in name for name in method.export().state_dict())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("method.views.affine_p=0.5",), "method.views.affine_p is 0.5, and PaKA has to know where the patches"),
        (
            ("method.views.num_local=0", "method.views.local_size=10"),
            "PaKA relates patches of 4 pixels, at least two along each side; set method.views.local_size=8",
        ),
        (("method.views.local_size=4",), "method.views.local_size is 4, and PaKA relates patches of 4 pixels"),
        (("train.batch_size=1",), "PaKA balances assignments over the batch"),
    ],
)
def test_check_refuses_what_cannot_work(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        PaKA.check(setup_of(*words))
