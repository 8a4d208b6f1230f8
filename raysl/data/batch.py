"""The batch of a training step: views of images, with their indices and labels."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from raysl.hashing import Int64s, hash_words
from raysl.storage.records import from_record
from raysl.transforms.random import SampleRandom

_ROWS, _SHARED = crc32(b"batch rows"), crc32(b"batch shared")  # parts of the keys, like the number of a view


@dataclass(frozen=True, repr=False)
class Batch:
    """This rank's rows of a global batch.

    Args:
        views: float images by group of views, {"global": [B, V, C, H, W], ...}.
        index: int64 [B], the samples' indices in the dataset.
        label: int64 [B], -1 where unlabelled.
        lane: int64 [B], the fixed part of the global batch of each row, for any number of ranks; default: 0.
        extras: additional outputs of the views, by group: "global.mask" bool [B, V, h, w], "global.rotation" and
            "patches.permutation" int64 [B, V], "global.box" float32 [B, V, 6] (`raysl.transforms.View`).
        epoch, step: number of the epoch and of the step.
        key: int64 [B], numbers that `random` is drawn from; default: `index`. They differ from it where `data.weights`
            takes an image several times an epoch.
        host_key: a copy of `key` on the CPU; default: copied when it is needed.

    >>> batch = Batch({"global": torch.zeros(2, 1, 3, 8, 8)}, torch.arange(2), torch.tensor([5, 7]))
    >>> len(batch), batch.map(lambda rows: rows[:1]).label
    (2, tensor([5]))
    """

    views: dict[str, Tensor]
    index: Tensor
    label: Tensor
    lane: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    extras: dict[str, Tensor] = field(default_factory=dict)
    seed: int = 0
    epoch: int = 0
    step: int = 0
    key: Tensor | None = None
    host_key: Int64s | None = None

    def __post_init__(self) -> None:
        if len(self.lane) != len(self.index):
            if len(self.lane):
                raise ValueError(f"{len(self.lane)} lanes for {len(self.index)} rows; give one for each, or none")
            object.__setattr__(self, "lane", torch.zeros_like(self.index))

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        """The shapes of its tensors, and where it belongs."""
        tensors = {**self.views, **self.extras, "index": self.index, "label": self.label}
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
        return f"Batch({shapes}; epoch {self.epoch}, step {self.step})"

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the batch with `function` applied to each of its tensors; it may choose rows, or move them."""
        return replace(
            self,
            views={name: function(view) for name, view in self.views.items()},
            index=function(self.index),
            label=function(self.label),
            lane=function(self.lane),
            extras={name: function(extra) for name, extra in self.extras.items()},
            key=None if self.key is None else function(self.key),
            # `function` may have chosen rows, which an earlier copy of the keys would not follow
            host_key=None,
        )

    def random(self, slot: str) -> SampleRandom:
        """Return random numbers for each row, a function of (seed, epoch, key, slot).

        Args:
            slot: name of their use; each slot has different numbers.
        """
        return SampleRandom(self.seed, self.epoch, self.keys_on_host(), _ROWS).at(crc32(slot.encode()))

    def keys_on_host(self) -> Int64s:
        """Return the key of each row; the copy in `host_key` spares the host a wait for the GPU."""
        if self.host_key is not None:
            return self.host_key
        return (self.index if self.key is None else self.key).cpu().numpy().astype(np.int64)

    def shared(self, slot: str, num_rows: int = 1) -> SampleRandom:
        """Return random numbers that are the same on all ranks, a function of (seed, step, slot).

        Args:
            slot: name of their use; each slot has different numbers.
            num_rows: number of rows, all with the same numbers.
        """
        key = hash_words(self.seed, self.step)
        return SampleRandom(key, 0, np.zeros(num_rows, np.int64), _SHARED).at(crc32(slot.encode()))


@dataclass(frozen=True)
class DataInfo:
    """Facts about the dataset that a method may use before it sees an image."""

    num_samples: int
    num_classes: int
    eval_size: int
    """Side of the square images that benchmarks and users of the backbone feed, `data.image_size`, in pixels."""
    fingerprint: str = ""
    """Changes when the training images do; empty if unknown, as for a list of batches."""

    @classmethod
    def stored(cls, note: dict[str, Any], where: str = "meta.json: data") -> "DataInfo":
        """Read it from a checkpoint's `meta.json`."""
        return from_record(cls, note, where)
