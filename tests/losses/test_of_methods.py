"""Losses that bear a method's name, against slow loops; the tests of the methods compare whole steps."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses import barlow_twins, byol, co2, dino, ibot, koleo, vicreg
from raysl.nn.moments import covariances, cross_correlation


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def codes_of(*shape: int) -> Tensor:
    return torch.softmax(numbers(*shape, seed=9), dim=-1)


def test_byol_is_the_mean_squared_distance_of_unit_rows() -> None:
    p, target = numbers(5, 3), numbers(5, 3, seed=1)
    slow = 0.0
    for one, other in zip(p.tolist(), target.tolist(), strict=True):
        slow += sum((a / math.hypot(*one) - b / math.hypot(*other)) ** 2 for a, b in zip(one, other, strict=True)) / 5
    assert byol(p, target).item() == pytest.approx(slow, rel=1e-12)


def similarities(row: Tensor, queue: Tensor, temperature: float) -> list[float]:
    weights = [math.exp(float(row @ key) / float(row.norm()) / temperature) for key in queue]
    return [weight / sum(weights) for weight in weights]


def test_co2_is_the_mean_of_both_divergences_between_similarities_to_the_queue() -> None:
    q, keys, queue = numbers(4, 3), numbers(4, 3, seed=1), F.normalize(numbers(6, 3, seed=2), dim=1)
    terms = []
    for query, key in zip(q, keys, strict=True):
        of_query, of_key = similarities(query, queue, 0.3), similarities(key, queue, 0.3)
        pairs = list(zip(of_query, of_key, strict=True))
        there = sum(p * math.log(p / q) for q, p in pairs)
        back = sum(q * math.log(q / p) for q, p in pairs)
        terms.append((there + back) / 2)
    assert co2(q, keys, queue, 0.3).item() == pytest.approx(sum(terms) / 4, rel=1e-12)
    assert co2(q, 3 * q, queue, 0.3).item() == pytest.approx(0.0, abs=1e-15)


def test_gradient_of_co2_is_that_of_finite_differences() -> None:
    q, keys = numbers(3, 4).requires_grad_(), numbers(3, 4, seed=1).requires_grad_()
    queue = F.normalize(numbers(5, 4, seed=2), dim=1)
    assert torch.autograd.gradcheck(lambda *both: co2(*both, queue, 0.3), (q, keys))


@pytest.mark.parametrize("temperature", [1e-4, 1e4])
def test_co2_is_finite_at_extremes_and_computes_in_float32_under_autocast(temperature: float) -> None:
    q, keys = numbers(3, 4).float().requires_grad_(), numbers(3, 4, seed=1).float()
    queue = F.normalize(numbers(5, 4, seed=2).float(), dim=1)
    loss = co2(q, keys, queue, temperature)
    loss.backward()
    assert loss.isfinite()
    assert q.grad is not None
    assert q.grad.isfinite().all()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(co2(q, keys, queue, temperature), loss)


def test_barlow_twins_is_equation_1_with_its_sums() -> None:
    c = numbers(4, 4).tanh()
    out = barlow_twins(c, redundancy=0.3, scale=0.7)
    agreement = sum((1 - c[i, i].item()) ** 2 for i in range(4))
    redundancy = sum(c[i, j].item() ** 2 for i in range(4) for j in range(4) if i != j)
    assert [term.item() for term in out] == pytest.approx(
        [0.7 * (agreement + 0.3 * redundancy), agreement, redundancy], rel=1e-12
    )


def test_dino_predicts_each_large_view_from_all_others() -> None:
    scores, codes = numbers(2, 3, 5), codes_of(2, 2, 5)
    terms = []
    for image in range(2):
        for large in range(2):
            for view in {0, 1, 2} - {large}:
                exps = [math.exp(score / 0.3) for score in scores[image, view].tolist()]
                q = codes[image, large].tolist()
                terms.append(-sum(c * math.log(e / sum(exps)) for c, e in zip(q, exps, strict=True)))
    assert dino(scores, codes, 0.3).item() == pytest.approx(sum(terms) / len(terms), rel=1e-12)


def test_ibot_weighs_the_losses_of_class_tokens_and_patches() -> None:
    mask = torch.tensor([[[True, False], [True, True]]])
    patches = numbers(1, 2, 2, 5, seed=2), codes_of(1, 2, 2, 5)
    out = ibot(numbers(1, 3, 5), codes_of(1, 2, 5), *patches, mask, class_weight=2.0, patch_weight=3.0)
    assert out.class_loss.item() == dino(numbers(1, 3, 5), codes_of(1, 2, 5)).item()
    assert out.loss.item() == pytest.approx(2 * out.class_loss.item() + 3 * out.patch_loss.item(), rel=1e-12)


def test_gradients_of_moments_and_losses_are_those_of_finite_differences() -> None:
    z = numbers(5, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: vicreg(z, covariances(z)).loss, (z,))
    assert torch.autograd.gradcheck(lambda z: barlow_twins(cross_correlation(z)).loss, (z,))


def test_half_types_are_widened_under_autocast() -> None:
    z = numbers(5, 2, 3).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = [vicreg(z, covariances(z)).loss, barlow_twins(cross_correlation(z)).loss, byol(z[:, 0], z[:, 1])]
    exact = z.double()
    expected = [vicreg(exact, covariances(exact)).loss, barlow_twins(cross_correlation(exact)).loss]
    assert [loss.dtype for loss in found] == [torch.float32] * 3
    assert [loss.item() for loss in found[:2]] == pytest.approx([loss.item() for loss in expected], rel=1e-4)


def test_shapes_that_do_not_fit_are_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match=r"a correlation of shape \[2, 3\] must be a square matrix"):
        barlow_twins(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"z \[5, 3, 4\] and .* must be \[B, 2, D\] and two of \[D, D\]"):
        vicreg(torch.zeros(5, 3, 4), covariances(torch.zeros(5, 3, 4)))
    with pytest.raises(ValueError, match="cannot be predicted"):
        dino(torch.zeros(2, 1, 4), torch.zeros(2, 1, 4))
    assert koleo(numbers(3, 2), numbers(3, 2), torch.arange(3)).isfinite()
