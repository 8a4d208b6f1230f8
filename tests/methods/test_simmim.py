import re
from typing import Any

import pytest
import torch
from torch import Tensor

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.simmim import SimMIM
from raysl.nn.backbones.vit import ViT
from raysl.optim.groups import split_groups
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.masking import UnitMask

STEP = Step(0, 10, 5)
MASKED = ((0, 1, 4, 5, 10, 11, 14, 15), (2, 3, 6, 7, 8, 9, 12, 13))  # of 16 patches


def setup_of(*words: str) -> Setup:
    small = ["backbone.width=8", "backbone.heads=2", "backbone.depth=2", "train.batch_size=2"]
    return Setup.of(load_config("digits/simmim", [*small, *words]), 6)


def small_simmim(*words: str) -> SimMIM:
    torch.manual_seed(0)
    setup = setup_of(*words)
    return SimMIM(setup, ViT(setup.config.backbone)).double()


def batch_of(images: Tensor | None = None) -> Batch:
    if images is None:
        images = torch.randn(2, 1, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.zeros(2, 16, dtype=torch.bool)
    for image, places in enumerate(MASKED):
        mask[image, list(places)] = True
    return Batch(
        {"global": images}, torch.arange(2), torch.full((2,), -1), extras={"global.mask": mask.view(2, 1, 4, 4)}
    )


def test_loss_is_the_mean_absolute_error_of_masked_pixels() -> None:
    method, batch = small_simmim(), batch_of()
    terms = []
    for image in range(2):
        pixels, mask = batch.views["global"][image], batch.extras["global.mask"][image]
        tokens = method.backbone.tokens(pixels, mask)[0, 1:]  # [16, D]
        for place in MASKED[image]:
            predicted = method.head(tokens[place]).view(4, 4, 3)
            top, left = place // 4 * 4, place % 4 * 4
            for row in range(4):
                for column in range(4):
                    for channel in range(3):
                        error = predicted[row, column, channel] - pixels[0, channel, top + row, left + column]
                        terms.append(error.abs())
    torch.testing.assert_close(method(batch, STEP).loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)


def test_predictions_know_nothing_of_masked_pixels() -> None:
    method, batch = small_simmim(), batch_of()
    other = batch.views["global"].clone()
    for image, places in enumerate(MASKED):
        for place in places:
            row, column = place // 4 * 4, place % 4 * 4
            other[image, :, :, row : row + 4, column : column + 4] = 9.0
    mask = batch.extras["global.mask"].flatten(0, 1)
    first, second = (method.backbone.tokens(images.flatten(0, 1), mask) for images in (batch.views["global"], other))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_the_mask_token_trains_without_weight_decay_and_goes_out_with_the_backbone() -> None:
    method = small_simmim()
    method(batch_of(), STEP).loss.backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in method.parameters())
    _, excluded = split_groups(method, method.setup.config.optim)
    assert any(parameter is method.backbone.mask_token for parameter in excluded["params"])
    assert method.export() is method.backbone


def test_views_are_the_papers() -> None:
    setup = Setup.of(load_config("simmim", ["data.path=/somewhere"]), 4096)
    SimMIM.check(setup)
    (view,) = SimMIM.views(setup).groups["global"]
    assert (view.crop.size, view.crop.scale) == (224, (0.67, 1.0))
    assert [type(transform).__name__ for transform in view.transforms] == ["HorizontalFlip"]
    assert view.mask == UnitMask(patch_size=16, unit_size=32, ratio=0.6)


def test_flat_and_huge_images_leave_the_loss_finite() -> None:
    for images in (torch.zeros(2, 1, 3, 16, 16), 1e6 * torch.randn(2, 1, 3, 16, 16)):
        method = small_simmim().float()
        out = method(batch_of(images), STEP)
        out.loss.backward()
        assert out.loss.isfinite()
        assert all(parameter.grad.isfinite().all() for parameter in method.parameters())
        assert tuple(out.metrics) == SimMIM.logged


def test_half_precision_gives_a_loss_in_fp32() -> None:
    method = small_simmim().float()
    with torch.autocast("cpu", torch.bfloat16):
        out = method(batch_of(torch.randn(2, 1, 3, 16, 16)), STEP)
    assert out.loss.dtype == torch.float32
    out.loss.backward()
    assert method.backbone.mask_token.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("method.mask_size=6",),
            "method.mask_size is 6, and has to be a multiple of patches of 4 pixels that divides ",
        ),
        (("method.mask_size=12",), "divides views of 16; give 4 or 8"),
        (("method.mask_ratio=0.98",), "method.mask_ratio=0.98 masks all 16 squares of a view"),
        (("backbone.mask_token=false",), "set backbone.mask_token=true"),
        (("method.views.size=18", "data.image_size=16"), "views of 18 pixels are not covered by patches of 4"),
    ],
)
def test_check_refuses_masks_that_cannot_be(words: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        SimMIM.check(setup_of(*words))


def test_a_backbone_without_patches_is_refused() -> None:
    setup = Setup.of(load_config("quickstart", ["method=simmim"]), 64)
    with pytest.raises(ConfigError, match=r"backbone 'resnet' has no patches, .* set backbone=vit"):
        SimMIM.check(setup)
