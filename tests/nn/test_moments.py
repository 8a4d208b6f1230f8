"""Means and products over the rows of all ranks, against one process with all of them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.nn.moments import centred, products
from tests.rank_processes import RunRanks

SHARES = [5, 2]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def covariance_of(z: Tensor) -> tuple[Tensor, Tensor]:
    rows, num_rows = centred(z)
    return products(rows[:, 0], rows[:, 1]) / num_rows, num_rows


def on_rank() -> dict[str, Tensor]:
    z = torch.split(numbers(7, 2, 3), SHARES)[dist.rank()].clone().requires_grad_()
    covariance, num_rows = covariance_of(z)
    covariance.pow(3).sum().backward()
    assert z.grad is not None
    return {"covariance": covariance.detach(), "num_rows": num_rows, "grad": z.grad}


@pytest.fixture(scope="module")
def ranks(run_ranks: RunRanks) -> list[Any]:
    return run_ranks(2, on_rank)


def test_uneven_ranks_have_the_covariance_of_all_rows(ranks: list[Any]) -> None:
    z = numbers(7, 2, 3).numpy()
    for found in ranks:
        assert found["num_rows"].item() == 7
        for i in range(3):
            for j in range(3):
                first, second = z[:, 0, i], z[:, 1, j]
                slow = sum((a - first.mean()) * (b - second.mean()) for a, b in zip(first, second, strict=True)) / 7
                assert found["covariance"][i, j].item() == pytest.approx(slow, rel=1e-12)


def test_its_gradient_is_summed_over_ranks(ranks: list[Any]) -> None:
    z = numbers(7, 2, 3).requires_grad_()
    covariance_of(z)[0].pow(3).sum().backward()
    assert z.grad is not None
    gathered = torch.cat([found["grad"] for found in ranks])
    torch.testing.assert_close(gathered, len(ranks) * z.grad, rtol=1e-12, atol=1e-15)


def test_products_are_taken_in_float32_under_bf16() -> None:
    z = numbers(64, 3).float()
    with torch.autocast("cpu", torch.bfloat16):
        found = products(z, z)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, z.T @ z)
