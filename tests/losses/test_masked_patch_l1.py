import pytest
import torch

from raysl.losses import masked_patch_l1
from tests.losses.test_masked_patch_mse import mask_of, numbers


def test_it_equals_a_slow_loop_over_masked_patches() -> None:
    predictions, patches, mask = numbers(2, 5, 12), numbers(2, 5, 12, seed=1), mask_of([0, 2, 3], [1, 2, 4])
    terms = [
        abs(predictions[image, place, value].item() - patches[image, place, value].item())
        for image, place in mask.nonzero().tolist()
        for value in range(12)
    ]
    assert masked_patch_l1(predictions, patches, mask).item() == pytest.approx(sum(terms) / len(terms), rel=1e-12)


def test_gradients_agree_with_finite_differences_and_are_nought_where_nothing_was_hidden() -> None:
    predictions, patches, mask = numbers(2, 5, 4).requires_grad_(), numbers(2, 5, 4, seed=1), mask_of([0], [3])
    assert torch.autograd.gradcheck(lambda own: masked_patch_l1(own, patches, mask), (predictions,))
    (grad,) = torch.autograd.grad(masked_patch_l1(predictions, patches, mask), predictions)
    assert torch.equal(grad.abs().sum(-1) > 0, mask)


def test_it_is_computed_in_fp32_at_the_least() -> None:
    predictions, patches, mask = numbers(2, 5, 12).bfloat16(), numbers(2, 5, 12, seed=1).bfloat16(), mask_of([0], [3])
    found = masked_patch_l1(predictions, patches, mask)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, masked_patch_l1(predictions.float(), patches.float(), mask))


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be \[B, L, P\], \[B, L, P\] and \[B, L\]"):
        masked_patch_l1(numbers(2, 5, 12), numbers(2, 5, 11), mask_of([0], [3]))
