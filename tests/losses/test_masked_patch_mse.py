import math
import statistics

import pytest
import torch
from torch import Tensor

from raysl.losses import masked_patch_mse, patchify


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mask_of(*hidden: list[int], length: int = 5) -> Tensor:
    return torch.tensor([[place in row for place in range(length)] for row in hidden])


def slow_loss(predictions: Tensor, patches: Tensor, mask: Tensor, is_normalised: bool) -> float:
    terms = []
    for image, place in mask.nonzero().tolist():
        target = patches[image, place].tolist()
        if is_normalised:
            mean, var = statistics.mean(target), statistics.variance(target)
            target = [(value - mean) / math.sqrt(var + 1e-6) for value in target]
        errors = [(p - t) ** 2 for p, t in zip(predictions[image, place].tolist(), target, strict=True)]
        terms.append(sum(errors) / len(errors))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("is_normalised", [True, False])
def test_it_equals_a_slow_loop_over_masked_patches(is_normalised: bool) -> None:
    predictions, patches, mask = numbers(2, 5, 12), 3 + numbers(2, 5, 12, seed=1), mask_of([0, 2, 3], [1, 2, 4])
    expected = slow_loss(predictions, patches, mask, is_normalised)
    assert masked_patch_mse(predictions, patches, mask, is_normalised).item() == pytest.approx(expected, rel=1e-12)


def test_images_count_alike_however_many_of_their_patches_are_hidden() -> None:
    predictions, patches, mask = numbers(3, 5, 12), numbers(3, 5, 12, seed=1), mask_of([0], [1, 2, 4], [])
    alone = [slow_loss(predictions[i : i + 1], patches[i : i + 1], mask[i : i + 1], True) for i in (0, 1)]
    assert masked_patch_mse(predictions, patches, mask).item() == pytest.approx(sum(alone) / 3, rel=1e-12)


def test_gradients_agree_with_finite_differences_and_are_nought_where_nothing_was_hidden() -> None:
    predictions, patches, mask = numbers(2, 5, 4).requires_grad_(), numbers(2, 5, 4, seed=1), mask_of([0], [3])
    assert torch.autograd.gradcheck(lambda own: masked_patch_mse(own, patches, mask), (predictions,))
    (grad,) = torch.autograd.grad(masked_patch_mse(predictions, patches, mask), predictions)
    assert torch.equal(grad.abs().sum(-1) > 0, mask)


def test_plain_patches_and_images_without_a_mask_are_finite() -> None:
    predictions = torch.ones(2, 5, 12, requires_grad=True)
    loss = masked_patch_mse(predictions, torch.full((2, 5, 12), 255.0), mask_of([0, 1], []))
    loss.backward()
    assert loss.item() == pytest.approx(0.5)
    assert predictions.grad.isfinite().all()


def test_it_is_computed_in_fp32_at_the_least() -> None:
    predictions, patches, mask = numbers(2, 5, 12).bfloat16(), numbers(2, 5, 12, seed=1).bfloat16(), mask_of([0], [3])
    with torch.autocast("cpu", torch.bfloat16):
        low = masked_patch_mse(predictions, patches, mask)
    torch.testing.assert_close(low, masked_patch_mse(predictions.float(), patches.float(), mask), rtol=0, atol=0)
    assert masked_patch_mse(predictions.double(), patches.double(), mask).dtype == torch.float64


def test_patches_hold_their_pixels_by_row_column_and_channel() -> None:
    image = torch.arange(3 * 4 * 6).view(1, 3, 4, 6)
    patches = patchify(image, 2)
    assert patches.shape == (1, 6, 12)
    expected = [image[0, c, 2 + row, 4 + column].item() for row in (0, 1) for column in (0, 1) for c in range(3)]
    assert patches[0, 5].tolist() == expected  # the last patch, of the second row and third column


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="patches of 3 pixels do not cover images of 4 x 6"):
        patchify(torch.ones(1, 3, 4, 6), 3)
    with pytest.raises(ValueError, match=r"must be \[B, L, P\]"):
        masked_patch_mse(torch.ones(2, 5, 4), torch.ones(2, 5, 4), torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="has no variance"):
        masked_patch_mse(torch.ones(2, 5, 1), torch.ones(2, 5, 1), torch.ones(2, 5, dtype=torch.bool))
