"""Gathers what a run left behind, and some of its pictures, into the contents of its report."""

import json
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from raysl.benchmarks.benchmark import FeatureSet
from raysl.checkpoint import Checkpoint
from raysl.components import resolve
from raysl.config.load import describe, to_dict
from raysl.config.schema import DataConfig
from raysl.data.images import cut_images, read_images
from raysl.data.source import Split
from raysl.hashing import permutation
from raysl.report.contents import EmbeddingSample, Neighbours, Pixels, RunReport, Score, ViewSample
from raysl.storage import Folder
from raysl.transforms.view import evaluation_recipe

MOST_POINTS = 1000
NUM_QUERIES, NUM_NEIGHBOURS = 10, 8
NUM_VIEWED = 8
THUMBNAIL = 64  # most pixels a side


def assemble(
    loaded: Checkpoint,
    scores: list[Score],
    train: Split,
    test: Split,
    train_features: FeatureSet,
    test_features: FeatureSet,
    folder: Folder,
    facts: dict[str, Any],
) -> RunReport:
    """The report of a run.

    Args:
        loaded: the checkpoint that was measured.
        scores: what was measured.
        train, test: the images.
        train_features, test_features: of the trained backbone.
        folder: of the run.
        facts: fields of the report that only the caller knows: times, events, command.
    """
    config = loaded.config
    return RunReport(
        name=config.name,
        method=config.method.name,
        backbone=_backbone_title(loaded),
        dataset=f"{config.data.name}, {train.num_samples:,} training and {test.num_samples:,} test images",
        config=to_dict(config),
        config_docs={key: doc for key, _, doc in describe(config)},
        environment=_environment(),
        history=_history(folder),
        scores=scores,
        embeddings=_embeddings(test, test_features, config.data),
        neighbours=_neighbours(test, test_features, config.data),
        views=_views(loaded, train),
        checkpoint=loaded.uri,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        **facts,
    )


def _backbone_title(loaded: Checkpoint) -> str:
    num_weights = sum(p.numel() for p in loaded.backbone.parameters())
    return f"{loaded.config.backbone.name} ({num_weights / 1e6:.2f} M weights)"


def _environment() -> dict[str, str]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    versions = {name: version(name) for name in ("raysl", "torch", "torchvision", "ray", "numpy")}
    return {"python": platform.python_version(), **versions, "system": platform.platform(), "device": device}


def _history(folder: Folder) -> list[dict[str, Any]]:
    if not folder.exists("metrics.jsonl"):
        return []
    return [json.loads(line) for line in folder.read("metrics.jsonl").decode().splitlines()]


def _embeddings(test: Split, features: FeatureSet, data: DataConfig) -> EmbeddingSample:
    chosen = np.sort(permutation(test.num_samples, 0)[:MOST_POINTS])
    return EmbeddingSample(
        features=features.features[chosen].numpy(),
        labels=features.labels[chosen].numpy(),
        class_names=list(test.classes),
        thumbnails=_thumbnails(test, chosen, data),
    )


def _neighbours(test: Split, features: FeatureSet, data: DataConfig) -> Neighbours:
    """Test images of as many classes as there are places, and the test images most similar to them."""
    num = min(NUM_NEIGHBOURS, test.num_samples - 1)
    queries = _spread_queries(features.labels.numpy())
    normal = F.normalize(features.features, dim=1)
    similarity = normal[queries] @ normal.T  # [Q, N]
    similarity[torch.arange(len(queries)), torch.from_numpy(queries)] = -2.0  # not itself
    best = similarity.topk(num, dim=1)
    images = _thumbnails(test, best.indices.flatten().numpy(), data)
    return Neighbours(
        queries=_thumbnails(test, queries, data),
        query_labels=features.labels[queries].numpy(),
        images=images.reshape(len(queries), num, *images.shape[1:]),
        labels=features.labels[best.indices].numpy(),
        similarities=best.values.numpy(),
    )


def _spread_queries(labels: np.ndarray) -> np.ndarray:
    """Places of up to NUM_QUERIES images, going round the classes."""
    shuffled = permutation(len(labels), 1)
    turn = np.zeros(len(labels), np.int64)  # how many of its class come before each image
    for label in np.unique(labels):
        members = shuffled[labels[shuffled] == label]
        turn[members] = np.arange(len(members))
    order = np.lexsort((labels, turn))
    return order[:NUM_QUERIES]


def _views(loaded: Checkpoint, train: Split) -> ViewSample:
    recipe = resolve("method", loaded.config.method.name).views(loaded.config.method)
    index = permutation(train.num_samples, 2)[:NUM_VIEWED]
    images = read_images(train, index).pictures[0].images
    views = recipe(images, index, loaded.config.seed, 0)
    return ViewSample(
        originals=[image.permute(1, 2, 0).numpy() for image in images],
        views={name: group.permute(0, 1, 3, 4, 2).numpy() for name, group in views.items()},
    )


def _thumbnails(split: Split, index: np.ndarray, data: DataConfig) -> Pixels:
    size = min(THUMBNAIL, data.image_size)
    recipe = evaluation_recipe(size, size)
    cut = cut_images(split, index, lambda sources, rows: recipe(sources[0].images, rows, 0, 0))
    return cut.views["image"][:, 0].permute(0, 2, 3, 1).numpy()
