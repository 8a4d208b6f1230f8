"""Losses and scores of depths beside loops over pixels."""

import math

import pytest
import torch
from torch import Tensor

from raysl.benchmarks.benchmark import by_name
from raysl.benchmarks.dense.depth_head import gradient_loss, sig_loss
from raysl.benchmarks.dense.depths import SCORE_NAMES, depth_metrics, depth_scores


def depths(seed: int, *shape: int) -> Tensor:
    return 0.2 + 9 * torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(*shape: int) -> tuple[Tensor, Tensor]:
    """Predicted depths, and true ones of which a fifth is unknown."""
    is_known = torch.rand(*shape, generator=torch.Generator().manual_seed(3)) > 0.2
    return depths(1, *shape), depths(2, *shape) * is_known


@pytest.mark.parametrize("has_variance", [True, False])
def test_the_scale_invariant_loss_is_that_of_all_known_pixels(has_variance: bool) -> None:
    predicted, target = pair(2, 5, 7)
    errors = [
        math.log(float(p) + 0.001) - math.log(float(t) + 0.001)
        for p, t in zip(predicted.flatten(), target.flatten(), strict=True) if t > 0
    ]  # fmt: skip
    mean = sum(errors) / len(errors)
    variance = sum((error - mean) ** 2 for error in errors) / (len(errors) - 1)
    expected = math.sqrt(variance * has_variance + 0.15 * mean**2)
    assert sig_loss(predicted, target, has_variance).item() == pytest.approx(expected, rel=1e-9)


def slow_gradients(predicted: Tensor, target: Tensor) -> float:
    """Of each scale: all pairs of known pixels two apart, over the number of known pixels."""
    loss = 0.0
    for step in (1, 2, 4, 6):
        total, num = 0.0, 0
        for p, t in zip(predicted[:, ::step, ::step], target[:, ::step, ::step], strict=True):
            known = {(y, x): math.log(float(p[y, x]) + 0.001) - math.log(float(t[y, x]) + 0.001)
                     for y in range(p.shape[0]) for x in range(p.shape[1]) if t[y, x] > 0}  # fmt: skip
            num += len(known)
            for (y, x), error in known.items():
                total += sum(abs(error - known[other]) for other in ((y + 2, x), (y, x + 2)) if other in known)
        loss += total / num
    return loss


@pytest.mark.parametrize("shape", [(2, 20, 26), (3, 13, 14)])
def test_the_gradient_loss_is_that_of_pairs_two_pixels_apart_at_four_scales(shape: tuple[int, int, int]) -> None:
    predicted, target = pair(*shape)
    assert gradient_loss(predicted, target).item() == pytest.approx(slow_gradients(predicted, target), rel=1e-9)


@pytest.mark.thorough
def test_gradients_are_those_of_finite_differences_and_finite_without_a_pixel() -> None:
    predicted, target = pair(2, 4, 5)
    predicted.requires_grad_()
    assert torch.autograd.gradcheck(lambda depth: sig_loss(depth, target), predicted)
    assert torch.autograd.gradcheck(lambda depth: gradient_loss(depth, target), predicted)
    loss = sig_loss(predicted, torch.zeros_like(target)) + gradient_loss(predicted, torch.zeros_like(target))
    (gradient,) = torch.autograd.grad(loss, predicted)
    assert (gradient == 0).all()


def test_scores_are_those_of_their_definitions() -> None:
    predicted, label = depths(1, 30), depths(2, 30)
    pairs = [(float(p), float(t)) for p, t in zip(predicted, label, strict=True)]
    expected = {
        "rmse": math.sqrt(sum((p - t) ** 2 for p, t in pairs) / 30),
        "abs_rel": sum(abs(p - t) / t for p, t in pairs) / 30,
        "log10": sum(abs(math.log10(p / t)) for p, t in pairs) / 30,
        **{f"delta{n}": sum(max(p / t, t / p) < 1.25**n for p, t in pairs) / 30 for n in (1, 2, 3)},
    }
    assert tuple(expected) == SCORE_NAMES
    assert depth_scores(predicted, label).tolist() == pytest.approx(list(expected.values()))


def test_metrics_are_means_over_images_with_a_pixel_and_tell_what_is_better() -> None:
    images = [depth_scores(depths(n, 20), depths(n + 9, 20)) for n in range(3)]
    empty = depth_scores(torch.zeros(0), torch.zeros(0))
    metrics = by_name(depth_metrics(torch.stack([*images, empty])))
    assert tuple(metrics) == SCORE_NAMES
    assert metrics["rmse"].value == pytest.approx(sum(float(one[0]) for one in images) / 3)
    assert metrics["delta1"].value == pytest.approx(100 * sum(float(one[3]) for one in images) / 3)
    assert [name for name, metric in metrics.items() if metric.is_lower_better] == ["rmse", "abs_rel", "log10"]
    assert (metrics["rmse"].unit, metrics["abs_rel"].unit, metrics["delta1"].unit) == ("m", "", "%")
    assert [name for name, metric in metrics.items() if metric.is_headline] == ["rmse"]
    broken = depth_scores(torch.tensor([math.nan, 2.0]), torch.tensor([1.0, 2.0]))
    assert math.isnan(by_name(depth_metrics(torch.stack([*images, broken])))["rmse"].value), "it is not left out"
