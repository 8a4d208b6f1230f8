import pytest
import torch

from raysl.losses import off_diagonal_squares


def test_it_is_a_loop_over_all_pairs_of_other_places() -> None:
    matrix = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    slow = sum(matrix[i, j].item() ** 2 for i in range(5) for j in range(5) if i != j)
    assert off_diagonal_squares(matrix).item() == pytest.approx(slow, rel=1e-12)


def test_no_gradient_reaches_the_diagonal() -> None:
    matrix = torch.randn(5, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    off_diagonal_squares(matrix).backward()
    assert matrix.grad is not None
    assert matrix.grad.diagonal().abs().max() == 0
    expected = 2 * matrix.detach().fill_diagonal_(0)
    torch.testing.assert_close(matrix.grad, expected)
