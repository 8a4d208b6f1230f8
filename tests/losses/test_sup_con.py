import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses import nt_xent, sup_con

LABELS = torch.tensor([3, 1, 3, -1, 1, -1, 7])


def embeddings(num: int, views: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(num, views, 5, dtype=dtype, generator=torch.Generator().manual_seed(0))


def slow_sup_con(z_all: Tensor, rows: list[int], labels: Tensor, temperature: float) -> float:
    """Equation 2 of the paper, one anchor and one positive after another."""
    places = [(n, v) for n in range(len(z_all)) for v in range(z_all.shape[1])]
    total = 0.0
    for i in [(n, v) for n in rows for v in range(z_all.shape[1])]:
        others = [a for a in places if a != i]
        weights = {a: math.exp(F.cosine_similarity(z_all[i], z_all[a], dim=0).item() / temperature) for a in others}
        positives = [a for a in others if a[0] == i[0] or labels[a[0]] == labels[i[0]] != -1]
        total -= sum(math.log(weights[p] / sum(weights.values())) for p in positives) / len(positives)
    return total / (len(rows) * z_all.shape[1])


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_sup_con_equals_a_slow_loop(views: int, temperature: float) -> None:
    z_all, rows = embeddings(7, views), [2, 3, 6]
    loss = sup_con(z_all[rows], z_all, torch.tensor(rows), LABELS, temperature)
    assert loss.item() == pytest.approx(slow_sup_con(z_all, rows, LABELS, temperature), rel=1e-12)


@pytest.mark.parametrize("labels", [torch.full((4,), -1), torch.arange(4)])
def test_without_a_common_label_two_views_give_nt_xent(labels: Tensor) -> None:
    z, rows = embeddings(4, 2), torch.arange(4)
    torch.testing.assert_close(sup_con(z, z, rows, labels, 0.2), nt_xent(z, z, rows, 0.2), rtol=1e-12, atol=0)


def test_ranks_weighed_by_rows_give_the_loss_of_the_whole_batch() -> None:
    z = embeddings(7, 2)
    parts = [torch.tensor([0, 1, 2, 3]), torch.tensor([4]), torch.tensor([5, 6])]
    merged = sum(sup_con(z[rows], z, rows, LABELS) * len(rows) / 7 for rows in parts)
    torch.testing.assert_close(merged, sup_con(z, z, torch.arange(7), LABELS), rtol=1e-12, atol=0)


@pytest.mark.thorough
def test_gradients_of_sup_con_agree_with_finite_differences() -> None:
    z_all, rows = embeddings(7, 2).requires_grad_(), torch.tensor([2, 3])
    z = embeddings(2, 2).roll(1).requires_grad_()
    assert torch.autograd.gradcheck(lambda own, every: sup_con(own, every, rows, LABELS, 0.3), (z, z_all))


@pytest.mark.parametrize("temperature", [1e-4, 1e4])
@pytest.mark.parametrize("scale", [0.0, 1e4])
def test_sup_con_is_finite_at_extremes(temperature: float, scale: float) -> None:
    z = (scale * embeddings(7, 2, torch.float32)).requires_grad_()
    loss = sup_con(z, z, torch.arange(7), LABELS, temperature)
    loss.backward()
    assert loss.isfinite()
    assert z.grad.isfinite().all()


def test_sup_con_is_computed_in_fp32_at_the_least() -> None:
    z, rows = embeddings(7, 2), torch.arange(7)
    assert sup_con(z, z, rows, LABELS).dtype == torch.float64
    low = z.to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        loss = sup_con(low, low, rows, LABELS)
    torch.testing.assert_close(loss, sup_con(low.float(), low.float(), rows, LABELS), rtol=0, atol=0)


def test_sup_con_refuses_a_single_view() -> None:
    z = torch.ones(4, 1, 3)
    with pytest.raises(ValueError, match="at least two views, got 1"):
        sup_con(z, z, torch.arange(4), torch.zeros(4, dtype=torch.int64))
