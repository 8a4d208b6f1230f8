import math

import pytest
import torch
from torch import Tensor

from raysl.nn.sinkhorn import sinkhorn


def scores_of(num: int, seed: int = 0) -> Tensor:
    return torch.tanh(torch.randn(num, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))


def slow_codes(scores: Tensor, epsilon: float, num_iters: int) -> list[list[float]]:
    """Algorithm 1 of the paper: scale prototypes, then rows, by turns; each row to a sum of 1 at the end."""
    most = scores.max().item()
    q = [[math.exp((score - most) / epsilon) for score in row] for row in scores.tolist()]
    num_rows, num_prototypes = scores.shape
    for _ in range(num_iters):
        shares = [sum(row[k] for row in q) * num_prototypes for k in range(num_prototypes)]
        q = [[value / shares[k] for k, value in enumerate(row)] for row in q]
        q = [[value / (sum(row) * num_rows) for value in row] for row in q]
    return [[value / sum(row) for value in row] for row in q]


@pytest.mark.parametrize("num_iters", [0, 1, 3, 10])
@pytest.mark.parametrize("epsilon", [0.05, 0.5])
def test_codes_equal_a_slow_loop(epsilon: float, num_iters: int) -> None:
    scores = scores_of(9)
    expected = torch.tensor(slow_codes(scores, epsilon, num_iters), dtype=torch.float64)
    torch.testing.assert_close(sinkhorn(scores, epsilon, num_iters), expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("num_iters", [0, 1, 4])
def test_leading_dimensions_are_balanced_each_by_itself(num_iters: int) -> None:
    scores, extra = scores_of(18).view(2, 9, 4), scores_of(6, seed=1).view(2, 3, 4)
    mask, extra_mask = torch.rand(2, 9) < 0.8, torch.rand(2, 3) < 0.8
    together = sinkhorn(scores, 0.1, num_iters, mask=mask, extra=extra, extra_mask=extra_mask)
    for number in range(2):
        masks = {"mask": mask[number], "extra": extra[number], "extra_mask": extra_mask[number]}
        alone = sinkhorn(scores[number], 0.1, num_iters, **masks)
        torch.testing.assert_close(together[number], alone, rtol=1e-12, atol=1e-15)
    far = torch.cat([scores, scores - 50], dim=1).float()
    assert sinkhorn(far, 0.01).isfinite().all()


def test_further_rows_count_as_if_they_were_the_ranks_own() -> None:
    scores, extra = scores_of(5), scores_of(8, seed=1)
    together = sinkhorn(torch.cat([scores, extra]))
    torch.testing.assert_close(sinkhorn(scores, extra=extra), together[:5], rtol=1e-12, atol=1e-15)
    first = torch.arange(8) < 3
    torch.testing.assert_close(
        sinkhorn(scores, extra=extra, extra_mask=first), sinkhorn(scores, extra=extra[:3]), rtol=1e-12, atol=1e-15
    )
    alone = sinkhorn(scores, extra=extra, extra_mask=first & False)
    torch.testing.assert_close(alone, sinkhorn(scores), rtol=1e-12, atol=1e-15)


def test_rows_that_do_not_count_are_of_no_matter_to_others() -> None:
    scores = scores_of(9)
    mask = torch.tensor([True, False, True, True, False, False, True, True, True])
    torch.testing.assert_close(sinkhorn(scores, mask=mask)[mask], sinkhorn(scores[mask]), rtol=1e-12, atol=1e-15)
    assert sinkhorn(scores.float(), mask=torch.zeros_like(mask)).isfinite().all()


def test_each_code_sums_to_one_and_prototypes_are_used_equally() -> None:
    codes = sinkhorn(scores_of(12), 0.3, num_iters=200)
    torch.testing.assert_close(codes.sum(dim=1), torch.ones(12).double())
    torch.testing.assert_close(codes.sum(dim=0), torch.full((4,), 3.0).double(), rtol=1e-6, atol=0)


def test_equal_scores_give_equal_shares() -> None:
    torch.testing.assert_close(sinkhorn(torch.ones(5, 4)), torch.full((5, 4), 0.25))


@pytest.mark.parametrize("epsilon", [1e-3, 0.05, 100.0])
def test_far_and_infinite_scores_give_finite_codes(epsilon: float) -> None:
    scores = scores_of(6).float()
    scores[0] -= 50  # exp underflows for this row and, below, for a prototype
    scores[:, 1] -= 50
    assert torch.equal(sinkhorn(scores, epsilon).isfinite(), torch.ones(6, 4, dtype=torch.bool))
    scores[2, 0], scores[3, 3] = torch.inf, -torch.inf
    codes = sinkhorn(scores, epsilon)
    torch.testing.assert_close(codes.sum(dim=1), torch.ones(6))
    assert codes[2].argmax() == 0
    assert codes[3, 3] == 0


@pytest.mark.parametrize("num_iters", [2, 3, 4, 10])
def test_entries_that_underflow_in_fp32_do_not_change_its_codes(num_iters: int) -> None:
    scores = 2 * scores_of(40) - 1  # as far as exp(200) apart
    exact = sinkhorn(scores, 0.02, num_iters)
    codes = sinkhorn(scores.float(), 0.02, num_iters)
    torch.testing.assert_close(codes, exact.float(), rtol=0, atol=2e-4)
    assert ((scores - scores.amax()).float() / 0.02).exp().eq(0).any()


def test_hard_codes_are_the_largest_entries() -> None:
    scores = scores_of(9)
    hard = sinkhorn(scores, is_hard=True)
    assert hard.dtype == torch.float64
    assert torch.equal(hard.argmax(dim=1), sinkhorn(scores).argmax(dim=1))
    assert torch.equal(hard.sum(dim=1), torch.ones(9).double())


def test_it_is_computed_in_fp32_at_the_least_and_gives_no_gradient() -> None:
    low = scores_of(6).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        codes = sinkhorn(low)
    assert not codes.requires_grad
    torch.testing.assert_close(codes, sinkhorn(low.float()), rtol=0, atol=0)


def test_no_rows_have_no_codes() -> None:
    assert sinkhorn(torch.ones(0, 4)).shape == (0, 4)
    assert sinkhorn(torch.ones(0, 4), extra=torch.ones(3, 4)).shape == (0, 4)
