"""Embeddings in two dimensions."""

import numpy as np
from numpy.typing import NDArray

MAX_POINTS = 1000
MIN_POINTS = 10


def chosen(features: NDArray[np.float32]) -> NDArray[np.int64]:
    """Rows of `features` [N, D] that a map shows: finite, at most 1000, evenly spread over the order."""
    rows = np.flatnonzero(np.isfinite(features).all(axis=1))
    if len(rows) > MAX_POINTS:
        rows = rows[np.linspace(0, len(rows) - 1, MAX_POINTS).round().astype(np.int64)]
    return rows.astype(np.int64)


def has_collapsed(features: NDArray[np.float32]) -> bool:
    """Whether all rows point the same way to within rounding, so that there is nothing to map."""
    return bool(np.ptp(normalised(features), axis=0).max() < 1e-5)


def normalised(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows at length 1; rows of zeros stay zero."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    unit: NDArray[np.float32] = features / np.maximum(lengths, 1e-12)
    return unit


def project(features: NDArray[np.float32]) -> tuple[NDArray[np.float64], float]:
    """t-SNE (van der Maaten and Hinton 2008) of rows at length 1, from their first two principal components.

    Args:
        features: [N, D] with N >= 10 and D >= 2, finite, not all the same.

    Returns:
        Points [N, 2], turned so that they spread most from left to right, and the perplexity: 30, or less where N is
        small. The same features give the same points.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, (len(features) - 1) / 3)
    tsne = TSNE(n_components=2, init="pca", perplexity=perplexity, random_state=0)
    with threadpool_limits(1):  # the thousands of barriers between threads cost minutes on a busy machine
        return level(np.asarray(tsne.fit_transform(normalised(features)), dtype=np.float64)), perplexity


def level(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points [N, 2], turned by their principal axes so that the spread from left to right is the largest."""
    centred = points - points.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)  # by ascending variance
    turned: NDArray[np.float64] = centred @ axes[:, ::-1]
    return turned if np.ptp(turned[:, 0]) >= np.ptp(turned[:, 1]) else turned[:, ::-1]
