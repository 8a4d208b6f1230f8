"""The order of samples: which images make up a global batch, and which of them a rank gets.

Everything here is a pure function of (seed, epoch, dataset), so that a run can continue at any step, with any number of
ranks, without a saved position:

* An epoch is a sequence of sample indices, cut into global batches; an incomplete last batch is left out or is smaller.
* A global batch consists of L *lanes*, which do not depend on the number of ranks W. Rank r takes the lanes from
  r*L/W to (r+1)*L/W, so the order of lanes is the same for every W.
* A dataset whose rows can be read one by one gets an exact permutation. Any other is read in *units* (row groups, runs
  of files in a tar): units are permuted, their rows laid end to end and cut into L lanes of equal length. A lane is
  used in *windows* of m whole units, and rows are permuted inside a window. So each unit is read once, except the
  L - 1 that lie across a cut. The first window of a lane has m units or fewer, so that lanes do not all need their next
  one at the same step.

An epoch keeps the permutation of units and their starts in memory, 12 bytes per unit; the permutation of a window is
made when it is reached, and an exact one of many rows is computed row by row.

The order of a run never changes: a run stores its version, and another version is refused.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from raysl.hashing import GOLDEN, MASK, Int64s, feistel, hash_text, hash_words, permutation
from raysl.storage.cache import RecentlyUsed

CACHE_BYTES = 1 << 26  # of permutations in a process
FEW_LANES = 16  # are kept even where a dataset has few read units, for as many workers
SORTED_ROWS = 1 << 16  # exact permutations of at most so many rows are sorted and kept
SAMPLES, UNITS, WINDOW, LANE = 1, 2, 3, 4  # first words of the keys of what is kept


@dataclass(frozen=True, eq=False)
class Order:
    """The order of a dataset's samples in every epoch of a run.

    Args:
        fingerprint: digest of the dataset; another dataset has another order.
        unit_sizes: rows of each read unit, int64 [U]; samples are numbered through the units.
        batch_size: samples in a global batch.
        lanes: fixed parts of a global batch, at most batch_size.
        window: rows of a lane that are shuffled together, rounded to whole units; None: as many as a good shuffle
            needs, see `window_units`. It is unused when `is_exact`.
        is_exact: permute all rows instead of units and windows.
        drop_last: leave out an incomplete last batch.

    >>> order = Order(0, "dataset", np.array([4, 4]), batch_size=4, lanes=2, window=None, is_exact=True)
    >>> order.epoch_len, sorted(np.concatenate([order.batch(0), order.batch(1)]).tolist())
    (2, [0, 1, 2, 3, 4, 5, 6, 7])
    """

    version: ClassVar[int] = 2
    """Version of the order, stored with a run."""

    seed: int
    fingerprint: str
    unit_sizes: Int64s
    batch_size: int
    lanes: int
    window: int | None
    is_exact: bool
    drop_last: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.lanes <= self.batch_size:
            raise ValueError(f"lanes must be in [1, batch size {self.batch_size}], not {self.lanes}")
        if self.epoch_len == 0:
            raise ValueError(f"{self.num_samples} samples are fewer than a batch of {self.batch_size}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"the window holds at least one row, not {self.window}")

    @cached_property
    def num_samples(self) -> int:
        """Rows of the dataset."""
        return int(self.unit_sizes.sum())

    @cached_property
    def epoch_len(self) -> int:
        """Global batches in an epoch."""
        return epoch_length(self.num_samples, self.batch_size, self.drop_last)

    @cached_property
    def window_units(self) -> int:
        """Consecutive units of a complete window.

        Without a `window` they hold about b*sqrt(u) rows or more, where a lane has b rows of a batch and a unit has u.
        The overlap of batches of two epochs then varies about twice as much as that of exact permutations, or less.
        """
        unit_rows = self.num_samples / np.count_nonzero(self.unit_sizes)
        if self.window is not None:
            return max(1, round(self.window / unit_rows))
        # 5 % less is enough: files that end in a shorter unit would else add a unit to each window
        return math.ceil(0.95 * self.batch_size / self.lanes / math.sqrt(unit_rows))

    def batch_rows(self, step: int) -> int:
        """Return the number of rows of the global batch at a step."""
        return min(self.batch_size, self.num_samples - step % self.epoch_len * self.batch_size)

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Int64s:
        """Return the sample indices of a rank's rows of a global batch; steps count from the start of the run."""
        epoch, in_epoch = divmod(step, self.epoch_len)
        lanes = rank_share(self.lanes, rank, world)
        num_rows = self.batch_rows(step)
        if self.is_exact:
            first = in_epoch * self.batch_size
            return self._exact(
                epoch, first + self._slot(lanes.start, num_rows), first + self._slot(lanes.stop, num_rows)
            )
        empty = np.empty(0, np.int64)  # a rank has no lanes if there are more ranks than lanes
        return np.concatenate([empty, *(self._lane_batch(epoch, in_epoch, lane) for lane in lanes)])

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

    def lane_rows(self, lane: int) -> int:
        """Return a lane's number of rows of a complete global batch."""
        return self._slot(lane + 1, self.batch_size) - self._slot(lane, self.batch_size)

    def windows(self, epoch: int, lane: int) -> Int64s:
        """Return the rows of a lane at which its n windows of an epoch start, and the lane's length, int64 [n + 1].

        At a step inside the epoch, a lane uses its next `lane_rows` rows, at the last step all that are left.
        """
        key = self._key(LANE, epoch, lane)

        def make() -> tuple[Int64s, int]:
            start, stop = self._lane_start(lane), self._lane_start(lane + 1)
            _, starts = self._unit_order(epoch)
            first, end = np.searchsorted(starts, [start, stop]).tolist()
            # multiples of the golden ratio, modulo 1, are spread evenly over any consecutive lanes: those of a rank too
            first += (lane * GOLDEN & MASK) * self.window_units >> 64
            cuts = starts[first : end : self.window_units]
            rows = np.unique(np.concatenate([[start], cuts, [stop]])) - start
            return rows, rows.nbytes

        cuts: Int64s = _CACHE.get((key, self._shape_key), make)
        return cuts

    def window_samples(self, epoch: int, lane: int, number: int) -> Int64s:
        """Return the sample indices of a window in the order in which the lane uses them, int64 [rows]."""
        first, stop = self.windows(epoch, lane)[number : number + 2].tolist()
        return self._window_samples(epoch, lane, number, first, stop)

    def _lane_batch(self, epoch: int, in_epoch: int, lane: int) -> Int64s:
        """Return the sample indices of a lane's rows of a global batch."""
        cuts = self.windows(epoch, lane)
        size = self.lane_rows(lane)
        start, stop = in_epoch * size, int(cuts[-1]) if in_epoch == self.epoch_len - 1 else (in_epoch + 1) * size
        parts = [np.empty(0, np.int64)]
        numbers = range(int(np.searchsorted(cuts, start, "right")) - 1, int(np.searchsorted(cuts, stop)))
        for number in numbers:
            first, end = cuts[number : number + 2].tolist()
            samples = self._window_samples(epoch, lane, number, first, end)
            parts.append(samples[max(start, first) - first : min(stop, end) - first])
        return np.concatenate(parts)

    def _window_samples(self, epoch: int, lane: int, number: int, first: int, stop: int) -> Int64s:
        key = self._key(WINDOW, epoch, lane, number)

        def make() -> tuple[Int64s, int]:
            rows = self._lane_start(lane) + first + permutation(stop - first, key)
            samples = self._samples(epoch, rows)
            return samples, samples.nbytes

        samples: Int64s = _CACHE.get((key, stop - first, self._shape_key), make)
        return samples

    def _exact(self, epoch: int, first: int, stop: int) -> Int64s:
        """Return the sample indices of the rows [first, stop) of an epoch of an exact permutation."""
        key = self._key(SAMPLES, epoch)
        if self.num_samples <= SORTED_ROWS:
            return cached_permutation(self.num_samples, key)[first:stop]
        return feistel(self.num_samples, key, np.arange(first, stop))

    def _slot(self, lane: int, num_rows: int) -> int:
        """Return the first row of a lane in a global batch of `num_rows` rows."""
        return lane * num_rows // self.lanes

    def _lane_start(self, lane: int) -> int:
        """Return the first row of a lane in the epoch's units laid end to end: after all rows of earlier lanes."""
        last = self.epoch_len - 1
        return last * self._slot(lane, self.batch_size) + self._slot(lane, self.batch_rows(last))

    def _samples(self, epoch: int, rows: Int64s) -> Int64s:
        """Return the sample indices of rows of the epoch's units laid end to end."""
        units, starts = self._unit_order(epoch)
        nth = np.searchsorted(starts, rows, side="right") - 1
        samples: Int64s = self._first_samples[units[nth]] + rows - starts[nth]
        return samples

    def _unit_order(self, epoch: int) -> tuple[NDArray[np.int32], Int64s]:
        """Return the epoch's permutation of the units, and the first row of each."""
        key = self._key(UNITS, epoch)

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

    @cached_property
    def _shape_key(self) -> int:
        """Of everything beside the key that the samples of a window depend on."""
        return hash_words(self._sizes_key, self.batch_size, self.lanes, self.window_units, self.drop_last)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_first_samples"}

    def _key(self, *words: int) -> int:
        return hash_words(self.seed, self._dataset_key, *words)

    @cached_property
    def _dataset_key(self) -> int:
        return hash_text(self.fingerprint)


def cached_permutation(n: int, key: int) -> Int64s:
    """Return `raysl.hashing.permutation(n, key)`, kept for the next call."""

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


def default_lanes(batch_size: int, num_units: int | None = None, shares: int = 1) -> int:
    """Return the default number of lanes: 64 or the batch size if that is smaller, and fewer of few read units.

    Each lane reads a part of a unit at its beginning, so there are 4 units or more for each lane above the first 16.

    Args:
        batch_size: samples in a global batch.
        num_units: read units; None for an exact order, which has none.
        shares: parts into which the lanes must fall, such as the number of workers. Where `num_units` is too few for
            an equal number of lanes in each part, they may be unequal.

    >>> default_lanes(4096), default_lanes(4096, num_units=150), default_lanes(4096, num_units=150, shares=64)
    (64, 32, 64)
    """
    lanes = min(64, batch_size)
    if num_units is None:
        return lanes
    parts = shares if lanes % shares == 0 else 1
    fewer = [number for number in range(shares, lanes + 1) if lanes % number == 0 and number % parts == 0]
    most = max(FEW_LANES, num_units // 4)
    return max((number for number in fewer if number <= most), default=min(fewer, default=lanes))


_CACHE: RecentlyUsed[Any] = RecentlyUsed(CACHE_BYTES)
"""Permutations and cuts of lanes of this process, by their keys; they are not pickled with an order."""
