import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses import dcl, nt_xent


def embeddings(num: int, views: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(num, views, 5, dtype=dtype, generator=torch.Generator().manual_seed(0))


def slow_dcl(z_all: Tensor, rows: list[int], temperature: float, sigma: float | None) -> float:
    """Equations 5 and 6 of the paper, one pair of views after another."""
    num, views = z_all.shape[:2]

    def cosine(i: tuple[int, int], j: tuple[int, int]) -> float:
        return F.cosine_similarity(z_all[i], z_all[j], dim=0).item()

    terms = []
    for n in rows:
        for v in range(views):
            others = [(m, w) for m in range(num) if m != n for w in range(views)]
            far = math.log(sum(math.exp(cosine((n, v), other) / temperature) for other in others))
            for w in (w for w in range(views) if w != v):
                near, weight = cosine((n, v), (n, w)), 1.0
                if sigma is not None:
                    mean = sum(math.exp(cosine((m, v), (m, w)) / sigma) for m in range(num)) / num
                    weight = 2 - math.exp(near / sigma) / mean
                terms.append(-weight * near / temperature + far)
    return sum(terms) / len(terms)


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("sigma", [None, 0.5, 2.0])
def test_dcl_equals_a_slow_loop(views: int, sigma: float | None) -> None:
    z_all, rows = embeddings(5, views), [3, 1]
    loss = dcl(z_all[rows], z_all, torch.tensor(rows), 0.2, sigma)
    assert loss.item() == pytest.approx(slow_dcl(z_all, rows, 0.2, sigma), rel=1e-12)


def test_the_positive_that_is_left_out_is_all_that_nt_xent_has_more() -> None:
    z, rows = embeddings(4, 2), torch.arange(4)
    unit = F.normalize(z, dim=-1)
    near = (unit[:, 0] * unit[:, 1]).sum(-1)[:, None] / 0.2  # [N, 1]
    cosines = torch.einsum("nvd,mwd->nvmw", unit, unit) / 0.2
    far = torch.stack([cosines[n][:, torch.arange(4) != n].flatten(1).logsumexp(1) for n in range(4)])  # [N, V]
    more = torch.logaddexp(near.expand(4, 2), far) - far
    torch.testing.assert_close(nt_xent(z, z, rows, 0.2) - dcl(z, z, rows, 0.2), more.mean(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("sigma", [None, 0.5])
def test_ranks_weighed_by_rows_give_the_loss_of_the_whole_batch(sigma: float | None) -> None:
    z = embeddings(5, 2)
    parts = [torch.tensor([0, 1, 2]), torch.tensor([3]), torch.tensor([4])]
    merged = sum(dcl(z[rows], z, rows, sigma=sigma) * len(rows) / 5 for rows in parts)
    torch.testing.assert_close(merged, dcl(z, z, torch.arange(5), sigma=sigma), rtol=1e-12, atol=0)


@pytest.mark.thorough
@pytest.mark.parametrize("sigma", [None, 0.5])
def test_gradients_of_dcl_agree_with_finite_differences(sigma: float | None) -> None:
    z_all, rows = embeddings(4, 2).requires_grad_(), torch.tensor([2, 0])
    z = embeddings(2, 2).roll(1).requires_grad_()
    assert torch.autograd.gradcheck(lambda own, every: dcl(own, every, rows, 0.3, sigma), (z, z_all))


@pytest.mark.parametrize("temperature", [1e-4, 1e4])
@pytest.mark.parametrize("sigma", [None, 1e-2, 1e4])
@pytest.mark.parametrize("is_collapsed", [False, True])
def test_dcl_is_finite_at_extremes(temperature: float, sigma: float | None, is_collapsed: bool) -> None:
    z = (0.0 if is_collapsed else 1e4) * embeddings(4, 2, torch.float32)
    z.requires_grad_()
    loss = dcl(z, z, torch.arange(4), temperature, sigma)
    loss.backward()
    assert loss.isfinite()
    assert z.grad.isfinite().all()


def test_dcl_is_computed_in_fp32_at_the_least() -> None:
    z, rows = embeddings(4, 2), torch.arange(4)
    assert dcl(z, z, rows, sigma=0.5).dtype == torch.float64
    low = z.to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        loss = dcl(low, low, rows, sigma=0.5)
    torch.testing.assert_close(loss, dcl(low.float(), low.float(), rows, sigma=0.5), rtol=0, atol=0)
