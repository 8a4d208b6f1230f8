import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses import contrastive, contrastive_accuracy, nt_xent


def embeddings(num: int, views: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(num, views, 5, dtype=dtype, generator=torch.Generator().manual_seed(0))


def slow_nt_xent(z: Tensor, z_all: Tensor, rows: Tensor, temperature: float) -> float:
    """Equation 1 of the paper, one term after another."""
    terms = []
    for image, row in enumerate(rows.tolist()):
        for view in range(z.shape[1]):

            def similarity(other: int, w: int, image: int = image, view: int = view) -> float:
                cosine = F.cosine_similarity(z[image, view], z_all[other, w], dim=0)
                return math.exp(cosine.item() / temperature)

            others = [n for n in range(len(z_all)) if n != row]
            negatives = sum(similarity(n, w) for n in others for w in range(z.shape[1]))
            for positive in range(z.shape[1]):
                if positive != view:
                    near = similarity(row, positive)
                    terms.append(-math.log(near / (near + negatives)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_nt_xent_equals_a_slow_loop(views: int, temperature: float) -> None:
    z_all, rows = embeddings(5, views), torch.tensor([3, 1])
    loss = nt_xent(z_all[rows], z_all, rows, temperature)
    assert loss.item() == pytest.approx(slow_nt_xent(z_all[rows], z_all, rows, temperature), rel=1e-12)


def test_nt_xent_of_two_views_is_a_cross_entropy_over_all_but_oneself() -> None:
    z = embeddings(4, 2)
    flat = F.normalize(z, dim=-1).flatten(0, 1)
    logits = (flat @ flat.T / 0.2).fill_diagonal_(-torch.inf)
    reference = F.cross_entropy(logits, torch.arange(8) ^ 1)
    torch.testing.assert_close(nt_xent(z, z, torch.arange(4), 0.2), reference, rtol=1e-12, atol=0)


def test_ranks_weighed_by_rows_give_the_loss_of_the_whole_batch() -> None:
    z = embeddings(5, 2)
    parts = [torch.tensor([0, 1, 2]), torch.tensor([3]), torch.tensor([4])]
    merged = sum(nt_xent(z[rows], z, rows) * len(rows) / 5 for rows in parts)
    torch.testing.assert_close(merged, nt_xent(z, z, torch.arange(5)), rtol=1e-12, atol=0)


def test_positives_and_negatives_of_the_first_of_two_ranks() -> None:
    """Two images a rank; in rows and columns ordered [rank][view][image], as the masks are usually printed."""
    anchors, keys, own = contrastive._pairs(embeddings(2, 2), embeddings(4, 2), torch.arange(2))
    is_negative = torch.ones(len(anchors), len(keys)).scatter_(1, own, 0)
    by_rank = is_negative.view(2, 2, 2, 2, 2)  # [B, V, rank, image, view]
    golden = [[0, 1, 0, 1, 1, 1, 1, 1], [1, 0, 1, 0, 1, 1, 1, 1]] * 2
    assert by_rank.permute(1, 0, 2, 4, 3).flatten(2).flatten(0, 1).int().tolist() == golden
    assert own.tolist() == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_a_step_down_the_gradient_lowers_nt_xent() -> None:
    z = torch.tensor([[[1, 0, 1], [1, 0, 1]], [[0, 1, 0], [0, 1, 0]]], dtype=torch.float64, requires_grad=True)
    before = nt_xent(z, z, torch.arange(2))
    (grad,) = torch.autograd.grad(before, z)
    stepped = z - grad
    assert nt_xent(stepped, stepped, torch.arange(2)) < before


@pytest.mark.parametrize("views", [2, 3])
def test_gradients_of_nt_xent_agree_with_finite_differences(views: int) -> None:
    z_all, rows = embeddings(4, views).requires_grad_(), torch.tensor([2, 0])
    z = embeddings(2, views).roll(1).requires_grad_()
    assert torch.autograd.gradcheck(lambda own, every: nt_xent(own, every, rows, 0.3), (z, z_all))


def test_nt_xent_is_computed_in_fp32_at_the_least() -> None:
    z, rows = embeddings(4, 2), torch.arange(4)
    assert nt_xent(z, z, rows).dtype == torch.float64
    low = z.to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        loss = nt_xent(low, low, rows)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, nt_xent(low.float(), low.float(), rows), rtol=0, atol=0)


def test_nt_xent_survives_tiny_temperatures_and_extreme_embeddings() -> None:
    z = (1e4 * embeddings(4, 2, torch.float32)).requires_grad_()
    loss = nt_xent(z, z, torch.arange(4), temperature=1e-3)
    loss.backward()
    assert loss.isfinite()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("shape", [(4, 1, 3), (1, 2, 3)])
def test_nt_xent_refuses_what_has_no_positive_or_no_negative(shape: tuple[int, int, int]) -> None:
    z = torch.ones(shape)
    with pytest.raises(ValueError, match="two views and two images"):
        nt_xent(z, z, torch.arange(shape[0]))


def test_contrastive_accuracy_counts_anchors_whose_positive_is_nearest() -> None:
    z = torch.tensor([[[1.0, 0], [1, 0.1]], [[0, 1], [0.1, 1]], [[1, 0.05], [-1, 0]]])
    # the two views of image 1 find each other; image 0's meet a view of image 2 in between; image 2's are far apart
    assert contrastive_accuracy(z, z, torch.arange(3)).item() == pytest.approx(2 / 6)
