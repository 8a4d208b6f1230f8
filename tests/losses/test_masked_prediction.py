import math

import pytest
import torch
from torch import Tensor

from raysl.losses import masked_prediction

MASK = torch.tensor([[[True, False, True], [False, False, False]], [[True, True, True], [False, True, False]]])


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def slow_loss(scores: Tensor, codes: Tensor, mask: Tensor, temperature: float) -> float:
    """Equation 3 of the paper, one view and patch after another."""
    views = []
    for image in range(scores.shape[0]):
        for view in range(scores.shape[1]):
            terms = []
            for patch in range(scores.shape[2]):
                if mask[image, view, patch]:
                    exps = [math.exp(score / temperature) for score in scores[image, view, patch].tolist()]
                    q = codes[image, view, patch].tolist()
                    terms.append(-sum(c * math.log(e / sum(exps)) for c, e in zip(q, exps, strict=True)))
            views.append(sum(terms) / len(terms) if terms else 0.0)
    return sum(views) / len(views)


def test_it_equals_a_slow_loop_in_which_every_view_weighs_the_same() -> None:
    scores, codes = numbers(2, 2, 3, 5), torch.softmax(numbers(2, 2, 3, 5, seed=1), dim=-1)
    found = masked_prediction(scores, codes, MASK, 0.3)
    assert found.item() == pytest.approx(slow_loss(scores, codes, MASK, 0.3), rel=1e-12)


def test_with_all_patches_it_is_ibot_plus_plus_whatever_is_masked() -> None:
    scores, codes = numbers(2, 2, 3, 5), torch.softmax(numbers(2, 2, 3, 5, seed=1), dim=-1)
    terms = []  # equation of TIPSv2: the sum over all patches, masked or not
    for patch_scores, patch_codes in zip(scores.view(-1, 5), codes.view(-1, 5), strict=True):
        exps = [math.exp(score / 0.3) for score in patch_scores.tolist()]
        terms.append(-sum(c * math.log(e / sum(exps)) for c, e in zip(patch_codes.tolist(), exps, strict=True)))
    found = masked_prediction(scores, codes, torch.ones_like(MASK), 0.3)
    assert found.item() == pytest.approx(sum(terms) / len(terms), rel=1e-12)


def test_what_is_not_masked_is_of_no_matter() -> None:
    scores, codes = numbers(2, 2, 3, 5).requires_grad_(), torch.softmax(numbers(2, 2, 3, 5, seed=1), dim=-1)
    masked_prediction(scores, codes, MASK).backward()
    assert scores.grad is not None
    assert torch.equal(scores.grad.abs().sum(dim=-1) > 0, MASK)
    assert masked_prediction(scores, codes, torch.zeros_like(MASK)) == 0


def test_gradients_agree_with_finite_differences_and_none_flows_into_codes() -> None:
    scores, codes = (
        numbers(2, 2, 3, 5).requires_grad_(),
        torch.softmax(numbers(2, 2, 3, 5, seed=1), -1).requires_grad_(),
    )
    assert torch.autograd.gradcheck(lambda own: masked_prediction(own, codes.detach(), MASK, 0.3), (scores,))
    masked_prediction(scores, codes, MASK).backward()
    assert codes.grad is None


@pytest.mark.parametrize("temperature", [1e-3, 100.0])
def test_extremes_are_finite(temperature: float) -> None:
    scores, codes = 50 * numbers(2, 2, 3, 5).float(), torch.eye(5)[torch.zeros(2, 2, 3, dtype=torch.int64)]
    scores.requires_grad_()
    loss = masked_prediction(scores, codes, MASK, temperature)
    loss.backward()
    assert loss.isfinite()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be \[..., M, K\], \[..., M, K\] and \[..., M\]"):
        masked_prediction(torch.ones(2, 2, 3, 5), torch.ones(2, 2, 3, 5), MASK[:, :, :2])
