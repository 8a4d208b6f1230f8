"""The order of samples: which images make up a global batch, and which of them a rank gets.

Everything here is a pure function of (seed, epoch, dataset), so that a run can continue at any step, with any number of
ranks, without a saved position:

* An epoch is a sequence of sample indices, cut into global batches; an incomplete last batch is left out or is smaller.
* A global batch consists of L *lanes*, which do not depend on the number of ranks W. Rank r takes the lanes from
  r*L/W to (r+1)*L/W, so the order of lanes is the same for every W.
* A dataset whose rows can be read one by one gets an exact permutation. Any other is read in *units* (row groups, tar
  shards, runs of files): units are permuted, their rows laid end to end and cut into L lanes of equal length, and rows
  are permuted inside a window of one lane. A unit is read by one rank, except the W - 1 that lie across a cut.

An epoch keeps the permutation of units and their starts in memory, 12 bytes per unit; the permutation of a window is
made when it is reached.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from raysl.hashing import Int64s, hash_text, hash_words, permutation
from raysl.storage.cache import RecentlyUsed

CACHE_BYTES = 1 << 26  # of permutations in a process
_SAMPLES, _UNITS, _WINDOW = 1, 2, 3  # kinds of permutations; part of their keys


@dataclass(frozen=True, eq=False)
class Order:
    """The order of a dataset's samples in every epoch of a run.

    Args:
        seed: the run's seed.
        fingerprint: of the dataset; another dataset has another order.
        unit_sizes: rows of each read unit, int64 [U]; samples are numbered through the units.
        batch_size: samples in a global batch.
        lanes: fixed parts of a global batch, at most batch_size.
        window: rows of a lane that are shuffled together; unused when `is_exact`.
        is_exact: permute all rows instead of units and windows.
        drop_last: leave out an incomplete last batch.

    >>> order = Order(0, "dataset", np.array([4, 4]), batch_size=4, lanes=2, window=2, is_exact=True)
    >>> order.epoch_len, sorted(np.concatenate([order.batch(0), order.batch(1)]).tolist())
    (2, [0, 1, 2, 3, 4, 5, 6, 7])
    """

    seed: int
    fingerprint: str
    unit_sizes: Int64s
    batch_size: int
    lanes: int
    window: int
    is_exact: bool
    drop_last: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.lanes <= self.batch_size:
            raise ValueError(f"lanes must be in [1, batch size {self.batch_size}], not {self.lanes}")
        if self.epoch_len == 0:
            raise ValueError(f"{self.num_samples} samples are fewer than a batch of {self.batch_size}")
        if self.window < 1:
            raise ValueError(f"the window holds at least one row, not {self.window}")

    @cached_property
    def num_samples(self) -> int:
        """Rows of the dataset."""
        return int(self.unit_sizes.sum())

    @cached_property
    def epoch_len(self) -> int:
        """Global batches in an epoch."""
        return epoch_length(self.num_samples, self.batch_size, self.drop_last)

    def batch_rows(self, step: int) -> int:
        """Return the number of rows of the global batch at a step."""
        return min(self.batch_size, self.num_samples - step % self.epoch_len * self.batch_size)

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Int64s:
        """Return the sample indices of a rank's rows of a global batch; steps count from the start of the run."""
        epoch, in_epoch = divmod(step, self.epoch_len)
        lanes = rank_share(self.lanes, rank, world)
        num_rows = self.batch_rows(step)
        if self.is_exact:
            key = self._key(_SAMPLES, epoch)
            samples: Int64s = _cached_permutation(self.num_samples, key)
            first = in_epoch * self.batch_size
            return samples[first + self._slot(lanes.start, num_rows) : first + self._slot(lanes.stop, num_rows)]
        empty = np.empty(0, np.int64)  # a rank has no lanes if there are more ranks than lanes
        return np.concatenate([empty, *(self._lane_rows(epoch, in_epoch, lane) for lane in lanes)])

    def lanes_of(self, step: int, rank: int = 0, world: int = 1) -> Int64s:
        """Return the lane of each row of `batch(step, rank, world)`."""
        lanes = rank_share(self.lanes, rank, world)
        num_rows = self.batch_rows(step)
        counts = [self._slot(lane + 1, num_rows) - self._slot(lane, num_rows) for lane in lanes]
        return np.repeat(np.arange(lanes.start, lanes.stop), counts)

    def num_rows(self, rank: int, world: int) -> int:
        """Return a rank's number of rows of a complete global batch."""
        lanes = rank_share(self.lanes, rank, world)
        return self._slot(lanes.stop, self.batch_size) - self._slot(lanes.start, self.batch_size)

    def _slot(self, lane: int, num_rows: int) -> int:
        """Return the first row of a lane in a global batch of `num_rows` rows."""
        return lane * num_rows // self.lanes

    def _lane_start(self, lane: int) -> int:
        """Return the first row of a lane in the epoch's units laid end to end: after all rows of earlier lanes."""
        last = self.epoch_len - 1
        return last * self._slot(lane, self.batch_size) + self._slot(lane, self.batch_rows(last))

    def _lane_rows(self, epoch: int, in_epoch: int, lane: int) -> Int64s:
        start, length = self._lane_start(lane), self._lane_start(lane + 1) - self._lane_start(lane)
        size = self._slot(lane + 1, self.batch_size) - self._slot(lane, self.batch_size)
        rows = np.arange(in_epoch * size, length if in_epoch == self.epoch_len - 1 else (in_epoch + 1) * size)
        shuffled = np.empty_like(rows)
        for number in np.unique(rows // self.window).tolist():
            first = number * self.window
            num = min(self.window, length - first)
            key = self._key(_WINDOW, epoch, lane, number)
            order = _cached_permutation(num, key)
            inside = rows // self.window == number
            shuffled[inside] = first + order[rows[inside] - first]
        return self._samples(epoch, start + shuffled)

    def _samples(self, epoch: int, rows: Int64s) -> Int64s:
        """Return the sample indices of rows of the epoch's units laid end to end."""
        units, starts = self._unit_order(epoch)
        nth = np.searchsorted(starts, rows, side="right") - 1
        samples: Int64s = self._first_samples[units[nth]] + rows - starts[nth]
        return samples

    def _unit_order(self, epoch: int) -> tuple[NDArray[np.int32], Int64s]:
        """Return the epoch's permutation of the units, and the first row of each."""
        key = self._key(_UNITS, epoch)

        def make() -> tuple[tuple[NDArray[np.int32], Int64s], int]:
            units = permutation(len(self.unit_sizes), key).astype(np.int32)
            starts = np.cumsum(self.unit_sizes[units])
            starts -= self.unit_sizes[units]
            return (units, starts), units.nbytes + starts.nbytes

        order: tuple[NDArray[np.int32], Int64s] = _CACHE.get((key, self._sizes_key), make)
        return order

    @cached_property
    def _first_samples(self) -> Int64s:
        """Index of the first sample of each unit."""
        first: Int64s = np.cumsum(self.unit_sizes)
        first -= self.unit_sizes
        return first

    @cached_property
    def _sizes_key(self) -> int:
        return crc32(self.unit_sizes.tobytes())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_first_samples"}

    def _key(self, *words: int) -> int:
        return hash_words(self.seed, hash_text(self.fingerprint), *words)


def _cached_permutation(n: int, key: int) -> Int64s:
    def make() -> tuple[Int64s, int]:
        order = permutation(n, key)
        return order, order.nbytes

    cached: Int64s = _CACHE.get((key, n), make)
    return cached


def epoch_length(num_samples: int, batch_size: int, drop_last: bool) -> int:
    """Return the number of global batches in an epoch.

    >>> epoch_length(10, 4, drop_last=True), epoch_length(10, 4, drop_last=False)
    (2, 3)
    """
    return num_samples // batch_size if drop_last else -(-num_samples // batch_size)


def rank_share(num: int, rank: int, world: int) -> range:
    """Return a rank's part of `num` lanes, rows or images: from rank*num/W to (rank+1)*num/W, rounded down.

    >>> [list(rank_share(5, rank, 2)) for rank in range(2)]
    [[0, 1], [2, 3, 4]]
    """
    return range(rank * num // world, (rank + 1) * num // world)


def default_lanes(batch_size: int) -> int:
    """Return the default number of lanes: 64, or the batch size if that is smaller."""
    return min(64, batch_size)


_CACHE: RecentlyUsed[Any] = RecentlyUsed(CACHE_BYTES)
"""Permutations of this process, by their keys; they are not pickled with an order."""
