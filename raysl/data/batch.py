"""What a training step gets: the views of a batch of images, and who they are."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from raysl.hashing import Int64s, hash_words
from raysl.transforms.random import SampleRandom

_ROWS, _SHARED = crc32(b"batch rows"), crc32(b"batch shared")  # what the keys are for, as the number of a view is


@dataclass(frozen=True)
class Batch:
    """This rank's rows of a global batch.

    Args:
        views: float images by group of views, {"global": [B, V, C, H, W], ...}.
        index: int64 [B], the samples' stable places in the dataset.
        label: int64 [B], -1 where unlabelled.
        lane: int64 [B], the fixed part of the global batch that a row is in, whatever the number of ranks; default: 0.
        extras: what the views tell the method, by group: "global.mask" bool [B, V, h, w], "global.rotation" and
            "patches.permutation" int64 [B, V].
        seed: of the run.
        epoch, step: where training is.
        host_index: `index` once more, on the CPU; default: taken from there when it is needed.
    """

    views: dict[str, Tensor]
    index: Tensor
    label: Tensor
    lane: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    extras: dict[str, Tensor] = field(default_factory=dict)
    seed: int = 0
    epoch: int = 0
    step: int = 0
    host_index: Int64s | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if len(self.lane) != len(self.index):
            if len(self.lane):
                raise ValueError(f"{len(self.lane)} lanes came with {len(self.index)} rows; give one for each, or none")
            object.__setattr__(self, "lane", torch.zeros_like(self.index))

    def __len__(self) -> int:
        return len(self.index)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """The same batch with `function` applied to each of its tensors; it may choose rows, or move them."""
        return replace(
            self,
            views={name: function(view) for name, view in self.views.items()},
            index=function(self.index),
            label=function(self.label),
            lane=function(self.lane),
            extras={name: function(extra) for name, extra in self.extras.items()},
            host_index=None,
        )

    def random(self, slot: str) -> SampleRandom:
        """Numbers for each row, a function of (seed, epoch, sample index, slot): the same at any number of ranks.

        Args:
            slot: what they are for; another one has other numbers.
        """
        index = self.index.cpu().numpy() if self.host_index is None else self.host_index
        return SampleRandom(self.seed, self.epoch, np.asarray(index, np.int64), _ROWS).at(crc32(slot.encode()))

    def shared(self, slot: str, num_rows: int = 1) -> SampleRandom:
        """Numbers that the whole global batch shares, a function of (seed, step, slot).

        Args:
            slot: what they are for; another one has other numbers.
            num_rows: how often they are given, once for each row that asks for them.
        """
        key = hash_words(self.seed, self.step)
        return SampleRandom(key, 0, np.zeros(num_rows, np.int64), _SHARED).at(crc32(slot.encode()))


@dataclass(frozen=True)
class DataInfo:
    """What a method may know of the dataset before it sees an image."""

    num_samples: int
    num_classes: int
    eval_size: int
    """Side of the square images that benchmarks and users of the backbone feed, `data.image_size`, in pixels."""
    fingerprint: str = ""
    """Changes when the training images do; empty: not known, as of a list of batches."""

    @classmethod
    def stored(cls, note: dict[str, Any]) -> "DataInfo":
        """What a checkpoint's `meta.json` says; the first ones call the size `image_size`."""
        eval_size = note.get("eval_size", note.get("image_size", 0))
        return cls(note["num_samples"], note["num_classes"], eval_size, note.get("fingerprint", ""))
