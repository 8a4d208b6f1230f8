"""Instance retrieval by a network, with the scores of every task.

Rankings are scored without images to ignore, by average precision of trapezoids and precision at k.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysl.benchmarks.benchmark import ConfigError, Context
from raysl.benchmarks.class_retrieval import SCORES_AT_ONCE
from raysl.benchmarks.instance_retrieval.datasets import Dataset, load, task_names
from raysl.benchmarks.instance_retrieval.descriptors import Described, Describer, Recipe, describe, gather_moments
from raysl.benchmarks.instance_retrieval.truth import ImageFiles, Images, InstanceSet, Task
from raysl.data.sources.sample import even_index
from raysl.hashing import Int64s
from raysl.storage.addresses import absolute

Similarity = Literal["dot", "l2"]


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


@dataclass(frozen=True, kw_only=True)
class Search(Recipe):
    """A dataset and how it is searched, by descriptors of a recipe.

    Args:
        crop_queries: whether boxes of queries are cut out.
        whiten_on: folder of the images that the whitening is learned on; None for no whitening.
        whiten_dim: directions that are kept.
        whiten_images: images that it is learned on at most, an even share.
        distractors: folder of further images that are searched, and right for no query.
        whiten_center: see `Moments.whitening`.
        cut: see `score`.
    """

    dataset: Dataset
    path: str | None
    query_splits: tuple[str, ...]
    crop_queries: bool
    similarity: Similarity
    whiten_on: str | None
    whiten_dim: int | None
    whiten_images: int | None
    distractors: str | None
    whiten_center: bool = True
    cut: int | None = None

    def check(self) -> InstanceSet:
        """Read the dataset; refuse what cannot be measured, before a network runs."""
        dataset = load(self.dataset, self.path, self.query_splits)
        if self.distractors is not None:
            self._check_apart("distractors", self.distractors)
            ImageFiles(self.distractors)
        if self.whiten_on is None:
            if self.whiten_dim is not None:
                raise ConfigError(
                    f"whiten_dim={self.whiten_dim} without whiten_on=, the folder of the images that a whitening is "
                    "learned on; give it, or leave whiten_dim out"
                )
        else:
            self._check_apart("whiten_on", self.whiten_on)
            ImageFiles(self.whiten_on)
        return dataset

    def run(self, context: Context, ks: Sequence[int] = ()) -> dict[str, Scored]:
        """Score all queries, by the task's name."""
        images = self.check()
        describer = Describer(context.network, context.data, self)
        whitening = None
        if self.whiten_on is not None:
            paths = ImageFiles(self.whiten_on).paths
            chosen = even_index(len(paths), self.whiten_images or len(paths))
            learned_on = Images(self.whiten_on, tuple(paths[number] for number in chosen.tolist()))
            whitening = gather_moments(describer, learned_on).whitening(self.whiten_dim, self.whiten_center)
        database = describe(describer, images.database, whitening)
        if self.distractors is not None:
            more = Images(self.distractors, tuple(ImageFiles(self.distractors).paths))
            further = describe(describer, more, whitening)
            database = Described(
                torch.cat([database.rows, further.rows]), torch.cat([database.is_read, further.is_read])
            )
        cut = images.queries if self.crop_queries else Images(images.queries.uri, images.queries.paths)
        queries = describe(describer, cut, whitening, most_broken=0)
        ranked = ranking(queries.rows, database, self.similarity)
        return {task.name: score(ranked, task, ks, self.cut) for task in images.tasks}

    def names(self) -> tuple[str, ...]:
        """Names of the tasks."""
        return task_names(self.dataset, self.query_splits)

    def _check_apart(self, name: str, uri: str) -> None:
        if self.path is not None and absolute(uri).rstrip("/") == absolute(self.path).rstrip("/"):
            advice = "give other images, as of Paris for Oxford"
            raise ConfigError(f"{name}={uri!r} is the folder that is searched; {advice}")


def ranking(queries: Tensor, database: Described, similarity: Similarity) -> Int64s:
    """Sort the database [Q, N] by similarity to queries [Q, D], nearest first and broken images last."""
    parts = []
    for part in torch.split(queries, max(1, SCORES_AT_ONCE // len(database.rows))):
        near = part @ database.rows.T if similarity == "dot" else -torch.cdist(part, database.rows)  # [q, N]
        near[:, ~database.is_read] = -torch.inf
        parts.append(torch.from_numpy(rank_database(near)))
    return torch.cat(parts).numpy()


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
