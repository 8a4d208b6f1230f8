"""Retrieval of images of the same class: a result is right if it shares a class with the query."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.benchmarks.benchmark import CHUNK_ROWS, FeatureSet
from raysl.data.sources.sample import even_index

SCORES_AT_ONCE = 2**26
"""Cosines of queries with all searched images that are held at a time: 256 MB in float32."""


@dataclass(frozen=True)
class Searched:
    """Results of the queries that have a right result.

    Args:
        queries: int64 [Q], their rows.
        average_precision: float64 [Q].
        nearest: int64 [Q, k], rows of the nearest images, nearest first.
        is_right: bool [Q, k], whether these share a class with the query.
    """

    queries: Tensor
    average_precision: Tensor
    nearest: Tensor
    is_right: Tensor


@torch.no_grad()
def search_classes(searched: FeatureSet, queries: FeatureSet, rows: Tensor, k: int) -> Searched:
    """Search a set by cosine for images that share a class with the queries.

    Queries that no searched image shares a class with are left out. The searched features are read once for every
    SCORES_AT_ONCE / N queries.

    Args:
        searched: N features with labels [N] or, several an image, [N, K].
        queries: features with labels of the same kind.
        rows: int64 [Q] of those queries that are made.
        k: nearest images that are returned, or as many as there are.
    """
    parts: list[tuple[Tensor, ...]] = []
    for part in torch.split(rows, max(1, SCORES_AT_ONCE // len(searched.labels))):
        cosines = _cosines(queries.features[part.to(queries.features.device)], searched.features)  # [B, N]
        is_right = _shares_a_class(
            queries.labels[part.to(queries.labels.device)].to(searched.labels.device), searched.labels
        ).to(cosines.device)
        nearest = cosines.topk(min(k, cosines.shape[1]), dim=1).indices
        precision = [average_precision(*row) for row in zip(cosines, is_right, strict=True)]
        has_right = is_right.any(dim=1)
        columns = part.to(has_right.device), torch.stack(precision), nearest, is_right.gather(1, nearest)
        parts.append(tuple(column[has_right].cpu() for column in columns))
    return Searched(*(torch.cat(column) for column in zip(*parts, strict=True)))


def average_precision(scores: Tensor, is_right: Tensor) -> Tensor:
    """Return the mean over right results of the share of right ones among all that score at least as high, as
    scikit-learn defines it.

    Equal scores have one place, so that no order among them counts.

    Args:
        scores: float [N].
        is_right: bool [N].

    Returns:
        A float64 scalar; 0 where nothing is right.
    """
    right = _sorted(scores[is_right])  # [P], rising
    if len(right) == 0:
        return torch.zeros((), dtype=torch.float64, device=scores.device)
    # searchsorted finds the first of equal scores, so all of them count as found together
    all_as_much = len(scores) - torch.searchsorted(_sorted(scores), right)  # [P], how many score at least as much
    right_as_much = len(right) - torch.searchsorted(right, right)
    return (right_as_much.double() / all_as_much).mean()


def precision_at(results: Searched, k: int) -> Tensor:
    """Return the share of right results among the first k, float64 [Q]."""
    return results.is_right[:, :k].double().mean(dim=1)


def recall_at(results: Searched, k: int) -> Tensor:
    """Return whether one of the first k results is right, bool [Q]: the recall of metric learning (Jegou et al. 2011;
    Oh Song et al. 2016), not the share of all right ones, which k bounds."""
    return results.is_right[:, :k].any(dim=1)


def pictured(results: Searched, num: int, k: int) -> dict[str, Sequence[object]]:
    """Return `num` evenly spread queries with their first k results; see `Findings.figures`, `retrieved`."""
    rows = torch.from_numpy(even_index(len(results.queries), num))
    return {
        "queries": results.queries[rows].tolist(),
        "found": results.nearest[rows, :k].tolist(),
        "right": results.is_right[rows, :k].tolist(),
    }


def _cosines(queries: Tensor, searched: Tensor) -> Tensor:
    """Compute [B, N] of features [B, D] and [N, D] in float32, a chunk of the latter at a time, on a GPU if there is
    one."""
    directions = F.normalize(queries.to("cuda" if torch.cuda.is_available() else queries.device).float(), dim=1)
    out = directions.new_empty(len(directions), len(searched))
    for first in range(0, len(searched), CHUNK_ROWS):
        chunk = searched[first : first + CHUNK_ROWS].to(directions.device).float()
        out[:, first : first + len(chunk)] = directions @ F.normalize(chunk, dim=1).T
    return out


def _sorted(values: Tensor) -> Tensor:
    """Sort in rising order; without indices, numpy is several times as fast as torch on a CPU."""
    return values.sort().values if values.is_cuda else torch.from_numpy(np.sort(values.numpy()))


def _shares_a_class(queries: Tensor, searched: Tensor) -> Tensor:
    """Return bool [B, N] from labels [B] and [N], or [B, K] and [N, K], of which 1 alone means present."""
    if queries.ndim == 1:
        return queries[:, None] == searched
    return (queries == 1).float() @ (searched == 1).float().T > 0
