"""What methods share that learn from clusters of all images of a dataset."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import at_least_fp32
from raysl.nn.kmeans import kmeans
from raysl.nn.whiten import whitened

Batches = Callable[[], Iterator[Batch]]


@torch.no_grad()
def embed_all(
    network: Callable[[Tensor], Tensor], batches: Batches, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Sample indices, int64 [n], and features [n, D] of this rank's share of the images, in fp32 at the least.

    Ranks may have uneven numbers of batches: the network has to be in evaluation mode, so that it exchanges nothing.

    Args:
        network: from images [B, 3, H, W] to features [B, D].
        batches: what `Method.before_epoch` gets.
        device: where they are.
    """
    found = [(batch.index, at_least_fp32(network(batch.views["image"][:, 0]))) for batch in batches()]
    width = max(dist.gather_objects(found[0][1].shape[1] if found else 0))  # a rank may have no images
    index, rows = torch.zeros(0, dtype=torch.int64, device=device), torch.zeros(0, width, device=device)
    return torch.cat([index, *(each for each, _ in found)]), torch.cat([rows, *(each for _, each in found)])


@torch.no_grad()
def assign(assignments: Tensor, index: Tensor, clusters: Tensor) -> None:
    """Write the clusters [n] of this rank's images into the assignments of all, int64 [N]; every rank calls it, and has
    the same afterwards."""
    assignments[dist.all_gather_ragged(index)] = dist.all_gather_ragged(clusters)


def feature_clusters(features: Tensor, k: int, num_iters: int, seed: int, pca_dim: int | None = None) -> Tensor:
    """Clusters, int64 [n], of this rank's features [n, D], brought to length 1: k-means by Euclidean distance over the
    rows of all ranks, an empty cluster splitting the largest, as faiss does.

    Args:
        features: of images.
        k: number of clusters.
        num_iters: rounds of k-means.
        seed: of the rows that it begins with.
        pca_dim: principal components to whiten in front of it, all where the features have fewer; None: the features
            as they are.

    Raises:
        ConfigError: if there are fewer rows than clusters.
        ValueError: if a row is not finite.
    """
    rows = features if pca_dim is None else whitened(features, min(pca_dim, features.shape[1]))  # [n, P]
    return kmeans(F.normalize(rows, dim=1), k, num_iters, seed, spherical=False, empty="split")[1]


def check_clusters(clusters: int, num_samples: int) -> None:
    """Refuse more clusters than images.

    Raises:
        ConfigError: with the numbers and what to set instead.
    """
    if clusters > num_samples:
        raise ConfigError(
            f"method.clusters has {clusters} for {num_samples} training images: k-means cannot find more clusters than "
            f"images; set {num_samples} or fewer, better {max(1, num_samples // 10)}"
        )
