"""Batches of images with targets (boxes, masks).

An image has any number of boxes and masks, and batches are of any size, so a block is what a rank needs of one step.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from raysl.data.batch import Batch
from raysl.data.decode.corrupt import Known
from raysl.data.stream.blocks import RankRows, StepRows
from raysl.data.stream.loader import Loader
from raysl.data.stream.rows import Loaded
from raysl.transforms.device import to_device
from raysl.transforms.random import SampleRandom


class TargetRecipe(ABC):
    """Makes training batches of the images of a split and their targets."""

    @abstractmethod
    def example(self, split: Any, index: int, random: SampleRandom) -> Any:
        """Read, crop and augment an image with its targets.

        Args:
            random: numbers of (seed, epoch, index), one row.
        """

    @abstractmethod
    def collate(self, examples: Sequence[Any], index: Tensor) -> Batch:
        """Join examples, with their indices int64 [B], into a batch on the CPU: normalised views, and targets in
        `extras`."""


@dataclass(frozen=True)
class TargetLoader(Loader):
    """Makes the batches of a run on images with targets; plain images are those of any `Loader`."""

    targets: TargetRecipe = field(kw_only=True)

    @property
    @override
    def has_windows(self) -> bool:
        """No: each image is read with its targets, in the step that uses it."""
        return False

    @override
    def load(self, step: int, rank: int, world: int, known: Known | None = None) -> Loaded:
        keys, epoch = self.order.batch(step, rank, world), step // self.order.epoch_len
        index = self.order.samples_of(keys)

        def example(row: int) -> Any:
            random = SampleRandom(self.order.seed, epoch, keys[row : row + 1], 0)
            return self.targets.example(self.split, int(index[row]), random)

        batch = self.targets.collate([example(row) for row in range(len(index))], torch.from_numpy(index))
        return Loaded(batch.views, batch.extras, torch.from_numpy(keys), batch.label)

    @override
    def load_rows(self, block: StepRows, known: Known | None = None) -> list[Loaded]:
        assert isinstance(block, RankRows)
        return [self.load(block.step, block.rank, block.world, known)]

    @override
    def blocks(self, rank: int, world: int, first: int, end: int, target: int) -> Iterator[StepRows]:
        num_rows = self.order.num_rows(rank, world)
        return (RankRows(step, step + 1, rank, world, 0, num_rows) for step in range(first, end))

    @override
    def finish(self, loaded: Loaded, step: int, device: torch.device, rank: int = 0, world: int = 1) -> Batch:
        views = {name: to_device(view, device) for name, view in loaded.views.items()}
        return self.batch_of(loaded, views, loaded.extras, step, device, rank, world)
