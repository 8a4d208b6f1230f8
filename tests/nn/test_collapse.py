import pytest
import torch
from torch.nn import functional as F

from raysl.nn.collapse import collapse


@pytest.mark.parametrize(("num_rows", "dim"), [(4, 9), (9, 4)])
def test_the_effective_rank_is_that_of_the_covariance_whichever_side_is_longer(num_rows: int, dim: int) -> None:
    z = torch.randn(num_rows, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = collapse(3 * z)
    rows = F.normalize(z, dim=1)
    values = torch.linalg.eigvalsh(torch.cov(rows.T, correction=0))
    expected = values.sum() ** 2 / values.square().sum()
    assert found["effective_rank"].item() == pytest.approx(expected.item(), rel=1e-9)
    spread = rows.std(dim=0, correction=0).mean() * dim**0.5
    assert found["embedding_std"].item() == pytest.approx(spread.item(), rel=1e-9)


def test_equal_embeddings_have_neither_spread_nor_rank() -> None:
    for num in (6, 256):
        row = torch.randn(1, 128, generator=torch.Generator().manual_seed(num))
        assert {name: value.item() for name, value in collapse(row.repeat(num, 1)).items()} == {
            "embedding_std": 0.0,
            "effective_rank": 0.0,
        }
