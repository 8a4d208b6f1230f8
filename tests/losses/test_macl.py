import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses import dcl, macl, nt_xent


def embeddings(num: int, views: int, seed: int = 0) -> Tensor:
    return torch.randn(num, views, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def slow_macl(z_all: Tensor, rows: list[int], temperature: float, growth: float, threshold: float) -> list[float]:
    """The authors' few lines, one anchor and positive after another: the loss, the alignment and the temperature."""
    num, views = z_all.shape[:2]

    def cosine(i: tuple[int, int], j: tuple[int, int]) -> float:
        return F.cosine_similarity(z_all[i], z_all[j], dim=0).item()

    pairs = [(v, w) for v in range(views) for w in range(views) if v != w]
    alignment = sum(cosine((n, v), (n, w)) for n in range(num) for v, w in pairs) / (num * len(pairs))
    adapted = temperature * (1 + growth * (alignment - threshold))
    terms = []
    for n in rows:
        for v, w in pairs:
            near = math.exp(cosine((n, v), (n, w)) / adapted)
            others = [(m, u) for m in range(num) if m != n for u in range(views)]
            p = near / (near + sum(math.exp(cosine((n, v), other) / adapted) for other in others))
            terms.append(-math.log(p) / (1 - p))
    return [sum(terms) / len(terms), alignment, adapted]


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize(("growth", "threshold"), [(0.5, 0.0), (0.7, 0.3), (0.0, 0.0)])
def test_macl_equals_a_slow_loop(views: int, growth: float, threshold: float) -> None:
    z_all, rows = embeddings(5, views), [3, 1]
    out = macl(z_all[rows], z_all, torch.tensor(rows), 0.2, growth, threshold)
    assert [term.item() for term in out] == pytest.approx(slow_macl(z_all, rows, 0.2, growth, threshold), rel=1e-12)


def test_gradient_is_that_of_constant_weights_at_a_constant_temperature() -> None:
    z, rows = embeddings(4, 2).requires_grad_(), torch.arange(4)
    out = macl(z, z, rows, 0.2)
    found = torch.autograd.grad(out.loss, z)[0]
    units = F.normalize(z, dim=-1).flatten(0, 1)
    cosines = units @ units.T / out.temperature
    own = torch.arange(8).view(4, 2).flip(1).flatten()
    log_p = cosines.masked_fill(torch.eye(8, dtype=torch.bool), -torch.inf).log_softmax(dim=1)[range(8), own]
    weighted = -(log_p / (1 - log_p.exp()).detach()).mean()
    assert weighted.item() == pytest.approx(out.loss.item(), rel=1e-12)
    torch.testing.assert_close(found, torch.autograd.grad(weighted, z)[0], rtol=1e-9, atol=1e-12)


def test_gradient_is_that_of_dcl_at_the_adapted_temperature_and_the_alignment_is_1_where_views_are_alike() -> None:
    z, rows = embeddings(4, 3).requires_grad_(), torch.arange(4)
    out = macl(z, z, rows, 0.2)
    theirs = torch.autograd.grad(dcl(z, z, rows, out.temperature.item()), z)[0]
    torch.testing.assert_close(torch.autograd.grad(out.loss, z)[0], theirs, rtol=1e-9, atol=1e-12)
    alike = embeddings(4, 1).expand(4, 2, 5)
    assert macl(alike, alike, rows, 0.2, 0.5, 0.2).temperature.item() == pytest.approx(0.2 * 1.4)


def test_far_from_its_positive_a_term_is_that_of_nt_xent() -> None:
    z = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]], [[1.0, 0.1], [-1.0, 0.1]]], dtype=torch.float64)
    rows = torch.arange(2)
    out = macl(z, z, rows, 0.05, growth=0.0)
    assert out.loss.item() == pytest.approx(nt_xent(z, z, rows, 0.05).item(), rel=1e-9)


def test_ranks_weighed_by_rows_give_the_loss_of_the_whole_batch() -> None:
    z = embeddings(5, 2)
    parts = [torch.tensor([0, 1, 2]), torch.tensor([3]), torch.tensor([4])]
    merged = sum(macl(z[rows], z, rows).loss * len(rows) / 5 for rows in parts)
    torch.testing.assert_close(merged, macl(z, z, torch.arange(5)).loss, rtol=1e-12, atol=0)


@pytest.mark.parametrize("temperature", [1e-4, 1e4])
@pytest.mark.parametrize("is_collapsed", [False, True])
def test_loss_and_gradient_are_finite_at_extremes(temperature: float, is_collapsed: bool) -> None:
    z = embeddings(4, 1).expand(4, 2, 5).float().clone()
    z = (torch.zeros_like(z) if is_collapsed else z).requires_grad_()
    out = macl(z, z, torch.arange(4), temperature)
    out.loss.backward()
    assert out.loss.isfinite()
    assert z.grad is not None
    assert z.grad.isfinite().all()
    if temperature == 1e-4 and not is_collapsed:
        assert out.loss.item() == pytest.approx(1.0)  # -log P / (1 - P) where P is 1
