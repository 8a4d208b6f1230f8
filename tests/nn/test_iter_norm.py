import pytest
import torch

from raysl.nn.iter_norm import IterNorm

WIDTH, GROUPS = 6, 2


def rows() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(500, WIDTH, dtype=torch.float64, generator=generator)
    mix = torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=generator) / 4
    return mixed @ (torch.eye(WIDTH, dtype=torch.float64) + mix) + 3


def test_each_group_is_white_after_enough_iterations_and_groups_are_apart() -> None:
    norm = IterNorm(WIDTH, GROUPS, num_iters=15, eps=0.0).double()
    out = norm(rows())
    covariance = (out.T @ out / len(out)).detach()
    for first in (0, 3):
        torch.testing.assert_close(covariance[first : first + 3, first : first + 3], torch.eye(3, dtype=torch.float64))
    assert covariance[:3, 3:].abs().max() > 0.01
    assert out.mean(dim=0).abs().max() < 1e-9


def test_few_iterations_are_newtons() -> None:
    norm, x = IterNorm(WIDTH, 1, num_iters=2).double(), rows()
    centred = x - x.mean(dim=0)
    covariance = centred.T @ centred / len(x) + 1e-5 * torch.eye(WIDTH, dtype=torch.float64)
    normal, p = covariance / covariance.trace(), torch.eye(WIDTH, dtype=torch.float64)
    for _ in range(2):
        p = 0.5 * (3 * p - torch.linalg.matrix_power(p, 3) @ normal)
    torch.testing.assert_close(norm(x).detach(), centred @ p / covariance.trace().sqrt())


def test_evaluation_takes_running_averages() -> None:
    norm, x = IterNorm(WIDTH, GROUPS, num_iters=15, eps=0.0, momentum=1.0).double(), rows()
    trained = norm(x)
    torch.testing.assert_close(norm.eval()(x[:7]), trained[:7])
    half = IterNorm(WIDTH, GROUPS, momentum=0.5).double()
    half(x)
    torch.testing.assert_close(half.running_mean.flatten(), x.mean(dim=0) / 2)


def test_the_gradient_is_that_of_differences() -> None:
    norm = IterNorm(4, 2, num_iters=3).double()
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: norm(x), (x,))


def test_unequal_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="6 features make no 4 equal groups"):
        IterNorm(6, 4)
