"""Shared parts of methods that learn from clusters of all images of a dataset."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.losses import at_least_fp32
from raysl.methods.method import Batch, ConfigError
from raysl.nn.kmeans import kmeans
from raysl.nn.moments import whitened

Batches = Callable[[], Iterator[Batch]]


@torch.no_grad()
def embed_all(
    network: Callable[[Tensor], Tensor], batches: Batches, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Return sample indices, int64 [n], and features [n, D] of this rank's share of the images, in at least fp32.

    The network must be in evaluation mode, without communication: ranks may have different numbers of batches.

    Args:
        network: module from images [B, 3, H, W] to features [B, D].
        batches: argument of `Method.before_epoch`.
    """
    results = [(batch.index, at_least_fp32(network(batch.views["image"][:, 0]))) for batch in batches()]
    width = max(dist.gather_objects(results[0][1].shape[1] if results else 0))  # a rank may have no images
    index, rows = torch.zeros(0, dtype=torch.int64, device=device), torch.zeros(0, width, device=device)
    return torch.cat([index, *(part for part, _ in results)]), torch.cat([rows, *(part for _, part in results)])


@torch.no_grad()
def assign(assignments: Tensor, index: Tensor, clusters: Tensor) -> None:
    """Write the clusters [n] of all ranks' images into the assignments, int64 [N]; every rank calls it."""
    assignments[dist.all_gather_ragged(index)] = dist.all_gather_ragged(clusters)


def feature_clusters(features: Tensor, k: int, num_iters: int, seed: int, pca_dim: int | None = None) -> Tensor:
    """Return clusters, int64 [n], of this rank's features [n, D], scaled to length 1: Euclidean k-means over the rows
    of all ranks, in which an empty cluster splits the largest, as in faiss.

    >>> features = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    >>> first, second, third = feature_clusters(features, k=2, num_iters=5, seed=0).tolist()
    >>> first == second != third
    True

    Args:
        num_iters: rounds of k-means.
        pca_dim: number of principal components to whiten first, all if the features have fewer; None for the features
            themselves.

    Raises:
        ConfigError: if there are fewer rows than clusters.
        ValueError: if a row is not finite.
    """
    rows = features if pca_dim is None else whitened(features, min(pca_dim, features.shape[1]))  # [n, P]
    return kmeans(F.normalize(rows, dim=1), k, num_iters, seed, spherical=False, empty="split")[1]


def check_clusters(clusters: int, num_samples: int) -> None:
    """Refuse more clusters than images."""
    if clusters > num_samples:
        raise ConfigError(
            f"method.clusters has {clusters} for {num_samples} training images: k-means cannot find more clusters than "
            f"images; set {num_samples} or fewer, better {max(1, num_samples // 10)}"
        )
