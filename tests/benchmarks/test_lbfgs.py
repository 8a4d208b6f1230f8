import pytest
import torch
from torch import Tensor

from raysl.benchmarks.classifiers.logistic_fit import minimise


def quadratics(num: int, width: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Matrices [G, P, P], each worse conditioned than the one before, and where their minima are [G, P]."""
    generator = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(num, width, width, generator=generator, dtype=torch.float64))
    spread = torch.logspace(0, 1, width, dtype=torch.float64) ** torch.arange(1, num + 1)[:, None]
    matrices = basis @ torch.diag_embed(spread) @ basis.transpose(1, 2)
    return matrices.to(dtype), torch.randn(num, width, generator=generator, dtype=torch.float64).to(dtype)


class Bowls:
    """Quadratics, and how often each was looked at."""

    def __init__(self, matrices: Tensor, minima: Tensor) -> None:
        self.matrices, self.minima = matrices, minima
        self.looks = torch.zeros(len(minima), dtype=torch.int64)

    def __call__(self, points: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        self.looks[which] += 1
        away = points - self.minima[which]
        grad = (self.matrices[which] @ away[..., None])[..., 0]
        return 0.5 * (away * grad).sum(dim=1).double(), grad


def test_each_problem_finds_its_minimum_and_then_takes_no_further_part() -> None:
    bowls = Bowls(*quadratics(3, 8))
    found, is_done = minimise(bowls, torch.zeros(3, 8, dtype=torch.float64), 1e-10, 500)
    assert is_done.all()
    torch.testing.assert_close(found, bowls.minima, rtol=1e-8, atol=1e-8)
    assert bowls.looks[0] < bowls.looks[1] < bowls.looks[2]


@pytest.mark.thorough
def test_a_problem_goes_the_same_way_alone_and_among_others() -> None:
    matrices, minima = quadratics(3, 8)
    start = torch.zeros(3, 8, dtype=torch.float64)
    found, _ = minimise(Bowls(matrices, minima), start, 1e-9, 200)
    for place in range(3):
        alone, _ = minimise(Bowls(matrices[place, None], minima[place, None]), start[:1], 1e-9, 200)
        torch.testing.assert_close(alone[0], found[place], rtol=1e-6, atol=1e-6)


@pytest.mark.thorough
def test_it_is_no_slower_than_torchs_own() -> None:
    matrices, minima = quadratics(2, 20)
    ours, theirs = Bowls(matrices[1:], minima[1:]), Bowls(matrices[1:], minima[1:])
    minimise(ours, torch.zeros(1, 20, dtype=torch.float64), 1e-6, 1000)
    point = torch.zeros(1, 20, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [point], max_iter=1000, max_eval=2000, tolerance_grad=1e-6, tolerance_change=0, history_size=10,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        loss, grad = theirs(point.detach(), torch.arange(1))
        point.grad = grad
        return loss[0]

    optimizer.step(closure)
    torch.testing.assert_close(point.detach(), minima[1:], rtol=1e-4, atol=1e-4)
    assert ours.looks[0] <= 1.5 * theirs.looks[0]


def test_a_limit_of_steps_ends_it_and_is_told() -> None:
    bowls = Bowls(*quadratics(2, 8))
    found, is_done = minimise(bowls, torch.zeros(2, 8, dtype=torch.float64), 1e-10, 10)
    assert not is_done[1]
    start, _ = bowls(torch.zeros(2, 8, dtype=torch.float64), torch.arange(2))
    assert (bowls(found, torch.arange(2))[0] < start).all()


def test_where_rounding_leaves_no_step_down_it_ends() -> None:
    bowls = Bowls(*quadratics(2, 8, torch.float32))
    found, is_done = minimise(bowls, torch.zeros(2, 8), 1e-30, 500)
    assert is_done.all()
    assert bowls.looks.max() < 300
    torch.testing.assert_close(found, bowls.minima, rtol=1e-3, atol=1e-3)


def test_a_step_into_infinity_is_halved() -> None:
    def evaluate(points: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        inside = points - points.log()  # its minimum is at 1, NaN below 0
        return inside.sum(dim=1).double(), 1 - 1 / points

    found, is_done = minimise(evaluate, torch.tensor([[0.01], [5.0]], dtype=torch.float64), 1e-8, 100)
    assert is_done.all()
    torch.testing.assert_close(found, torch.ones_like(found))
