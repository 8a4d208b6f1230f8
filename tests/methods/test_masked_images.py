"""What all methods that hide patches of an image have in common."""

import pytest
import torch

from raysl.components import resolve
from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.optim.groups import split_groups
from raysl.plan.setup import Setup
from raysl.schedule import Step
from tests.methods.masked_images import HALVES, SETTINGS, batch_of, small

STEP = Step(0, 10, 5)
OF_PATCHES = ("aim", "capi", "data2vec", "ibot", "ijepa", "mae", "maskfeat", "simmim")
FROM_TOKENS = ("maskfeat", "simmim")
"""Methods that predict from the tokens of hidden patches themselves, without a decoder."""


@pytest.mark.parametrize("name", SETTINGS)
def test_flat_and_huge_images_leave_the_loss_finite(name: str) -> None:
    for images in (torch.zeros(2, 1, 3, 16, 16), 1e6 * torch.randn(2, 1, 3, 16, 16)):
        method = small(name).float()
        out = method(batch_of(HALVES, images), STEP)
        out.loss.backward()
        assert out.loss.isfinite()
        assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)
        assert tuple(out.metrics) == type(method).logged


@pytest.mark.parametrize("name", SETTINGS)
def test_half_precision_gives_a_loss_in_fp32_and_trains_the_mask_token(name: str) -> None:
    method = small(name).float()
    with torch.autocast("cpu", torch.bfloat16):
        out = method(batch_of(HALVES, torch.randn(2, 1, 3, 16, 16)), STEP)
    assert out.loss.dtype == torch.float32
    out.loss.backward()
    owner = method.decoder if hasattr(method, "decoder") else method.backbone
    assert owner.mask_token.grad.abs().max() > 0


@pytest.mark.parametrize("name", FROM_TOKENS)
def test_predictions_know_nothing_of_masked_pixels(name: str) -> None:
    method, batch = small(name), batch_of(HALVES)
    other = batch.views["global"].clone()
    for image, places in enumerate(HALVES):
        for place in places:
            row, column = place // 4 * 4, place % 4 * 4
            other[image, :, :, row : row + 4, column : column + 4] = 9.0
    mask = batch.extras["global.mask"].flatten(0, 1)
    first, second = (method.backbone.tokens(images.flatten(0, 1), mask) for images in (batch.views["global"], other))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("name", FROM_TOKENS)
def test_the_mask_token_trains_without_weight_decay_and_goes_out_with_the_backbone(name: str) -> None:
    method = small(name)
    method(batch_of(HALVES), STEP).loss.backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in method.parameters())
    _, excluded = split_groups(method, method.setup.config.optim)
    assert any(parameter is method.backbone.mask_token for parameter in excluded["params"])
    assert method.export() is method.backbone


@pytest.mark.parametrize("name", OF_PATCHES)
def test_a_backbone_without_patches_is_refused(name: str) -> None:
    setup = Setup.of(load_config("quickstart", [f"method={name}"]), 64)
    with pytest.raises(ConfigError, match=r"backbone 'resnet' has no patches, .* set backbone=vit"):
        resolve("method", name).check(setup)
