import cmath
import math
from statistics import NormalDist

import pytest
import torch
from lightly.loss.lejepa_loss import SIGReg
from torch import Tensor

from raysl.losses import characteristic_sums, epps_pulley, quantile_distance, visreg


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def slow_statistic(x: list[float], t_max: float, num_points: int) -> float:
    """The integral from -t_max to t_max, a frequency and a number after another."""
    points = [t_max * n / (num_points - 1) for n in range(1 - num_points, num_points)]
    heights = []
    for s in points:
        empirical = sum(cmath.exp(1j * s * value) for value in x) / len(x)
        heights.append(abs(empirical - math.exp(-s * s / 2)) ** 2 * math.exp(-s * s / 2))
    width = points[1] - points[0]
    return len(x) * width * (sum(heights) - (heights[0] + heights[-1]) / 2)


def test_statistic_is_the_integral_of_the_paper() -> None:
    x, t = numbers(11, 3), torch.linspace(0, 5, 9, dtype=torch.float64)
    found = epps_pulley(characteristic_sums(x, t), len(x), t)
    expected = [slow_statistic(column.tolist(), 5, 9) for column in x.unbind(dim=1)]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


def test_statistic_is_lightlys() -> None:
    peer = SIGReg(knots=17, t_max=3.0, num_vectors=32).double()
    z = numbers(7, 3, 16)  # [B, V, E]
    torch.manual_seed(5)
    theirs = peer(z.transpose(0, 1))
    torch.manual_seed(5)
    slices = torch.randn(16, 32, dtype=torch.float64)
    slices = slices / slices.norm(dim=0)
    ours = [epps_pulley(characteristic_sums(view @ slices, peer.t), len(z), peer.t) for view in z.unbind(dim=1)]
    assert torch.stack(ours).mean().item() == pytest.approx(theirs.item(), rel=1e-6)


@pytest.mark.thorough
def test_gradient_is_that_of_finite_differences() -> None:
    x, t = numbers(4, 2, 3).requires_grad_(), torch.linspace(0, 3, 5, dtype=torch.float64)
    torch.autograd.gradcheck(lambda rows: characteristic_sums(rows, t), x)
    torch.autograd.gradcheck(lambda rows: epps_pulley(characteristic_sums(rows, t), 4, t), x)


def test_sums_of_parts_add_up() -> None:
    x, t = numbers(9, 4), torch.linspace(0, 3, 17, dtype=torch.float64)
    parts = characteristic_sums(x[:4], t) + characteristic_sums(x[4:], t)
    torch.testing.assert_close(parts, characteristic_sums(x, t), rtol=1e-13, atol=1e-13)


def test_the_backward_pass_keeps_the_numbers_alone() -> None:
    kept: list[int] = []
    x, t = numbers(64, 8).requires_grad_(), torch.linspace(0, 3, 17, dtype=torch.float64)

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        characteristic_sums(x, t)
    assert sum(kept) == x.numel() + len(t)


def test_half_types_are_summed_in_float32() -> None:
    x, t = numbers(5, 2).bfloat16(), torch.linspace(0, 3, 5)
    assert characteristic_sums(x, t).dtype == torch.float32


def directions(width: int, num: int) -> Tensor:
    slices = torch.randn(width, num, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    return slices / slices.norm(dim=0)


def slow_visreg(z: Tensor, slices: Tensor, eps: float) -> tuple[float, float, float]:
    """The three terms of embeddings [N, V, D], a view, a dimension, a direction and an image after another."""
    num, num_views, width = z.shape
    centre = scale = shape = 0.0
    for view in range(num_views):
        normal = []  # of each dimension, the numbers of all images
        for d in range(width):
            column = z[:, view, d].tolist()
            mean = sum(column) / num
            std = math.sqrt(sum((value - mean) ** 2 for value in column) / num) + eps
            centre += mean**2 / (num_views * width)
            scale += (std - 1) ** 2 / (num_views * width)
            normal.append([(value - mean) / std for value in column])
        for direction in slices.T.tolist():
            projected = sorted(sum(normal[d][n] * direction[d] for d in range(width)) for n in range(num))
            for place, value in enumerate(projected, start=1):
                distance = value - NormalDist().inv_cdf(place / (num + 1))
                shape += distance**2 / (num_views * slices.shape[1] * num)
    return centre, scale, shape


def test_terms_of_visreg_are_those_of_a_slow_loop() -> None:
    z, slices = 2 * numbers(7, 3, 5) + 1, directions(5, 4)
    for eps in (1e-6, 0.1):
        assert [term.item() for term in visreg(z, slices, eps)] == pytest.approx(slow_visreg(z, slices, eps), rel=1e-9)


def test_terms_of_visreg_have_the_gradient_of_finite_differences() -> None:
    z, slices = numbers(6, 2, 3).requires_grad_(), directions(3, 5)
    torch.autograd.gradcheck(lambda rows: visreg(rows, slices)[:2], z)
    torch.autograd.gradcheck(quantile_distance, numbers(3, 7).requires_grad_())
    # the deviations, through which the shape has no gradient, are held at those of z
    std = z.detach().std(dim=0, correction=0) + 1e-6

    def held(rows: Tensor) -> Tensor:
        normal = (rows - rows.mean(dim=0)) / std
        return quantile_distance((normal @ slices).movedim(0, -1))

    torch.autograd.gradcheck(held, z)
    (found,) = torch.autograd.grad(visreg(z, slices).shape, z)
    (expected,) = torch.autograd.grad(held(z), z)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_shape_of_visreg_does_not_depend_on_mean_and_scale() -> None:
    z, slices = numbers(9, 2, 4), directions(4, 6)
    shift, factor = torch.tensor([3.0, -1.0, 0.0, 5.0]), torch.tensor([0.5, 2.0, 10.0, 1.0])
    expected = visreg(z, slices).shape.item()
    assert visreg(z * factor + shift, slices).shape.item() == pytest.approx(expected, rel=1e-5)


def test_scale_of_visreg_pushes_embeddings_apart_that_are_nearly_one() -> None:
    sizes = []
    for spread in (1e-1, 1e-4):
        z = (spread * numbers(8, 1, 3)).requires_grad_()
        (grad,) = torch.autograd.grad(visreg(z, directions(3, 2), eps=1e-12).scale, z)
        sizes.append(grad.norm().item())
    assert sizes[1] > sizes[0] > 0.1
    still = torch.ones(8, 1, 3, requires_grad=True)
    terms = visreg(still, directions(3, 2))
    (grad,) = torch.autograd.grad(sum(terms), still)
    assert grad.isfinite().all()


def test_terms_of_visreg_are_lightlys() -> None:
    peers = pytest.importorskip("lightly.loss.visreg_loss")
    z = numbers(7, 3, 16)  # [N, V, D]
    torch.manual_seed(5)
    shape = peers.visreg_shape_loss(z.transpose(0, 1), num_slices=32, eps=1e-6)
    torch.manual_seed(5)
    slices = torch.randn(16, 32, dtype=torch.float64)
    found = visreg(z, slices / slices.norm(dim=0))
    assert found.centre.item() == pytest.approx(peers.visreg_center_loss(z.transpose(0, 1)).item(), rel=1e-12)
    assert found.scale.item() == pytest.approx(peers.visreg_scale_loss(z.transpose(0, 1)).item(), rel=1e-4)
    # lightly's quantiles are float32
    assert found.shape.item() == pytest.approx(shape.item(), rel=1e-5)


def test_terms_of_visreg_in_half_types_are_those_of_float32() -> None:
    z, slices = numbers(6, 2, 3).bfloat16(), directions(3, 5).float()
    with torch.autocast("cpu", torch.bfloat16):
        found = visreg(z, slices)
    assert [term.dtype for term in found] == [torch.float32] * 3
    assert [term.item() for term in found] == pytest.approx([term.item() for term in visreg(z.float(), slices)])
