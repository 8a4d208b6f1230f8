"""Make the views of a batch from the indices of its samples; this part of the pipeline does not use Ray."""

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from raysl.config.ranges import Interpolation
from raysl.data.batch import Batch
from raysl.data.decode.corrupt import CorruptLog, Known
from raysl.data.decode.decode import can_reduce, image_size
from raysl.data.decode.images import Cut, Pictures, cut_images
from raysl.data.order import Order, rank_share
from raysl.data.source import Rows, Split
from raysl.data.stream.blocks import PlainRows, StepRows, rank_blocks
from raysl.data.stream.prefetch import batches_for
from raysl.data.stream.rows import Loaded, join_batches, load_block, to_loaded
from raysl.errors import log
from raysl.hashing import Int64s, hash_words
from raysl.transforms.channels import Channels, network_input
from raysl.transforms.device import to_device
from raysl.transforms.programs import HAS_KERNELS
from raysl.transforms.resized_boxes import equals_torch
from raysl.transforms.view_recipe import Augmented, ViewRecipe

PLAIN_ROWS = 256
LARGE_BYTES = 1 << 17  # JPEG files of at least this size may be decoded at a reduced scale
MOST_REDUCED = 8
FOREVER = 1 << 62  # steps

ReadBlocks = Callable[[Iterable[PlainRows]], Iterator[Batch]]
"""Makes a batch of each block of images, without augmentation."""

Stages = tuple[tuple[int, ViewRecipe], ...]
"""Views by stages of a run, each with its first epoch, the first of which is 0."""
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Loader:
    """Makes the views of any batch of a run; any process can make any batch.

    Args:
        recipe: views of an image, the same for each paired source.
        mean, std: normalisation, by channel.
        augment_in_task: whether `load` also augments; else `finish` does so on the device.
        plain_recipe: view of an image without augmentation.
        scaled_decode: whether large JPEG files may be decoded at a reduced scale for training.
        channels: the network's input channels, see `network_input`.
        held_out: the held-out images that are measured during training, or None.
        stages: views of the training batches, where their size changes during the run; empty: those of `recipe`.
    """

    split: Split
    recipe: ViewRecipe
    order: Order
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment_in_task: bool
    plain_recipe: ViewRecipe
    scaled_decode: bool = True
    channels: Channels = "rgb"
    held_out: Split | None = None
    stages: Stages = ()

    def recipe_at(self, epoch: int) -> ViewRecipe:
        """Return the views of the training batches of an epoch."""
        return next((recipe for first, recipe in reversed(self.stages) if epoch >= first), self.recipe)

    @property
    def has_windows(self) -> bool:
        """Whether rows are read window by window, each for several steps."""
        return not self.order.is_exact

    def prepare(self) -> None:
        """Load the compiled code that resizes images, before the first image is read."""
        if HAS_KERNELS:
            equals_torch()

    def load(self, step: int, rank: int, world: int, known: Known | None = None) -> Loaded:
        """Read, decode and crop a rank's rows of a step; augment them if `augment_in_task`."""
        return self.load_samples(self.order.batch(step, rank, world), step // self.order.epoch_len, known)

    def load_samples(self, keys: Int64s, epoch: int, known: Known | None = None) -> Loaded:
        """Load any samples by the order's keys, int64 [B], with the views of an epoch; `known` as in `cut_images`."""
        seed, recipe = self.order.seed, self.recipe_at(epoch)
        index = self.order.samples_of(keys)
        cut = self._cut(self.split, index, recipe, keys, seed, epoch, self.scaled_decode, known)
        augmented = self._augment(cut.views, keys, epoch, recipe) if self.augment_in_task else Augmented(cut.views, {})
        labels = torch.from_numpy(cut.labels)
        return Loaded(augmented.views, augmented.extras, torch.from_numpy(keys), labels, cut.corrupt, cut.read_s)

    def load_rows(self, block: StepRows, known: Known | None = None) -> list[Loaded]:
        """Load the rows of a block, those of each epoch together; `known` as in `cut_images`."""
        return [self.load_samples(keys, epoch, known) for epoch, keys in block.samples(self.order)]

    def blocks(self, rank: int, world: int, first: int, end: int, target: int) -> Iterator[StepRows]:
        """Yield the blocks of a rank, see `rank_blocks`."""
        return rank_blocks(self.order, rank, world, first, end, target)

    def finish(self, loaded: Loaded, step: int, device: torch.device, rank: int = 0, world: int = 1) -> Batch:
        """Move a rank's loaded rows to the device, augment them there unless `load` did, and normalise.

        Copies to a GPU start from pinned memory, so that they run while the host continues.
        """
        views = {name: to_device(view, device) for name, view in loaded.views.items()}
        extras = loaded.extras
        if not self.augment_in_task:
            # transforms write into the views, and loaded views may be in memory that processes share
            copies = {name: view.clone() if view is loaded.views[name] else view for name, view in views.items()}
            epoch = step // self.order.epoch_len
            augmented = self._augment(copies, loaded.key.numpy(), epoch, self.recipe_at(epoch))
            views, extras = augmented.views, augmented.extras
        return self.batch_of(loaded, self.normalized(views), extras, step, device, rank, world)

    def batch_of(
        self,
        loaded: Loaded,
        views: dict[str, Tensor],
        extras: dict[str, Tensor],
        step: int,
        device: torch.device,
        rank: int,
        world: int,
    ) -> Batch:
        """Return the batch of a rank's loaded rows at a step, on the device.

        Args:
            views: views of the rows, normalised and on the device.
        """
        lane = torch.from_numpy(self.order.lanes_of(step, rank, world))
        moment = {"lane": to_device(lane, device), "epoch": step // self.order.epoch_len, "step": step}
        if not self.order.mix:
            return self._batch(loaded, loaded.key, views, extras, device, **moment)
        index = torch.from_numpy(self.order.samples_of(loaded.key.numpy()))
        return self._batch(loaded, index, views, extras, device, key=to_device(loaded.key, device), **moment)

    def _batch(
        self,
        loaded: Loaded,
        index: Tensor,
        views: dict[str, Tensor],
        extras: dict[str, Tensor],
        device: torch.device,
        **moment: Any,
    ) -> Batch:
        return Batch(
            views,
            to_device(index, device),
            to_device(loaded.label, device),
            extras={name: to_device(extra, device) for name, extra in extras.items()},
            seed=self.order.seed,
            host_key=loaded.key.numpy(),
            **moment,
        )

    def plain(self, rank: int, world: int, device: torch.device, known: Known | None = None) -> Iterator[Batch]:
        """Return a rank's share of the training images without augmentation, in dataset order, as group "image"."""
        share = rank_share(self.split.num_samples, rank, world)
        return self.plain_batches(self.split, share.start, share.stop, device, known)

    def plain_batches(
        self, split: Split, first: int, end: int, device: torch.device, known: Known | None = None
    ) -> Iterator[Batch]:
        """Yield the images [first, end) of a split without augmentation, as the group "image" of one view."""
        for start in range(first, end, PLAIN_ROWS):
            index = np.arange(start, min(end, start + PLAIN_ROWS))
            yield self.finish_plain(self.load_plain(split, index, known), device)

    def load_plain(
        self, split: Split, index: Int64s, known: Known | None = None, interpolation: Interpolation | None = None
    ) -> Loaded:
        """Load images of a split as the group "image", on the CPU and before normalisation.

        Args:
            index: int64 [B], row numbers in the split.
            interpolation: how images are resized; default: as in `plain_recipe`.
        """
        recipe = self.plain_recipe if interpolation is None else self.plain_recipe.resized(interpolation)
        cut = self._cut(split, index, recipe, index, seed=0, epoch=0, may_reduce=False, known=known)
        return Loaded(cut.views, {}, torch.from_numpy(index), torch.from_numpy(cut.labels), cut.corrupt, cut.read_s)

    def finish_plain(self, loaded: Loaded, device: torch.device) -> Batch:
        """Move images to the device and normalise them, as `finish` does, for a batch that belongs to no step."""
        views = {name: to_device(view, device) for name, view in loaded.views.items()}
        return self._batch(loaded, loaded.key, self.normalized(views), loaded.extras, device)

    def seen_batches(self, split: Split, first: int, end: int, device: torch.device) -> Iterator[Batch]:
        """Yield the images [first, end) of a split with the method's views, drawn as in epoch 0 of a run."""
        for start in range(first, end, PLAIN_ROWS):
            index = np.arange(start, min(end, start + PLAIN_ROWS))
            cut = self._cut(split, index, self.recipe, index, self.order.seed, epoch=0, may_reduce=False)
            augmented = self._augment(cut.views, index, 0, self.recipe)
            labels = torch.from_numpy(cut.labels)
            loaded = Loaded(augmented.views, augmented.extras, torch.from_numpy(index), labels)
            yield self.finish_plain(loaded, device)

    def normalized(self, views: dict[str, Tensor]) -> dict[str, Tensor]:
        """Turn uint8 views into normalised floats."""
        return {name: network_input(view, self.mean, self.std, self.channels) for name, view in views.items()}

    @property
    def row_bytes(self) -> int:
        """Bytes of one sample that a data task sends to a worker."""
        views = sum(view.num_images * view.size**2 for group in self.recipe.groups.values() for view in group)
        crops = sum(view.crop.size**2 for group in self.recipe.groups.values() for view in group)
        return self.split.num_sources * len(self.mean) * (views if self.augment_in_task else crops)

    def _cut(
        self,
        split: Split,
        index: Int64s,
        recipe: ViewRecipe,
        keys: Int64s,
        seed: int,
        epoch: int,
        may_reduce: bool,
        known: Known | None = None,
    ) -> Cut:
        """Read samples by their indices, and cut the crops that belong to their keys."""

        def reductions(rows: Rows, source: int) -> Sequence[int]:
            return _reductions(rows, recipe, keys, pair_seed(seed, source), epoch)

        def crops(sources: tuple[Pictures, ...], keys: Int64s) -> dict[str, Tensor]:
            return {
                pair_name(name, number): view
                for number, pictures in enumerate(sources)
                for name, view in recipe.crop(
                    pictures.images, keys, pair_seed(seed, number), epoch, pictures.sizes
                ).items()
            }

        allowed = reductions if may_reduce and split.bands is None else None
        return cut_images(split, index, crops, allowed, known, keys)

    def _augment(self, views: dict[str, Tensor], index: Int64s, epoch: int, recipe: ViewRecipe) -> Augmented:
        out: dict[str, Tensor] = {}
        extras: dict[str, Tensor] = {}
        for number in range(self.split.num_sources):
            crops = {name: views[pair_name(name, number)] for name in recipe.crop_names}
            augmented = recipe.augment(crops, index, pair_seed(self.order.seed, number), epoch)
            out |= {pair_name(name, number): view for name, view in augmented.views.items()}
            for name, extra in augmented.extras.items():
                group, _, what = name.rpartition(".")
                extras[f"{pair_name(group, number)}.{what}"] = extra
        return Augmented(out, extras)


@dataclass(frozen=True)
class LocalBatches:
    """Makes batches in this process: for notebooks, tests, and comparisons with the distributed pipeline.

    Args:
        device: device of the batches; on a GPU a thread prepares the next ones (see `prefetch`).
        threads: number of threads that read and augment ahead; with 0 a batch is made when it is requested.
    """

    loader: Loader
    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    threads: int = 0
    corrupt: CorruptLog = field(default_factory=CorruptLog)

    def from_step(self, step: int) -> Iterator[Batch]:
        """Yield endless batches, beginning with that of `step`."""
        for batch, corrupt in batches_for(self._finished(step), self.device):
            for image in self.corrupt.add(corrupt):
                log.warning("replaced a corrupt image: %s", image)
            yield batch

    def plain(self) -> Iterator[Batch]:
        """Return this rank's share of the training images without augmentation, in dataset order."""
        return self.loader.plain(self.rank, self.world, self.device, self.corrupt.known)

    def chosen(self, blocks: Iterable[PlainRows]) -> Iterator[Batch]:
        """Yield a batch for each block of images, without augmentation, as group "image"."""
        for block in blocks:
            yield self.loader.finish_plain(to_loaded(load_block(self.loader, block)), self.device)

    def _finished(self, step: int) -> Generator[tuple[Batch, tuple[str, ...]], None, None]:
        """Yield batches on the device, each with the names of its corrupt images."""
        for number, loaded in enumerate(self._loaded(step), step):
            yield self.loader.finish(loaded, number, self.device, self.rank, self.world), loaded.corrupt

    def _loaded(self, step: int) -> Iterator[Loaded]:
        loader, rank, world = self.loader, self.rank, self.world
        with ThreadPoolExecutor(max(1, self.threads)) as pool:
            if loader.has_windows:
                blocks = loader.blocks(rank, world, step, FOREVER, target=1)
                arriving = self._load_ahead(partial(load_block, loader, known=self.corrupt.known), blocks, pool)
                yield from join_batches(loader, rank, world, step, FOREVER, arriving)
            else:
                load = partial(loader.load, rank=rank, world=world, known=self.corrupt.known)
                for _, wait in self._load_ahead(load, itertools.count(step), pool):
                    yield wait()

    def _load_ahead(
        self, load: Callable[[Item], Result], items: Iterable[Item], pool: ThreadPoolExecutor
    ) -> Iterator[tuple[Item, Callable[[], Result]]]:
        """Yield each of endless items with the function that waits for its result; threads load the next ones."""
        if self.threads == 0:
            yield from ((item, partial(load, item)) for item in items)
        ahead: deque[tuple[Item, Future[Result]]] = deque()
        for item in items:
            ahead.append((item, pool.submit(load, item)))
            if len(ahead) > self.threads:
                first, future = ahead.popleft()
                yield first, future.result


def pair_name(name: str, source: int) -> str:
    """Return the name of a group of views, or of an extra, of the n-th paired source.

    >>> pair_name("global", 0), pair_name("global", 1)
    ('global', 'global_1')
    """
    return f"{name}_{source}" if source else name


def pair_seed(seed: int, source: int) -> int:
    """Return the seed for the views of the n-th paired source; the first keeps the seed of the run."""
    return hash_words(seed, source) if source else seed


def _reductions(rows: Rows, recipe: ViewRecipe, index: Int64s, seed: int, epoch: int) -> Sequence[int]:
    """Return the factor by which each image may be decoded smaller, so that no view has to enlarge it."""
    reductions = np.ones(len(index), np.int64)
    large_rows = [number for number, image in enumerate(rows.images) if _is_large(image)]
    if large_rows:
        sizes = np.array([image_size(rows.images[number]) for number in large_rows])  # [n, 2]
        room = recipe.room(sizes, index[large_rows], seed, epoch)  # [n]
        # rounded down to a power of two, the only scales at which JPEG files are decoded
        reductions[large_rows] = 1 << np.log2(room.clip(1, MOST_REDUCED)).astype(np.int64)
    return reductions.tolist()


def _is_large(image: object) -> bool:
    return isinstance(image, bytes) and len(image) >= LARGE_BYTES and can_reduce(image)
