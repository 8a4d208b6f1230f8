"""Instance retrieval by a network, with the scores of every task."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from raysl.benchmarks.benchmark import ConfigError, Context
from raysl.benchmarks.class_retrieval import SCORES_AT_ONCE
from raysl.benchmarks.instance_retrieval.datasets import Dataset, load, task_names
from raysl.benchmarks.instance_retrieval.descriptors import Described, Describer, Recipe, describe, gather_moments
from raysl.benchmarks.instance_retrieval.protocols import Scored, rank_database, score
from raysl.benchmarks.instance_retrieval.truth import ImageFiles, Images, InstanceSet
from raysl.hashing import Int64s
from raysl.storage.addresses import absolute

Similarity = Literal["dot", "l2"]


@dataclass(frozen=True)
class Search:
    """A dataset and how it is searched.

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
    recipe: Recipe
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
        describer = Describer(context.network, context.data, self.recipe)
        whitening = None
        if self.whiten_on is not None:
            learned_on = self._whitening_images(self.whiten_on)
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

    def _whitening_images(self, uri: str) -> Images:
        paths = ImageFiles(uri).paths
        num_kept = min(self.whiten_images or len(paths), len(paths))
        return Images(uri, tuple(paths[number * len(paths) // num_kept] for number in range(num_kept)))


def ranking(queries: Tensor, database: Described, similarity: Similarity) -> Int64s:
    """Sort the database [Q, N] by similarity to queries [Q, D], nearest first and broken images last."""
    parts = []
    for part in torch.split(queries, max(1, SCORES_AT_ONCE // len(database.rows))):
        near = part @ database.rows.T if similarity == "dot" else -torch.cdist(part, database.rows)  # [q, N]
        near[:, ~database.is_read] = -torch.inf
        parts.append(torch.from_numpy(rank_database(near)))
    return torch.cat(parts).numpy()
