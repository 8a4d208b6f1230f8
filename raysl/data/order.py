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
* In a mix of several sources by weight, each source is gone through in *passes*, one after another: a pass is a
  permutation of all its units (or rows). An epoch takes the next `Part.rows` rows of each source's passes, where the
  epoch before stopped, and permutes all of them as above. So images of a source come equally often, give or take one.

An epoch keeps its permuted units and their starts in memory, 16 bytes per unit; the permutation of a window is made
when it is reached, and an exact one of many rows is computed row by row.

The order of a run never changes: a run stores its version, and another version is refused.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar
from zlib import crc32

import numpy as np

from raysl.hashing import GOLDEN, MASK, Int64s, feistel, hash_text, hash_words, permutation
from raysl.storage.cache import RecentlyUsed

CACHE_BYTES = 1 << 26  # of permutations in a process
FEW_LANES = 16  # are kept even where a dataset has few read units, for as many workers
SORTED_ROWS = 1 << 16  # exact permutations of at most so many rows are sorted and kept
SAMPLES, UNITS, WINDOW, LANE, PASS = 1, 2, 3, 4, 5  # first words of the keys of what is kept


@dataclass(frozen=True)
class Part:
    """One source of a mix: consecutive read units.

    Args:
        name: name of the source.
        units: number of its read units.
        rows: rows of it in each epoch; fewer than it has, or more.
    """

    name: str
    units: int
    rows: int


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
        mix: sources of a mix, in the order of their units, with as many rows together as the dataset has; default: each
            sample comes once an epoch.

    In a mix, a sample may come several times an epoch. To tell these apart, methods return *keys* in place of sample
    indices: the index, plus `num_samples` for each earlier pass that the epoch took from. `samples_of` gives the index.

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
    mix: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        assert not self.mix or sum(part.rows for part in self.mix) == self.num_samples
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

    def samples_of(self, keys: Int64s) -> Int64s:
        """Return the sample indices of keys."""
        return keys % self.num_samples if self.mix else keys

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Int64s:
        """Return the keys of a rank's rows of a global batch; steps count from the start of the run."""
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
        """Return the keys of a window's rows in the order in which the lane uses them, int64 [rows]."""
        first, stop = self.windows(epoch, lane)[number : number + 2].tolist()
        return self._window_samples(epoch, lane, number, first, stop)

    def _lane_batch(self, epoch: int, in_epoch: int, lane: int) -> Int64s:
        """Return the keys of a lane's rows of a global batch."""
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
        """Return the keys of the rows [first, stop) of an epoch of an exact permutation."""
        samples = _permuted(self.num_samples, self._key(SAMPLES, epoch), np.arange(first, stop))
        return self._mixed(epoch, samples) if self.mix else samples

    def _mixed(self, epoch: int, rows: Int64s) -> Int64s:
        """Return the keys of rows of an epoch of a mix, numbered source by source."""
        keys = np.empty_like(rows)
        start = first_unit = first_sample = 0
        for number, part in enumerate(self.mix):
            num = int(self.unit_sizes[first_unit : first_unit + part.units].sum())
            mine = (rows >= start) & (rows < start + part.rows)
            passes, positions = np.divmod(epoch * part.rows + rows[mine] - start, num)
            samples = np.empty_like(positions)
            for each in np.unique(passes).tolist():
                key = self._key(PASS, number, each)
                samples[passes == each] = _permuted(num, key, positions[passes == each])
            keys[mine] = first_sample + samples + self.num_samples * (passes - epoch * part.rows // num)
            start, first_unit, first_sample = start + part.rows, first_unit + part.units, first_sample + num
        return keys

    def _slot(self, lane: int, num_rows: int) -> int:
        """Return the first row of a lane in a global batch of `num_rows` rows."""
        return lane * num_rows // self.lanes

    def _lane_start(self, lane: int) -> int:
        """Return the first row of a lane in the epoch's units laid end to end: after all rows of earlier lanes."""
        last = self.epoch_len - 1
        return last * self._slot(lane, self.batch_size) + self._slot(lane, self.batch_rows(last))

    def _samples(self, epoch: int, rows: Int64s) -> Int64s:
        """Return the keys of rows of the epoch's units laid end to end."""
        keys, starts = self._unit_order(epoch)
        nth = np.searchsorted(starts, rows, side="right") - 1
        samples: Int64s = keys[nth] + rows - starts[nth]
        return samples

    def _unit_order(self, epoch: int) -> tuple[Int64s, Int64s]:
        """Return the key of the first sample of each of the epoch's permuted units, and their first rows."""
        key = self._key(UNITS, epoch)

        def make() -> tuple[tuple[Int64s, Int64s], int]:
            keys, sizes = self._mixed_units(epoch) if self.mix else (self._first_samples, self.unit_sizes)
            units = permutation(len(sizes), key)
            starts = np.cumsum(sizes[units])
            starts -= sizes[units]
            return (keys[units], starts), 2 * starts.nbytes

        order: tuple[Int64s, Int64s] = _CACHE.get((key, self._sizes_key), make)
        return order

    def _mixed_units(self, epoch: int) -> tuple[Int64s, Int64s]:
        """Return the key of the first row, and the rows, of each unit of an epoch of a mix.

        The epoch begins and ends inside units of a source: it has the rows of these that are its own.
        """
        keys, sizes, first_unit = [], [], 0
        for number, part in enumerate(self.mix):
            unit_sizes = self.unit_sizes[first_unit : first_unit + part.units]
            first_samples = self._first_samples[first_unit : first_unit + part.units]
            first_unit += part.units
            num, begin, end = int(unit_sizes.sum()), epoch * part.rows, (epoch + 1) * part.rows
            for each in range(begin // num, -(-end // num)):
                units = permutation(part.units, self._key(PASS, number, each))
                stops = np.cumsum(unit_sizes[units]) + each * num
                starts = stops - unit_sizes[units]
                firsts = starts.clip(begin, end)
                keys.append(first_samples[units] + firsts - starts + self.num_samples * (each - begin // num))
                sizes.append(stops.clip(begin, end) - firsts)
        joined_keys, joined_sizes = np.concatenate(keys), np.concatenate(sizes)
        return joined_keys[joined_sizes > 0], joined_sizes[joined_sizes > 0]

    @cached_property
    def _first_samples(self) -> Int64s:
        """Index of the first sample of each unit."""
        first: Int64s = np.cumsum(self.unit_sizes)
        first -= self.unit_sizes
        return first

    @cached_property
    def _sizes_key(self) -> int:
        return crc32(self.unit_sizes.tobytes() + repr(self.mix).encode())

    @cached_property
    def _shape_key(self) -> int:
        """Hash of everything beside the key that the samples of a window depend on."""
        return hash_words(self._sizes_key, self.batch_size, self.lanes, self.window_units, self.drop_last)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_first_samples"}

    def _key(self, *words: int) -> int:
        return hash_words(self.seed, self._dataset_key, *words)

    @cached_property
    def _dataset_key(self) -> int:
        return hash_text(self.fingerprint)


def _permuted(n: int, key: int, positions: Int64s) -> Int64s:
    """Return the numbers at some positions of a permutation of 0..n-1 that belongs to a key."""

    def make() -> tuple[Int64s, int]:
        order = permutation(n, key)
        return order, order.nbytes

    if n > SORTED_ROWS:
        return feistel(n, key, positions)
    numbers: Int64s = _CACHE.get((key, n), make)[positions]
    return numbers


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
