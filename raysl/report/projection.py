"""The map of embeddings: their projection into two dimensions, and its drawing."""

import numpy as np
from numpy.typing import NDArray

from raysl.report.marks import Chart, mark_of

MAX_POINTS = 1000
MIN_POINTS = 10


def chosen(features: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return rows of `features` [N, D] for a map: finite, at most 1000, evenly spread over the order."""
    rows = np.flatnonzero(np.isfinite(features).all(axis=1))
    if len(rows) > MAX_POINTS:
        rows = rows[np.linspace(0, len(rows) - 1, MAX_POINTS).round().astype(np.int64)]
    return rows.astype(np.int64)


def has_collapsed(features: NDArray[np.float32]) -> bool:
    """Return whether all rows point the same way to within rounding, so that there is nothing to map."""
    return bool(np.ptp(normalised(features), axis=0).max() < 1e-5)


def normalised(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return rows at length 1; rows of zeros stay zero."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    unit: NDArray[np.float32] = features / np.maximum(lengths, 1e-12)
    return unit


def share_beside_own_class(features: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[float, float]:
    """Return the share of rows whose nearest other row by cosine has their label, and the share that chance gives.

    >>> share_beside_own_class(np.eye(4, dtype=np.float32)[[0, 0, 1, 1]], np.array([5, 5, 7, 7]))
    (1.0, 0.5)

    Args:
        features: [N, D] with N >= 2, finite.
        labels: [N].
    """
    unit = normalised(features)
    cosines = unit @ unit.T
    # no image is its own neighbour
    np.fill_diagonal(cosines, -np.inf)
    # the sum of the squared shares is the probability that two images drawn at random have one class
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return float((labels[cosines.argmax(axis=1)] == labels).mean()), float((shares**2).sum())


def project(features: NDArray[np.float32]) -> tuple[NDArray[np.float64], float]:
    """Project rows at length 1 by t-SNE (van der Maaten and Hinton 2008), from their first two principal components.

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
    """Turn points [N, 2] by their principal axes so that the spread from left to right is the largest."""
    centred = points - points.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)  # by ascending variance
    turned: NDArray[np.float64] = centred @ axes[:, ::-1]
    return turned if np.ptp(turned[:, 0]) >= np.ptp(turned[:, 1]) else turned[:, ::-1]


WIDTH = 540
FLATTEST = 0.3
"""Least height of a map, as a share of its width."""


def embedding_map(points: NDArray[np.float64], labels: NDArray[np.int64]) -> str:
    """Draw points [N, 2] in the colour and shape of their class."""
    extent = np.ptp(points, axis=0) + 0.06 * np.ptp(points, axis=0).max()
    height = WIDTH * float(np.clip(extent[1] / extent[0], FLATTEST, 1.0))
    chart = Chart(WIDTH, height, "Map of the embeddings, coloured by class")
    zoom = min(WIDTH / extent[0], height / extent[1])
    centre = (points.max(axis=0) + points.min(axis=0)) / 2
    pixels = (points - centre) * zoom * (1, -1) + (WIDTH / 2, height / 2)  # [N, 2], upwards is less
    for label in np.unique(labels):
        chart.parts.append('<g fill-opacity=".85">')
        for x, y in pixels[labels == label]:
            chart.marker(float(x), float(y), 3, *mark_of(int(label)))
        chart.parts.append("</g>")
    return chart.svg()
