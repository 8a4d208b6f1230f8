"""From sample indices to the views of a batch: the part of the pipeline that knows no Ray."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from raysl.data.batch import Batch
from raysl.data.decode import CorruptImage, decode
from raysl.data.order import Order
from raysl.data.source import Split
from raysl.hashing import Int64s
from raysl.transforms.view import ViewRecipe, normalize

log = logging.getLogger("raysl")

PLAIN_ROWS = 256


@dataclass(frozen=True)
class Loaded:
    """Views of some samples before normalisation.

    Args:
        views: uint8 [B, V, C, H, W] by group.
        index: int64 [B].
        label: int64 [B].
        num_corrupt: images that could not be decoded and were replaced.
    """

    views: dict[str, Tensor]
    index: Tensor
    label: Tensor
    num_corrupt: int


@dataclass(frozen=True)
class Loader:
    """Makes the views of any global batch of a run, on any process, at any time.

    Args:
        split: the images.
        recipe: the views.
        order: which samples make up which batch.
        mean, std: of the normalisation.
        augment_in_task: whether `load` also augments; else `finish` does, on the device.
        plain_recipe: the one view of an image without augmentation.
    """

    split: Split
    recipe: ViewRecipe
    order: Order
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    augment_in_task: bool
    plain_recipe: ViewRecipe

    def load(self, step: int, rank: int, world: int) -> Loaded:
        """Read, decode and crop one rank's rows of a step; augment them too if that is done here."""
        index = self.order.batch(step, rank, world)
        epoch = step // self.order.epoch_len
        images, labels, num_corrupt = read_images(self.split, index)
        views = self.recipe.crop(images, index, self.order.seed, epoch)
        if self.augment_in_task:
            views = self.recipe.augment(views, index, self.order.seed, epoch)
        return Loaded(views, torch.from_numpy(index), torch.from_numpy(labels), num_corrupt)

    def finish(self, loaded: Loaded, step: int, device: torch.device) -> Batch:
        """Move loaded rows to the device, augment them there if that is still to do, and normalise."""
        if loaded.num_corrupt:
            log.warning("step %d: %d corrupt image(s) replaced by others of their read unit", step, loaded.num_corrupt)
        views = {name: view.to(device, non_blocking=True) for name, view in loaded.views.items()}
        if not self.augment_in_task:
            views = self.recipe.augment(views, loaded.index.numpy(), self.order.seed, step // self.order.epoch_len)
        floats = {name: normalize(view, self.mean, self.std) for name, view in views.items()}
        return Batch(floats, loaded.index.to(device), loaded.label.to(device))

    def plain(self, rank: int, world: int, device: torch.device) -> Iterator[Batch]:
        """A rank's share of the training images without augmentation, in dataset order, as the group "image"."""
        first, end = (self.split.num_samples * place // world for place in (rank, rank + 1))
        return plain_batches(self, self.split, first, end, device)


@dataclass(frozen=True)
class LocalBatches:
    """Batches made in this process: for notebooks, tests, and to compare the distributed pipeline with."""

    loader: Loader
    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def from_step(self, step: int) -> Iterator[Batch]:
        """Batches without end, the first one that of `step`."""
        while True:
            yield self.loader.finish(self.loader.load(step, self.rank, self.world), step, self.device)
            step += 1

    def plain(self) -> Iterator[Batch]:
        """See `Loader.plain`."""
        return self.loader.plain(self.rank, self.world, self.device)


def plain_batches(loader: Loader, split: Split, first: int, end: int, device: torch.device) -> Iterator[Batch]:
    """The images [first, end) of a split without augmentation, as the group "image" of one view.

    Args:
        loader: gives size and normalisation.
        split: the images, not necessarily those of the loader.
        first, end: places in the split.
        device: where batches go.
    """
    for start in range(first, end, PLAIN_ROWS):
        index = np.arange(start, min(end, start + PLAIN_ROWS))
        images, labels, _ = read_images(split, index)
        views = loader.plain_recipe(images, index, seed=0, epoch=0)
        floats = {name: normalize(view.to(device), loader.mean, loader.std) for name, view in views.items()}
        yield Batch(floats, torch.from_numpy(index).to(device), torch.from_numpy(labels).to(device))


def read_images(split: Split, index: Int64s) -> tuple[list[Tensor], Int64s, int]:
    """Decoded images uint8 [3, H, W], their labels, and how many were corrupt.

    A corrupt image is replaced by the next valid one of its read unit, so the same on every read.

    Raises:
        CorruptImage: if a unit holds no valid image.
    """
    rows = split.read(index)
    images: list[Tensor] = []
    labels = rows.labels.copy()
    num_corrupt = 0
    for place, image in enumerate(rows.images):
        try:
            images.append(decode(image))
        except CorruptImage as error:
            replacement, labels[place] = _replacement(split, int(index[place]), f"{rows.names[place]}: {error}")
            images.append(replacement)
            num_corrupt += 1
    return images, labels, num_corrupt


def _replacement(split: Split, index: int, reason: str) -> tuple[Tensor, int]:
    starts = np.cumsum(split.unit_sizes) - split.unit_sizes
    unit = int(np.searchsorted(starts, index, side="right")) - 1
    first, size = int(starts[unit]), int(split.unit_sizes[unit])
    for distance in range(1, size):
        rows = split.read(np.array([first + (index - first + distance) % size]))
        try:
            return decode(rows.images[0]), int(rows.labels[0])
        except CorruptImage:
            continue
    raise CorruptImage(f"no valid image in the {size} rows from {first} on; the first problem: {reason}")
