"""The pictures of a report: a map of features, images with their neighbours, results of searches, and views."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysl.benchmarks.benchmark import FeatureSet
from raysl.benchmarks.features.embedding import decoded, read_rows, thumbnails_of
from raysl.benchmarks.features.store import Store
from raysl.benchmarks.neighbours import nearest_rows
from raysl.benchmarks.suite.fitting import MeasuredImages
from raysl.checkpoint.backbone import Checkpoint
from raysl.components import resolve
from raysl.data.decode.decode import decode
from raysl.data.decode.images import read_images
from raysl.data.decode.pixels import CorruptImage
from raysl.data.source import DataConfig, Split
from raysl.data.sources.sample import sample_rows
from raysl.errors import ConfigError, RunFailed, StorageError, log
from raysl.hashing import permutation
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.patch_maps import PatchMaps, patch_maps
from raysl.report.contents import (
    EmbeddingSample,
    Neighbours,
    PatchNetwork,
    PatchSample,
    Pixels,
    Reconstructions,
    Retrieved,
    ViewSample,
)
from raysl.storage.folder import Folder, outlast
from raysl.train.file_names import RECONSTRUCTIONS_FOLDER, reconstructed_name, shown_name
from raysl.train.state import initial_backbone, setup_of
from raysl.transforms.channels import network_input, to_shown

MOST_POINTS = 1000
NUM_QUERIES, NUM_NEIGHBOURS = 10, 8
NUM_VIEWED = 8
MOST_CODES, CODE_BYTES = 256, 300_000
"""Most numbers of a patch, and bytes of a network, by which the page compares patches."""


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


def embeddings(pictured: Pictured, data: DataConfig) -> EmbeddingSample:
    """Return some of the images with their features, for the map of features."""
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


def neighbours(pictured: Pictured, data: DataConfig) -> Neighbours | None:
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


def patches(
    loaded: Checkpoint, pictured: Pictured, data: DataConfig, untrained: Callable[[], Backbone]
) -> PatchSample | None:
    """Return pictures of the patches of some images, by the network before and after training; None where it has no map
    of at least 4 x 4 places for them, or the run leaves these pictures out.

    Args:
        untrained: returns the network with the initial weights of the run's seed.
    """
    if not loaded.config.train.patch_pictures:
        return None
    split = pictured.split
    rows = _spread_queries(pictured.labels) if split.is_random_access else sample_rows(split, NUM_QUERIES)
    images = read_rows(split, rows, data).views["image"]
    normal = network_input(images, data.mean, data.std, data.channels)
    try:
        trained = patch_maps(loaded.backbone, normal)
    except ConfigError as error:
        log.info("the report has no pictures of patches: %s", error)
        return None
    networks, notes = [_patch_network(trained, f"after training, step {loaded.meta['step']:,}")], []
    origin = loaded.meta.get("weights")
    begun = f"random weights of seed {loaded.config.seed}" if origin is None else f"weights of {_named(origin)}"
    try:
        before = untrained() if origin is None else initial_backbone(loaded)
    except (ConfigError, StorageError, RunFailed) as error:
        notes.append(f"The network before training is not shown, since its weights cannot be read: {error}")
    else:
        networks.insert(0, _patch_network(patch_maps(before, normal, trained.stage), f"before training, {begun}"))
    return PatchSample(
        images=to_shown(images).permute(0, 2, 3, 1).numpy(),
        networks=networks,
        stage=trained.stage,
        is_held_out=pictured.is_held_out,
        notes=notes,
    )


def _named(origin: Mapping[str, Any]) -> str:
    """Name the published network, or the checkpoint, whose weights a run began with."""
    return str(origin["name"] if "library" in origin else origin["uri"])


def _patch_network(maps: PatchMaps, title: str) -> PatchNetwork:
    num_patches = maps.features[..., 0].numel()
    return PatchNetwork(
        title=title,
        colors=maps.colors().numpy(),
        foreground=maps.colors(foreground=True).numpy(),
        codes=maps.codes(max(1, min(MOST_CODES, CODE_BYTES // num_patches))).numpy(),
        num_features=maps.features.shape[3],
        attention=None if maps.attention is None else maps.attention.numpy(),
    )


def reconstructions(run: Folder, last: int) -> Reconstructions | None:
    """Return the pictures that a run stored of what its method predicts, up to a step; None where there are none.

    Args:
        run: folder of the run.
        last: step of the checkpoint.
    """
    folder = run.child(RECONSTRUCTIONS_FOLDER)
    names = set(outlast(folder.names))
    shown = [is_held_out for is_held_out in (True, False) if shown_name(is_held_out) in names]
    steps = sorted(int(name[:-4]) for name in names if re.fullmatch(r"\d{9}\.png", name) and int(name[:-4]) <= last)
    if not shown or not steps:
        return None
    try:
        images, seen = _cut(folder, shown_name(shown[0]), 2)
        predicted = {step: _cut(folder, reconstructed_name(step), 1)[0] for step in steps}
        if any(pictures.shape != images.shape for pictures in predicted.values()):
            raise ValueError("the pictures have several sizes")
    except (CorruptImage, ValueError) as error:
        log.warning("the report has no reconstructions: %s: %s", folder.uri, error)
        return None
    return Reconstructions(images=images, seen=seen, predicted=predicted, is_held_out=shown[0])


def _cut(folder: Folder, name: str, num_rows: int) -> list[Pixels]:
    """Return the rows of a picture of square images side by side, [N, H, H, 3] each."""
    content = outlast(partial(folder.read, name))
    pixels = decode(content).permute(1, 2, 0).numpy()  # [R * H, N * H, 3]
    side, rest = divmod(pixels.shape[0], num_rows)
    if rest or side == 0 or pixels.shape[1] % side:
        raise ValueError(f"{name} is no picture of {num_rows} rows of squares")
    return [np.stack(np.split(row, pixels.shape[1] // side, axis=1)) for row in np.split(pixels, num_rows)]


def views(loaded: Checkpoint, train: Split) -> ViewSample:
    """Return some training images with the views that the method makes of them."""
    recipe = resolve("method", loaded.config.method.name).all_views(setup_of(loaded))
    is_quick = train.is_random_access
    index = permutation(train.num_samples, 2)[:NUM_VIEWED] if is_quick else sample_rows(train, NUM_VIEWED)
    images = read_images(train, index).pictures[0].images
    groups = recipe(images, index, loaded.config.seed, 0)
    return ViewSample(
        originals=[to_shown(image).permute(1, 2, 0).numpy() for image in images],
        views={name: to_shown(group).permute(0, 1, 3, 4, 2).numpy() for name, group in groups.items()},
    )
