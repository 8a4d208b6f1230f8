"""Scores of rankings: average precision by trapezoids, and precision at k, without images to ignore."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysl.hashing import Int64s


@dataclass(frozen=True)
class Task:
    """Queries with their right results.

    Args:
        name: such as `hard`; empty where a dataset has one task.
        queries: int64 [Q], places in the list of queries.
        right: numbers of the right images in the database, int64 [P] for each query.
        ignored: numbers of images that get no rank, likewise.
    """

    name: str
    queries: Int64s
    right: tuple[Int64s, ...]
    ignored: tuple[Int64s, ...]

    def __post_init__(self) -> None:
        assert len(self.queries) == len(self.right) == len(self.ignored)


@dataclass(frozen=True)
class Scored:
    """Scores of the queries that have a right result.

    Args:
        queries: int64 [Q], places in the list of queries.
        average_precision: float64 [Q].
        precision: float64 [Q] by k.
    """

    queries: Int64s
    average_precision: Tensor
    precision: dict[int, Tensor]


def score(ranked: Int64s, task: Task, ks: Sequence[int] = (), cut: int | None = None) -> Scored:
    """Score the rankings of a task's queries that have a right result (Radenovic et al. 2018).

    Args:
        ranked: int64 [all queries, N], places in the database, nearest first.
        ks: see `precision_at`.
        cut: first ranks that count; right results behind them count as missed. Default: all.
    """
    queries_with_right, precisions = [], []
    at: dict[int, list[float]] = {k: [] for k in ks}
    for query, right, ignored in zip(task.queries.tolist(), task.right, task.ignored, strict=True):
        if len(right) == 0:
            continue
        ranks = ranks_of(ranked[query], right, ignored)
        queries_with_right.append(query)
        precisions.append(trapezoid_precision(ranks if cut is None else ranks[ranks < cut], len(ranks)))
        for k in ks:
            at[k].append(precision_at(ranks, k))
    columns = {k: torch.tensor(values, dtype=torch.float64) for k, values in at.items()}
    return Scored(np.array(queries_with_right, np.int64), torch.tensor(precisions, dtype=torch.float64), columns)


def ranks_of(ranked: Int64s, right: Int64s, ignored: Int64s) -> Int64s:
    """Return the ranks, from 0 and rising, of right results in a ranking int64 [N] without the images to ignore."""
    counted = ranked[~np.isin(ranked, ignored)]
    return np.flatnonzero(np.isin(counted, right)).astype(np.int64)


def trapezoid_precision(ranks: Int64s, num_right: int | None = None) -> float:
    """Compute the area below precision over recall by trapezoids, as Oxford Buildings' `compute_ap`.

    At the j-th right one the recall grows by 1 / P; the precision goes from that just in front of it, j / rank, to that
    with it, (j + 1) / (rank + 1) (Philbin et al. 2007; the same in Radenovic et al. 2018).

    Args:
        ranks: ranks of the right ones that were found, from 0, rising.
        num_right: P, all that there are; default: those that were found.

    >>> trapezoid_precision(np.array([0, 1]), 2)
    1.0
    """
    num_before = np.arange(len(ranks))
    # nothing is ranked in front of the first place, where the precision counts as 1
    before = np.where(ranks == 0, 1.0, num_before / np.maximum(ranks, 1))
    behind = (num_before + 1) / (ranks + 1)
    return float(((before + behind) / 2).sum() / (len(ranks) if num_right is None else num_right))


def precision_at(ranks: Int64s, k: int) -> float:
    """Return the share of right results among the first k, or up to the last right one if that is earlier, as the
    revisited benchmark does."""
    first = min(k, int(ranks[-1]) + 1)
    return float((ranks < first).sum() / first)


def rank_database(similarity: Tensor) -> Int64s:
    """Sort the database by similarity, nearest first, int64 [Q, N]; ties keep the order of the database."""
    ranked: NDArray[np.int64] = similarity.sort(dim=1, descending=True, stable=True).indices.cpu().numpy()
    return ranked
