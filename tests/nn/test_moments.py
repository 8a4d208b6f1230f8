"""Means, products and whitening over the rows of all ranks, against one process with all of them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.nn.moments import centred, products, whitened
from tests.collective_calls import Collectives
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


WIDTHS = {3: "sums", 12: "rows"}
"""What is exchanged of seven rows of so many dimensions: 3 x 3 sums are less than the rows, 12 x 12 are not."""


def in_a_step(width: int, with_itself: bool) -> dict[str, Any]:
    """The loss of a step from products of this rank's rows, the same on all ranks, weighed as the loop does."""
    counts = SHARES if dist.world() > 1 else [sum(SHARES)]
    z = torch.split(numbers(7, 2, width), counts)[dist.rank()].clone().requires_grad_()
    with dist.planned_rows(counts):
        with Collectives() as forward:
            found = products(z[:, 0], z[:, 0 if with_itself else 1], same_loss=True)
        loss = found.pow(3).sum() * len(z) * dist.world() / 7
        with Collectives() as backward:
            loss.backward()
    return {"value": found.detach(), "grad": z.grad, "calls": [forward.names, backward.names]}


@pytest.mark.parametrize("with_itself", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_step_exchanges_sums_or_rows_and_nothing_in_backward(
    width: int, with_itself: bool, run_ranks: RunRanks
) -> None:
    one, ranks = in_a_step(width, with_itself), run_ranks(2, in_a_step, width, with_itself)
    for rank in ranks:
        torch.testing.assert_close(rank["value"], one["value"], rtol=1e-12, atol=1e-12)
        assert rank["calls"] == [{"sums": ["allreduce_"], "rows": ["_allgather_base_"]}[WIDTHS[width]], []]
    grads = torch.cat([rank["grad"] for rank in ranks])
    torch.testing.assert_close(grads, len(ranks) * one["grad"], rtol=1e-11, atol=1e-11)


def test_products_are_taken_in_float32_under_bf16() -> None:
    z = numbers(64, 3).float()
    with torch.autocast("cpu", torch.bfloat16):
        found = products(z, z)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, z.T @ z)


def rows_of(num: int = 40, dim: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(dim, dim, dtype=torch.float64, generator=generator)
    return torch.randn(num, dim, dtype=torch.float64, generator=generator) @ mixed + 3


def test_whitened_rows_are_centred_uncorrelated_and_of_variance_one() -> None:
    rows = rows_of()
    before = rows.clone()
    z = whitened(rows, 4)
    assert torch.equal(rows, before)
    torch.testing.assert_close(z.mean(dim=0), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(z.T @ z / len(z), torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-10)


def test_the_directions_are_those_of_a_singular_value_decomposition() -> None:
    rows = rows_of()
    centred = rows.numpy() - rows.numpy().mean(axis=0)
    left, _, _ = np.linalg.svd(centred, full_matrices=False)
    expected = torch.from_numpy(left[:, :3] * np.sqrt(len(rows)))
    torch.testing.assert_close(whitened(rows, 3).abs(), expected.abs(), rtol=0, atol=1e-10)


def test_directions_without_variance_are_zero_and_no_noise() -> None:
    rows = torch.cat([rows_of(dim=2), torch.full((40, 3), 7.0, dtype=torch.float64)], dim=1)
    z = whitened(rows, 5)
    assert (z[:, :2].var(dim=0) > 0.9).all()
    assert (z[:, 2:] == 0).all()
    assert (whitened(torch.ones(5, 3), 2) == 0).all()


def test_half_types_come_back_as_float32() -> None:
    assert whitened(rows_of().bfloat16(), 2).dtype == torch.float32


@pytest.mark.parametrize("dim", [0, 7])
def test_more_components_than_dimensions_are_refused(dim: int) -> None:
    with pytest.raises(ValueError, match=f"rows of width 6 have no {dim} principal components; keep between 1 and 6"):
        whitened(rows_of(), dim)
    with pytest.raises(ValueError, match="not finite"):
        whitened(torch.full((3, 2), torch.nan), 1)


def _shares() -> Tensor:
    rows = rows_of()
    own = rows[:25] if dist.rank() == 0 else rows[25:] if dist.rank() == 1 else rows[:0]
    return whitened(own, 4)


def test_ranks_with_uneven_rows_or_none_whiten_as_one(run_ranks: RunRanks) -> None:
    found = torch.cat(run_ranks(3, _shares))
    torch.testing.assert_close(found.abs(), whitened(rows_of(), 4).abs(), rtol=0, atol=1e-10)
