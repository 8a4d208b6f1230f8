import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from raysl.benchmarks.instance_retrieval.pooling import LEAST, Moments


def rows(num: int = 60, dim: int = 5, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(num, dim, generator=generator) @ torch.randn(dim, dim, generator=generator)
    return mixed + torch.arange(dim)


@pytest.mark.parametrize("dim", [None, 3])
def test_it_is_scikit_learns_pca(dim: int | None) -> None:
    moments = Moments(5)
    for part in torch.split(rows(), 7):
        moments.add(part)
    others = rows(20, seed=1)
    # signs of directions are free, and scikit-learn divides by N - 1
    expected = PCA(dim, whiten=True).fit(rows().numpy()).transform(others.numpy()) * np.sqrt(60 / 59)
    found = moments.whitening(dim)(others).numpy()
    assert np.abs(found) == pytest.approx(np.abs(expected), rel=1e-3, abs=1e-4)


def test_what_it_was_learned_on_has_unit_covariance() -> None:
    moments = Moments(5)
    moments.add(rows())
    white = moments.whitening()(rows()).double()
    assert torch.allclose(white.T @ white / 60, torch.eye(5, dtype=torch.float64), atol=1e-4)
    assert white.mean(dim=0).abs().max() < 1e-4


def test_rows_may_come_in_parts() -> None:
    whole, parts = Moments(5), Moments(5)
    whole.add(rows())
    for part in rows().split(20):
        parts.add(part)
    assert parts.num == 60
    assert torch.allclose(parts.whitening().directions.abs(), whole.whitening().directions.abs(), atol=1e-5)


def test_directions_without_variance_are_not_magnified() -> None:
    flat = torch.cat([rows(dim=2), torch.zeros(60, 2)], dim=1)
    moments = Moments(4)
    moments.add(flat)
    whitening = moments.whitening()
    largest = (flat - flat.mean(dim=0)).double().svd().S[0] ** 2 / 60
    assert whitening.directions.norm(dim=0).max() == pytest.approx(float((LEAST * largest) ** -0.5), rel=1e-3)
    assert whitening(flat).isfinite().all()


def test_impossible_widths_and_too_few_rows_are_told() -> None:
    moments = Moments(5)
    with pytest.raises(ValueError, match="0 vectors are too few"):
        moments.whitening()
    moments.add(rows())
    with pytest.raises(ValueError, match="whiten_dim=6 is more than the 5 dimensions"):
        moments.whitening(6)
