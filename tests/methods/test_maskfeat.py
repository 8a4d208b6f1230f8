import re
from typing import Any

import pytest
import torch
from torch import Tensor

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import hog
from raysl.methods.maskfeat import MaskFeat
from raysl.nn.backbones.vit import ViT
from raysl.optim.groups import split_groups
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.masking import BlockMask

STEP = Step(0, 10, 5)
MASKED = ((0, 1, 4, 5, 10, 11, 14, 15), (2, 3, 6, 7, 8, 9, 12, 13))  # of 16 patches


def setup_of(*words: str) -> Setup:
    small = ["train.batch_size=2", "backbone.width=8", "backbone.heads=2", "backbone.depth=2", "method.cell_size=2"]
    return Setup.of(load_config("digits/maskfeat", [*small, *words]), 6)


def small_maskfeat(*words: str) -> MaskFeat:
    torch.manual_seed(0)
    setup = setup_of(*words)
    return MaskFeat(setup, ViT(setup.config.backbone)).double()


def batch_of(images: Tensor | None = None) -> Batch:
    if images is None:
        images = torch.randn(2, 1, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.zeros(2, 16, dtype=torch.bool)
    for image, places in enumerate(MASKED):
        mask[image, list(places)] = True
    return Batch(
        {"global": images}, torch.arange(2), torch.full((2,), -1), extras={"global.mask": mask.view(2, 1, 4, 4)}
    )


def slow_loss(method: MaskFeat, batch: Batch) -> Tensor:
    """A value of a masked patch's cells at a time; a patch of 4 pixels has cells of 2."""
    terms = []
    for image in range(2):
        pixels, mask = batch.views["global"][image], batch.extras["global.mask"][image]
        cells = hog(pixels, 2, 9)[0]  # [3, 9, 8, 8]
        tokens = method.backbone.tokens(pixels, mask)[0, 1:]  # [16, D]
        for place in MASKED[image]:
            predicted = method.head(tokens[place]).view(3, 9, 2, 2)
            for row in range(2):
                for column in range(2):
                    told = cells[:, :, place // 4 * 2 + row, place % 4 * 2 + column]
                    terms += (predicted[:, :, row, column] - told).square().flatten().tolist()
    return torch.tensor(terms, dtype=torch.float64).mean()


def test_loss_is_the_mean_squared_error_of_the_histograms_of_masked_patches() -> None:
    method, batch = small_maskfeat(), batch_of()
    torch.testing.assert_close(method(batch, STEP).loss, slow_loss(method, batch), rtol=1e-9, atol=0)


def test_histograms_come_from_the_whole_image_and_have_no_gradient() -> None:
    method, images = small_maskfeat(), batch_of().views["global"].requires_grad_()
    target = method._targets(images.flatten(0, 1))
    assert not target.requires_grad
    assert target.shape == (2, 16, 108)
    torch.testing.assert_close(target.view(2, 16, 3, 9, 4).norm(dim=3), torch.ones(2, 16, 3, 4, dtype=torch.float64))


def test_predictions_know_nothing_of_masked_pixels() -> None:
    method, batch = small_maskfeat(), batch_of()
    other = batch.views["global"].clone()
    for image, places in enumerate(MASKED):
        for place in places:
            row, column = place // 4 * 4, place % 4 * 4
            other[image, :, :, row : row + 4, column : column + 4] = 9.0
    mask = batch.extras["global.mask"].flatten(0, 1)
    first, second = (method.backbone.tokens(images.flatten(0, 1), mask) for images in (batch.views["global"], other))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_the_mask_token_trains_without_weight_decay_and_goes_out_with_the_backbone() -> None:
    method = small_maskfeat()
    method(batch_of(), STEP).loss.backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in method.parameters())
    _, excluded = split_groups(method, method.setup.config.optim)
    assert any(parameter is method.backbone.mask_token for parameter in excluded["params"])
    assert method.export() is method.backbone


def test_views_and_settings_are_the_papers() -> None:
    setup = Setup.of(load_config("maskfeat", ["data.path=/somewhere"]), 4096)
    MaskFeat.check(setup)
    (view,) = MaskFeat.views(setup).groups["global"]
    assert (view.crop.size, view.crop.scale) == (224, (0.5, 1.0))
    assert [type(transform).__name__ for transform in view.transforms] == ["HorizontalFlip"]
    assert view.mask == BlockMask(patch_size=16, ratios=((0.4, 0.0),))
    assert (setup.method.cell_size, setup.method.num_bins) == (8, 9)


def test_flat_and_huge_images_leave_the_loss_finite() -> None:
    for images in (torch.zeros(2, 1, 3, 16, 16), 1e6 * torch.randn(2, 1, 3, 16, 16)):
        method = small_maskfeat().float()
        out = method(batch_of(images), STEP)
        out.loss.backward()
        assert out.loss.isfinite()
        assert all(parameter.grad.isfinite().all() for parameter in method.parameters())
        assert tuple(out.metrics) == MaskFeat.logged


def test_half_precision_gives_a_loss_in_fp32() -> None:
    method = small_maskfeat().float()
    with torch.autocast("cpu", torch.bfloat16):
        out = method(batch_of(torch.randn(2, 1, 3, 16, 16)), STEP)
    assert out.loss.dtype == torch.float32
    out.loss.backward()
    assert method.backbone.mask_token.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("method.cell_size=3",), "cells of it do not cover patches of 4 pixels; give 1 or 2 or 4"),
        (("method.mask_ratio=0.02",), "method.mask_ratio=0.02 masks none of the 16 patches of a view"),
        (("backbone.mask_token=false",), "set backbone.mask_token=true"),
        (("method.views.size=18", "data.image_size=16"), "views of 18 pixels are not covered by patches of 4"),
    ],
)
def test_check_refuses_what_cannot_work(words: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        MaskFeat.check(setup_of(*words))


def test_a_backbone_without_patches_is_refused() -> None:
    setup = Setup.of(load_config("quickstart", ["method=maskfeat"]), 64)
    with pytest.raises(ConfigError, match=r"backbone 'resnet' has no patches, .* set backbone=vit"):
        MaskFeat.check(setup)
