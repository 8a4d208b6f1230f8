"""Distances, radii and dimensionality of clusters of patch features, the parts of DSE (Dai et al. 2025)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raysl.benchmarks.spectrum import effective_rank
from raysl.hashing import hash_words
from raysl.nn.kmeans import kmeans

RANK_EPS = 1e-12
"""Added to each normalised singular value before the entropy; value from the authors' code."""


@dataclass(frozen=True)
class Structure:
    """The parts of DSE. Distances and radii are in units of the mean distance of patches from the mean of all.

    Args:
        distance: mean distance of a patch from the nearest centroid of another cluster (M_inter).
        image_radius, group_radius: mean radius of clusters of an image's and of a group's patches (M_intra).
        dimensionality: effective rank over the largest possible rank, of one patch of each image (M_dim).
    """

    distance: float
    image_radius: float
    group_radius: float
    dimensionality: float

    def dse(self, dim_weight: float = 1.0) -> float:
        """Return M_inter - M_intra + lambda * M_dim.

        >>> Structure(distance=1.0, image_radius=0.5, group_radius=0.7, dimensionality=0.25).dse()
        0.65
        """
        return self.distance - (self.image_radius + self.group_radius) / 2 + dim_weight * self.dimensionality


def structure_of(
    patches: Tensor, image_clusters: int, group_images: int, group_clusters: int, iters: int, seed: int
) -> Structure:
    """Measure the parts of DSE.

    Args:
        patches: features of N patches of B images, float [B, N, D]; B is a multiple of `group_images`.
        image_clusters: clusters of an image, fewer than N.
        group_images: images of a group.
        group_clusters: clusters of a group, fewer than its patches.
        iters: rounds of k-means.
        seed: seed of the initial centroids of k-means, and of the patch of each image in M_dim.

    >>> patches = torch.randn(8, 16, 4, generator=torch.Generator().manual_seed(0))
    >>> structure_of(patches, 3, 8, 24, iters=5, seed=0).dimensionality <= 1
    True
    """
    dimensionality = _dimensionality(patches, seed)
    spread = (patches.double() - patches.double().mean(dim=(0, 1))).norm(dim=2).mean().item()
    if spread == 0:
        # all patches are equal: no distance and no radius
        return Structure(0.0, 0.0, 0.0, dimensionality)
    image_radii = []
    for number, rows in enumerate(patches):
        _, labels = kmeans(rows, image_clusters, iters, hash_words(seed, 0, number) >> 1, spherical=False)
        image_radii.append(np.mean(_radii(rows, labels)))
    distances, group_radii = [], []
    for number, group in enumerate(torch.split(patches, group_images)):
        rows = group.flatten(0, 1)
        centroids, labels = kmeans(rows, group_clusters, iters, hash_words(seed, 1, number) >> 1, spherical=False)
        distances.append(_distance(rows, centroids, labels))
        group_radii += _radii(rows, labels)
    return Structure(
        float(np.mean(distances)) / spread,
        float(np.mean(image_radii)) / spread,
        float(np.mean(group_radii)) / spread,
        dimensionality,
    )


def _distance(rows: Tensor, centroids: Tensor, labels: Tensor) -> float:
    """Return the mean distance of rows [n, D] to the nearest centroid of another cluster that has rows, 0 if none."""
    used = labels.bincount().nonzero()[:, 0]  # k-means keeps the centroids of empty clusters
    if len(used) == 1:
        return 0.0
    distances = torch.cdist(rows.double(), centroids[used].double())  # [n, K]
    is_own = labels[:, None] == used
    return distances.masked_fill(is_own, torch.inf).amin(dim=1).mean().item()


def _radii(rows: Tensor, labels: Tensor) -> list[float]:
    """Return the radius of each cluster that has two rows or more.

    The radius is the sum of the singular values of the centred rows, over sqrt(max(rows - 1, D)).
    """
    radii = []
    for cluster in range(int(labels.max()) + 1):
        members = rows[labels == cluster].double()
        if len(members) > 1:
            centred = members - members.mean(dim=0)
            scale = max(len(members) - 1, rows.shape[1]) ** 0.5
            radii.append(_singular_values(centred).sum().item() / scale)
    return radii


def _dimensionality(patches: Tensor, seed: int) -> float:
    """Return the mean effective rank of matrices with one patch of each image, over the smaller of B and D.

    The patches of each image are drawn without replacement, so that N matrices contain all patches once.
    """
    num_images, num_patches, width = patches.shape
    generator = torch.Generator().manual_seed(hash_words(seed, 2) >> 1)
    order = torch.rand(num_images, num_patches, generator=generator).argsort(dim=1).to(patches.device)
    images = torch.arange(num_images, device=patches.device)
    ranks = [
        effective_rank(_singular_values(patches[images, order[:, number]].double()), RANK_EPS)
        for number in range(num_patches)
    ]
    return float(np.mean(ranks)) / min(num_images, width)


def _singular_values(rows: Tensor) -> Tensor:
    """Return the singular values of float64 [n, D] as square roots of the eigenvalues of the smaller product."""
    products = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
    eigenvalues: Tensor = torch.linalg.eigvalsh(products)
    return eigenvalues.clamp_min(0).sqrt()
