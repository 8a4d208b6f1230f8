"""Patches back into images, and normalised predictions back into pixels."""

import pytest
import torch

from raysl.losses import masked_patch_mse, patchify, unnormalise_patches, unpatchify


def test_patches_go_back_to_their_places() -> None:
    images = torch.randn(2, 5, 6, 9)
    patches = patchify(images, 3)
    assert torch.equal(unpatchify(patches, 3, 6, 9), images)
    changed = patches.clone()
    changed[1, 4] = 7.0
    expected = images.clone()
    expected[1, :, 3:6, 3:6] = 7.0
    assert torch.equal(unpatchify(changed, 3, 6, 9), expected)
    for size in ((6, 6), (7, 9)):
        with pytest.raises(ValueError, match="6 patches of 3 pixels do not cover images of"):
            unpatchify(patches, 3, *size)


def test_predictions_without_error_give_the_pixels_back() -> None:
    patches = torch.randn(2, 3, 12, dtype=torch.float64) * 4 + 2
    mean, deviation = patches.mean(dim=2, keepdim=True), (patches.var(dim=2, keepdim=True) + 1e-6).sqrt()
    predictions = (patches - mean) / deviation
    assert masked_patch_mse(predictions, patches, torch.ones(2, 3, dtype=torch.bool)) < 1e-20
    torch.testing.assert_close(unnormalise_patches(predictions, patches), patches)
    assert unnormalise_patches(predictions.half(), patches.float()).dtype == torch.float32
