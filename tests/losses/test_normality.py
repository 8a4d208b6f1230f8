import cmath
import math

import pytest
import torch
from lightly.loss.lejepa_loss import SIGReg
from torch import Tensor

from raysl.losses import characteristic_sums, epps_pulley


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
