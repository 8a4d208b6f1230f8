from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysl import dist
from tests.distributed import run_ranks

COUNTS = [2, 0, 3]


def whole() -> Tensor:
    return torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def cross_terms(rows: Tensor, everything: Tensor, rank: int) -> Tensor:
    """A loss that differs between ranks and couples their rows."""
    return (rank + 1) * (rows @ everything.T).pow(3).sum() + everything.pow(2).sum() * (rank + 2)


def on_three_ranks() -> dict[str, Any]:
    rank = dist.rank()
    rows = torch.split(whole(), COUNTS)[rank].clone().requires_grad_()
    gathered = dist.all_gather(rows)
    cross_terms(rows, gathered, rank).backward()
    value = torch.full((2,), rank + 1.0, dtype=torch.float64, requires_grad=True)
    (dist.all_sum(value).pow(2).sum() * (rank + 1)).backward()
    sum_grad, value.grad = value.grad, None
    dist.all_mean(value).pow(2).sum().backward()
    strided = torch.full((2, 3, 4, 4), float(rank)).to(memory_format=torch.channels_last)
    dist.broadcast([strided])
    averaged = torch.full((3,), float(rank))
    dist.average_([averaged])
    return {
        "gathered": gathered.detach(),
        "integers": dist.all_gather(torch.arange(COUNTS[rank]) + 10 * rank),
        "own_rows": dist.own_rows(rows),
        "row_counts": dist.row_counts(len(rows)),
        "gather_grad": rows.grad,
        "sum_grad": sum_grad,
        "mean_grad": value.grad,
        "broadcast": strided,
        "average": averaged,
        "all_true": [dist.all_true(True), dist.all_true(rank != 1)],
        "uninterrupted": train(4, stop_at=None),
        "resumed": train(4, stop_at=2),
        "averaged_grad": averaged_gradient(),
    }


def train(num_steps: int, stop_at: int | None) -> list[Tensor]:
    """Weights after some steps of SGD, with a new start from the weights and nothing else at `stop_at`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 700), nn.Tanh(), nn.Linear(700, 600), nn.Tanh(), nn.Linear(600, 3))
    wrapped = dist.data_parallel(model)
    for step in range(num_steps):
        if step == stop_at:
            weights = {name: value.clone() for name, value in model.state_dict().items()}
            model = nn.Sequential(nn.Linear(200, 700), nn.Tanh(), nn.Linear(700, 600), nn.Tanh(), nn.Linear(600, 3))
            model.load_state_dict(weights)
            wrapped = dist.data_parallel(model)
        images = torch.randn(4, 200, generator=torch.Generator().manual_seed(100 * step + dist.rank()))
        wrapped(images).pow(2).mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    return [parameter.detach().clone() for parameter in model.parameters()]


def averaged_gradient() -> Tensor:
    model = nn.Linear(1, 1, bias=False)
    wrapped = dist.data_parallel(model)
    (wrapped(torch.ones(1, 1)) * (dist.rank() + 1)).sum().backward()
    return model.weight.grad


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run_ranks(3, on_three_ranks)


def test_all_gather_joins_uneven_rows_in_rank_order(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert torch.equal(rank["gathered"], whole())
        assert rank["row_counts"] == COUNTS
        assert rank["integers"].tolist() == [0, 1, 20, 21, 22]
    assert [rank["own_rows"].tolist() for rank in ranks] == [[0, 1], [], [2, 3, 4]]


def test_gradient_of_all_gather_is_that_of_one_process(ranks: list[dict[str, Any]]) -> None:
    everything = whole().requires_grad_()
    parts = torch.split(everything, COUNTS)
    sum(cross_terms(part, everything, rank) for rank, part in enumerate(parts)).backward()
    torch.testing.assert_close(torch.cat([rank["gather_grad"] for rank in ranks]), everything.grad, rtol=1e-12, atol=0)


def test_gradients_of_sums_and_means_are_summed_over_ranks(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["sum_grad"].tolist() == [72.0, 72.0]  # d/dx of (1 + 2 + 3) * (sum of x)^2 with sum 6
        torch.testing.assert_close(rank["mean_grad"], torch.full((2,), 4.0, dtype=torch.float64))  # 3 * 2 * mean / 3


def test_broadcast_average_and_all_true_agree_on_all_ranks(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert torch.equal(rank["broadcast"], torch.zeros(2, 3, 4, 4))
        assert rank["average"].tolist() == [1.0] * 3
        assert rank["all_true"] == [True, False]


def test_data_parallel_averages_gradients(ranks: list[dict[str, Any]]) -> None:
    assert [rank["averaged_grad"].item() for rank in ranks] == [2.0] * 3


def test_a_new_start_at_three_ranks_changes_no_bit(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        for resumed, uninterrupted in zip(rank["resumed"], rank["uninterrupted"], strict=True):
            assert torch.equal(resumed, uninterrupted)


def test_one_process_is_the_identity() -> None:
    rows = torch.randn(3, 2)
    model = nn.Linear(2, 2)
    assert dist.all_gather(rows) is rows
    assert dist.all_sum(rows) is rows
    assert dist.own_rows(rows).tolist() == [0, 1, 2]
    assert dist.data_parallel(model) is model
    assert dist.is_main()
