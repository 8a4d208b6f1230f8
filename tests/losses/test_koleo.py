import math

import pytest
import torch
from torch import Tensor

from raysl.losses import koleo


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def slow_loss(z: Tensor, rows: list[int]) -> float:
    """-log of the distance to the nearest other, one row after another."""
    units = [row / math.sqrt(sum(value**2 for value in row.tolist())) for row in z]
    terms = []
    for row in rows:
        distances = [math.dist(units[row].tolist(), units[j].tolist()) for j in range(len(units)) if j != row]
        terms.append(-math.log(min(distances)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [1, 2], [5]])
def test_it_equals_a_slow_loop_over_this_ranks_rows(rows: list[int]) -> None:
    z = numbers(6, 4)
    found = koleo(z[rows], z, torch.tensor(rows))
    assert found.item() == pytest.approx(slow_loss(z, rows), rel=1e-7)


def test_gradients_agree_with_finite_differences_and_reach_both_ends() -> None:
    z = numbers(5, 3).requires_grad_()
    rows = torch.arange(5)
    assert torch.autograd.gradcheck(lambda own: koleo(own, own, rows), (z,))
    others = numbers(5, 3).requires_grad_()
    koleo(numbers(5, 3), others, rows).backward()
    assert others.grad is not None
    assert others.grad.abs().max() > 0


def test_rows_that_are_spread_cost_less_than_rows_that_are_near() -> None:
    corners, near = torch.eye(4), torch.ones(4, 4) + 0.01 * torch.eye(4)
    rows = torch.arange(4)
    assert koleo(corners, corners, rows).item() == pytest.approx(-math.log(math.sqrt(2)), rel=1e-5)
    assert koleo(near, near, rows) > 4


def test_equal_rows_and_a_row_alone_are_finite() -> None:
    for num in (1, 4):
        z = torch.ones(num, 3, requires_grad=True)
        loss = koleo(z, z, torch.arange(num))
        loss.backward()
        assert loss.item() == pytest.approx(-math.log(1e-8))
        assert z.grad is not None
        assert z.grad.isfinite().all()


def test_half_types_are_computed_in_fp32() -> None:
    z = numbers(6, 4).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert koleo(z, z, torch.arange(6)).dtype == torch.float32
