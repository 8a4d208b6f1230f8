import pytest
import torch

from raysl.losses import UNKNOWN, cluster_cross_entropy


def test_it_is_the_weighted_mean_of_negative_log_shares_over_all_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 2, 5, dtype=torch.float64, generator=generator)
    clusters = torch.tensor([[0, 4], [UNKNOWN, 2], [1, UNKNOWN]])
    weights = torch.rand(3, 2, dtype=torch.float64, generator=generator)
    plain, weighed = [], []
    for row in range(3):
        for view in range(2):
            cluster = int(clusters[row, view])
            term = 0.0 if cluster == UNKNOWN else -float(torch.softmax(logits[row, view], dim=0)[cluster].log())
            plain.append(term)
            weighed.append(term * float(weights[row, view]))
    assert float(cluster_cross_entropy(logits, clusters)) == pytest.approx(sum(plain) / 6, rel=1e-12)
    assert float(cluster_cross_entropy(logits, clusters, weights)) == pytest.approx(sum(weighed) / 6, rel=1e-12)


def test_rows_without_a_cluster_have_no_gradient_and_all_of_them_no_nan() -> None:
    logits = torch.randn(4, 3, requires_grad=True)
    loss = cluster_cross_entropy(logits, torch.full((4,), UNKNOWN))
    loss.backward()
    assert loss == 0
    assert (logits.grad == 0).all()  # type: ignore[union-attr]


def test_half_types_are_computed_in_float32() -> None:
    assert cluster_cross_entropy(torch.randn(2, 3).bfloat16(), torch.tensor([0, 1])).dtype == torch.float32


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"logits \[2, 3\], clusters \[3\] and weights None must be"):
        cluster_cross_entropy(torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"weights \[3\] must be"):
        cluster_cross_entropy(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), torch.zeros(3))
