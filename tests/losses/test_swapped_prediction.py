import math

import pytest
import torch
from torch import Tensor

from raysl.losses import swapped_prediction


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def slow_loss(scores: Tensor, codes: Tensor, crops: list[int], temperature: float) -> float:
    """Equation 6 of the paper, one cross entropy after another."""
    images = []
    for image in range(len(scores)):
        by_code = []
        for place, crop in enumerate(crops):
            terms = []
            for view in range(scores.shape[1]):
                if view != crop:
                    exps = [math.exp(score / temperature) for score in scores[image, view].tolist()]
                    q = codes[image, place].tolist()
                    terms.append(-sum(c * math.log(e / sum(exps)) for c, e in zip(q, exps, strict=True)))
            by_code.append(sum(terms) / len(terms))
        images.append(sum(by_code) / len(by_code))
    return sum(images) / len(images)


@pytest.mark.parametrize(("views", "crops"), [(2, [0, 1]), (5, [0, 1]), (4, [2])])
def test_it_equals_a_slow_loop(views: int, crops: list[int]) -> None:
    scores, codes = numbers(3, views, 6), torch.softmax(numbers(3, len(crops), 6, seed=1), dim=-1)
    expected = slow_loss(scores, codes, crops, 0.3)
    assert swapped_prediction(scores, codes, crops, 0.3).item() == pytest.approx(expected, rel=1e-12)


def test_equal_scores_cost_the_log_of_the_number_of_prototypes() -> None:
    codes = torch.softmax(numbers(3, 2, 6), dim=-1)
    assert swapped_prediction(torch.ones(3, 4, 6), codes, [0, 1]).item() == pytest.approx(math.log(6))


def test_gradients_agree_with_finite_differences_and_none_flows_into_codes() -> None:
    scores, codes = numbers(2, 3, 4).requires_grad_(), torch.softmax(numbers(2, 2, 4, seed=1), -1).requires_grad_()
    assert torch.autograd.gradcheck(lambda own: swapped_prediction(own, codes.detach(), [0, 1], 0.3), (scores,))
    swapped_prediction(scores, codes, [0, 1]).backward()
    assert codes.grad is None


@pytest.mark.parametrize("temperature", [1e-3, 100.0])
@pytest.mark.parametrize("is_collapsed", [True, False])
def test_it_is_finite_at_extreme_temperatures_and_for_hard_codes(temperature: float, is_collapsed: bool) -> None:
    scores = (torch.ones(3, 4, 6) if is_collapsed else numbers(3, 4, 6).float()).requires_grad_()
    codes = torch.eye(6)[:3, None].expand(3, 2, 6)
    loss = swapped_prediction(scores, codes, [0, 1], temperature)
    loss.backward()
    assert loss.isfinite()
    assert scores.grad.isfinite().all()


def test_it_is_computed_in_fp32_at_the_least() -> None:
    scores, codes = numbers(3, 4, 6).bfloat16(), torch.softmax(numbers(3, 2, 6).float(), dim=-1)
    with torch.autocast("cpu", torch.bfloat16):
        low = swapped_prediction(scores, codes, [0, 1])
    torch.testing.assert_close(low, swapped_prediction(scores.float(), codes, [0, 1]), rtol=0, atol=0)
    assert swapped_prediction(scores.double(), codes, [0, 1]).dtype == torch.float64


@pytest.mark.parametrize(("views", "crops"), [(1, [0]), (3, [0, 1, 2]), (3, [0, 3])])
def test_codes_of_views_that_are_not_there_are_refused(views: int, crops: list[int]) -> None:
    with pytest.raises(ValueError, match="cannot be predicted from the other views"):
        swapped_prediction(torch.ones(2, views, 4), torch.ones(2, min(len(crops), 2), 4), crops)
