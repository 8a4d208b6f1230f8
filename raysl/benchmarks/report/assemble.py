"""Gathers the contents of a run's report: what the run left behind, and pictures of its images."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysl.benchmarks.benchmark import FeatureSet
from raysl.benchmarks.features.store import Store
from raysl.benchmarks.features.thumbnails import decoded, thumbnails_of
from raysl.benchmarks.neighbours import nearest_rows
from raysl.benchmarks.suite.fitting import MeasuredImages
from raysl.checkpoint.backbone import Checkpoint
from raysl.checkpoint.lineage import read_parents
from raysl.components import resolve
from raysl.config.docs import describe
from raysl.config.dump import plain, to_dict
from raysl.data.decode.images import read_images
from raysl.data.source import DataConfig, Split
from raysl.data.sources.sample import sample_rows
from raysl.errors import log
from raysl.hashing import permutation
from raysl.process.environment import version_of
from raysl.process.temporary import temporary_folder
from raysl.report.contents import EmbeddingSample, Neighbours, Pixels, Retrieved, RunReport, ViewSample
from raysl.report.run_page import FILES, write_report
from raysl.storage.folder import Folder, outlast
from raysl.train.callbacks.logs import parse_metrics
from raysl.train.state import setup_of
from raysl.transforms.channels import to_shown
from raysl.user_files import short_name

MOST_POINTS = 1000
NUM_QUERIES, NUM_NEIGHBOURS = 10, 8
NUM_VIEWED = 8


@dataclass(frozen=True)
class Pictured:
    """The images that a report shows, and the trained backbone's features of them.

    Args:
        is_held_out: whether training has not seen them.
        stored: those features on disk, maybe with thumbnails.
    """

    split: Split
    features: FeatureSet
    is_held_out: bool
    stored: Store | None = None

    @property
    def labels(self) -> np.ndarray:
        """int64 [N]: classes that colour the pictures; -1 where an image has none, or several."""
        labels = self.features.labels.numpy()
        has_classes = labels.ndim == 1 and len(self.split.classes) > 0
        return labels if has_classes else np.full(len(labels), -1, np.int64)

    def thumbnails(self, index: np.ndarray, data: DataConfig) -> Pixels:
        """Return thumbnails of some of the images [N, H, W, 3]: those that were kept, else made of the images."""
        files = [] if self.stored is None else self.stored.thumbnails(index)
        return decoded(files) if files else thumbnails_of(self.split, index, data)


def assemble(
    loaded: Checkpoint,
    images: MeasuredImages,
    pictured: Pictured,
    folder: Folder,
    facts: dict[str, Any],
    retrieved: Mapping[str, Any] | None = None,
) -> RunReport:
    """Return the report of a run, without its scores.

    Args:
        facts: fields of the report that only the caller knows: times, events, command, the time of its end.
        retrieved: results of searches among these images, by benchmark, see `Findings.figures`.
    """
    config = loaded.config
    num_test = "no" if images.test is None else f"{images.test.num_samples:,}"
    finished = {"finished": datetime.now(UTC).isoformat(timespec="seconds")}
    return RunReport(
        name=config.name,
        method=short_name(config.method.name),
        backbone=_backbone_title(loaded),
        dataset=f"{images.data.name}, {images.train.num_samples:,} training and {num_test} test images",
        config=to_dict(config),
        config_docs={row.key: row.line for row in describe(config)},
        environment=_environment(),
        history=_history(folder),
        embeddings=_embeddings(pictured, images.data),
        neighbours=_neighbours(pictured, images.data),
        views=_views(loaded, images.train),
        retrieved=retrieved_images(retrieved or {}, images),
        parents=[str(parent) for parent in read_parents(folder)],
        checkpoint=loaded.uri,
        step=loaded.meta["step"],
        **{**finished, **facts},
    )


def upload(report: RunReport, folder: Folder) -> None:
    """Write the files of a report into a folder."""
    outlast(folder.make)
    with temporary_folder("report") as draft:
        write_report(report, Path(draft))
        for name in FILES:
            outlast(partial(folder.upload, Path(draft) / name, name))


def _backbone_title(loaded: Checkpoint) -> str:
    num_weights = sum(p.numel() for p in loaded.backbone.parameters())
    settings = plain(loaded.config.backbone)
    kinds = [f"{key} {settings[key]}" for key in ("model", "size", "depth") if settings.get(key) is not None]
    return f"{', '.join([short_name(settings['name']), *kinds[:1]])} ({num_weights / 1e6:.2f} M weights)"


def _environment() -> dict[str, str]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    versions = {name: version_of(name) or "-" for name in ("raysl", "torch", "torchvision", "ray", "numpy")}
    return {"python": platform.python_version(), **versions, "system": platform.platform(), "device": device}


def _history(folder: Folder) -> list[dict[str, Any]]:
    if not folder.exists("metrics.jsonl"):
        return []
    return parse_metrics(folder.read("metrics.jsonl"), folder.uri_of("metrics.jsonl"))


def _embeddings(pictured: Pictured, data: DataConfig) -> EmbeddingSample:
    split = pictured.split
    is_quick = split.is_random_access
    chosen = np.sort(permutation(split.num_samples, 0)[:MOST_POINTS]) if is_quick else sample_rows(split, MOST_POINTS)
    return EmbeddingSample(
        features=pictured.features.features[chosen].numpy(),
        labels=pictured.labels[chosen],
        class_names=list(pictured.split.classes),
        thumbnails=pictured.thumbnails(chosen, data),
        is_held_out=pictured.is_held_out,
    )


def _neighbours(pictured: Pictured, data: DataConfig) -> Neighbours | None:
    """Return images of as many classes as fit, with those most similar to them; None for a single image."""
    num = min(NUM_NEIGHBOURS, pictured.split.num_samples - 1)
    if num < 1:
        return None
    queries = _spread_queries(pictured.labels)
    rows, similarities = _nearest_others(pictured.features.features, queries, num)
    images = pictured.thumbnails(rows.flatten(), data)
    return Neighbours(
        queries=pictured.thumbnails(queries, data),
        query_labels=pictured.labels[queries],
        images=images.reshape(len(queries), num, *images.shape[1:]),
        labels=pictured.labels[rows],
        similarities=similarities,
    )


def _nearest_others(features: Tensor, queries: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows nearest to some rows of [N, D] by cosine and their similarities, [Q, num] each, nearest first."""
    nearest = nearest_rows(features, features[torch.from_numpy(queries)], num + 1)
    similarities, rows = (torch.cat(parts).numpy() for parts in zip(*nearest, strict=True))
    is_other = rows != queries[:, None]
    is_other[is_other.all(axis=1), -1] = False  # equal images came before the query itself
    return rows[is_other].reshape(-1, num), similarities[is_other].reshape(-1, num)


def retrieved_images(searches: Mapping[str, Any], images: MeasuredImages) -> dict[str, Retrieved]:
    """Return the images of searches, test images with training images; searches with wrong indices are left out."""
    pictures = {}
    for benchmark, search in searches.items():
        try:
            queries, rows, right = (np.array(search[name]) for name in ("queries", "found", "right"))
            _check_indices(queries, rows, right, images)
        except (ValueError, TypeError, KeyError) as error:
            log.warning("the search results of %s are left out of the report: %r", benchmark, error)
            continue
        queries, rows, right = queries[:NUM_QUERIES], rows[:NUM_QUERIES, :NUM_NEIGHBOURS], right[:NUM_QUERIES]
        assert images.test is not None
        pixels = thumbnails_of(images.train, rows.flatten(), images.data)
        pictures[benchmark] = Retrieved(
            queries=thumbnails_of(images.test, queries, images.data),
            query_labels=_class_of(images.test, queries),
            images=pixels.reshape(*rows.shape, *pixels.shape[1:]),
            right=right[:, :NUM_NEIGHBOURS].astype(bool),
        )
    return pictures


def _class_of(split: Split, index: np.ndarray) -> np.ndarray:
    """Return int64 [N]: the classes of some images; -1 where an image has none, or several."""
    has_one = len(split.classes) > 0 and not split.is_multilabel
    return split.labels_of(index) if has_one else np.full(len(index), -1, np.int64)


def _check_indices(queries: np.ndarray, rows: np.ndarray, right: np.ndarray, images: MeasuredImages) -> None:
    """Refuse what is not an index of images: whole numbers [Q] and [Q, K] inside the splits, and as many marks."""
    if images.test is None:
        raise ValueError("there are no test images")
    is_shaped = queries.ndim == 1 and rows.ndim == 2 and len(rows) == len(queries) > 0 and right.shape == rows.shape
    if not is_shaped or not rows.size:
        raise ValueError(f"shapes {queries.shape}, {rows.shape}, {right.shape} are not [Q], [Q, K], [Q, K]")
    for indices, split in ((queries, images.test), (rows, images.train)):
        if indices.dtype.kind != "i" or indices.min() < 0 or indices.max() >= split.num_samples:
            raise ValueError(f"indices are not whole numbers in 0 to {split.num_samples - 1}")


def _spread_queries(labels: np.ndarray) -> np.ndarray:
    shuffled = permutation(len(labels), 1)
    turn = np.zeros(len(labels), np.int64)  # how many of its class come before each image
    for label in np.unique(labels):
        members = shuffled[labels[shuffled] == label]
        turn[members] = np.arange(len(members))
    # one image of each class, then a second one of each, and so on
    order = np.lexsort((labels, turn))
    return order[:NUM_QUERIES]


def _views(loaded: Checkpoint, train: Split) -> ViewSample:
    recipe = resolve("method", loaded.config.method.name).all_views(setup_of(loaded))
    is_quick = train.is_random_access
    index = permutation(train.num_samples, 2)[:NUM_VIEWED] if is_quick else sample_rows(train, NUM_VIEWED)
    images = read_images(train, index).pictures[0].images
    views = recipe(images, index, loaded.config.seed, 0)
    return ViewSample(
        originals=[to_shown(image).permute(1, 2, 0).numpy() for image in images],
        views={name: to_shown(group).permute(0, 1, 3, 4, 2).numpy() for name, group in views.items()},
    )
