import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.nn import kmeans as kmeans_module
from raysl.nn.kmeans import kmeans


def blobs(num: int = 400, k: int = 8, dim: int = 6, spread: float = 0.15) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(k, dim, generator=generator)
    return centres[torch.arange(num) % k] + spread * torch.randn(num, dim, generator=generator)


def cost(rows: Tensor, centroids: Tensor, spherical: bool) -> float:
    if spherical:
        return -(F.normalize(rows, dim=1) @ centroids.T).amax(dim=1).sum().item()
    return torch.cdist(rows.double(), centroids.double()).amin(dim=1).square().sum().item()


@pytest.mark.parametrize("spherical", [True, False])
def test_it_equals_a_slow_loop(spherical: bool) -> None:
    rows = blobs(60, 4, 3, 0.8).double()
    vectors = F.normalize(rows, dim=1) if spherical else rows
    centroids, assigned = kmeans(rows, 5, 4, seed=1, spherical=spherical)
    slow = vectors[torch.randperm(60, generator=torch.Generator().manual_seed(1))[:5]]
    for _ in range(4):
        nearest = [min(range(5), key=lambda k, row=row, c=slow: (row - c[k]).norm().item()) for row in vectors]
        means = [vectors[[n == k for n in nearest]].mean(dim=0) for k in range(5)]
        slow = torch.stack([mean / mean.norm() if spherical else mean for mean in means])
    torch.testing.assert_close(centroids, slow, rtol=1e-12, atol=1e-13)
    assert assigned.tolist() == [min(range(5), key=lambda k, row=row: (row - slow[k]).norm().item()) for row in vectors]


@pytest.mark.parametrize("spherical", [True, False])
def test_it_finds_clusters_as_good_as_those_of_faiss_from_the_same_start(spherical: bool) -> None:
    faiss = pytest.importorskip("faiss")
    rows = blobs()
    vectors = F.normalize(rows, dim=1) if spherical else rows
    for seed in range(3):
        start = vectors[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:8]]
        theirs = faiss.Kmeans(6, 8, niter=20, spherical=spherical, min_points_per_centroid=1)
        theirs.train(vectors.numpy(), init_centroids=start.numpy())
        ours, _ = kmeans(rows, 8, 20, seed=seed, spherical=spherical)
        best = cost(rows, torch.from_numpy(theirs.centroids), spherical)
        assert cost(rows, ours, spherical) == pytest.approx(best, rel=1e-3)


def test_chunks_change_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = blobs().double()
    centroids, assigned = kmeans(rows, 8, 5, seed=0)
    monkeypatch.setattr(kmeans_module, "_SCORES_AT_ONCE", 56)
    again, assigned_again = kmeans(rows, 8, 5, seed=0)
    torch.testing.assert_close(again, centroids, rtol=1e-12, atol=1e-13)
    assert torch.equal(assigned, assigned_again)


def test_rows_far_from_the_origin_are_told_apart_in_float32() -> None:
    rows = torch.tensor([[0.0], [0.1], [1.0], [1.1]]) + 3e4
    _, assigned = kmeans(rows, 2, 10, seed=0, spherical=False)
    assert assigned[0] == assigned[1] != assigned[2] == assigned[3]


def test_an_empty_cluster_keeps_its_centroid_or_splits_the_largest() -> None:
    rows = torch.tensor([[0.6, 0.8]] * 6 + [[0.8, 0.6]] * 3)  # two directions, three clusters: one is empty
    kept, _ = kmeans(rows, 3, 3, seed=0)
    assert len(kept.mul(1e4).round().unique(dim=0)) == 2
    split, assigned = kmeans(rows, 3, 3, seed=0, empty="split")
    assert len(split.mul(1e4).round().unique(dim=0)) == 3
    torch.testing.assert_close(split.norm(dim=1), torch.ones(3))
    assert (rows * split[assigned]).sum(dim=1).min() > 0.999


def test_as_many_clusters_as_rows_are_the_rows() -> None:
    rows = blobs(7, 7)
    centroids, assigned = kmeans(rows, 7, 2, seed=3, spherical=False)
    assert sorted(assigned.tolist()) == list(range(7))
    torch.testing.assert_close(centroids[assigned], rows)


def test_the_seed_decides_and_half_types_are_widened() -> None:
    rows = blobs(spread=1.0)
    assert torch.equal(kmeans(rows, 8, 2, seed=0)[0], kmeans(rows, 8, 2, seed=0)[0])
    assert not torch.equal(kmeans(rows, 8, 2, seed=0)[0], kmeans(rows, 8, 2, seed=1)[0])
    assert kmeans(rows.bfloat16(), 8, 2, seed=0)[0].dtype == torch.float32
