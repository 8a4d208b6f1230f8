"""What a data task makes: a block of rows, and which blocks a rank needs from a step on.

All of it is a pure function of the order of samples, so any process can make any block at any time.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeVar

import numpy as np

from raysl.config.ranges import Interpolation
from raysl.data.decode.corrupt import Known
from raysl.data.order import Order, rank_share
from raysl.hashing import Int64s

T = TypeVar("T")

ALL_LANES = -1
"""The lane of blocks with rows of all lanes of a rank."""
FIRST_ROWS = 256
"""Desired rows of the first block of a rank, where several steps share a block."""


@dataclass(frozen=True)
class RankRows:
    """Rows [start, stop) of a rank at each of the steps [step, end).

    What such blocks read depends on the number of ranks, so they are for data whose rows can be read in any order.
    """

    step: int
    end: int
    rank: int
    world: int
    start: int
    stop: int

    lane = ALL_LANES

    @property
    def num_rows(self) -> int:
        """Rows where all batches are complete."""
        return (self.end - self.step) * (self.stop - self.start)

    def samples(self, order: Order) -> Iterator[tuple[int, Int64s]]:
        """Yield an epoch and the order's keys of its rows, in the order of their use."""
        for epoch, steps in groupby(range(self.step, self.end), key=lambda step: step // order.epoch_len):
            rows = [order.batch(step, self.rank, self.world)[self.start : self.stop] for step in steps]
            yield epoch, np.concatenate(rows)


@dataclass(frozen=True)
class WindowRows:
    """Rows [start, stop) of a window of a lane, whatever the number of ranks is; needed from `step` on."""

    step: int
    epoch: int
    lane: int
    window: int
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """Rows of the block."""
        return self.stop - self.start

    def samples(self, order: Order) -> Iterator[tuple[int, Int64s]]:
        """Yield the epoch and the order's keys of the rows, in the order of their use."""
        yield self.epoch, order.window_samples(self.epoch, self.lane, self.window)[self.start : self.stop]


@dataclass(frozen=True)
class PlainRows:
    """Images of the dataset, or of its held-out images, without augmentation.

    Args:
        interpolation: how they are resized; None: as `data.eval_interpolation` has it.
    """

    rows: Sequence[int]
    is_held_out: bool = False
    interpolation: Interpolation | None = None

    step = 0
    lane = ALL_LANES

    @property
    def num_rows(self) -> int:
        """Rows of the block."""
        return len(self.rows)

    def samples(self, order: Order) -> Iterator[tuple[int, Int64s]]:
        """Yield epoch 0, whose views they do not have, and their keys; nothing for held-out images."""
        if not self.is_held_out:
            yield 0, np.asarray(self.rows)


StepRows = RankRows | WindowRows
"""A block of a training step; `samples(order)` yields its epochs and the order's keys."""
Block = StepRows | PlainRows
"""What one data task makes: `num_rows` rows of a `lane` that are needed from `step` on."""


@dataclass(frozen=True)
class NumberedBlock:
    """A block with its number in a stream, and the corrupt images of it that need not be read again."""

    number: int
    block: Block
    known: Known = field(default_factory=dict)


def known_rows(block: Block, order: Order, known: Mapping[int, T]) -> dict[int, T]:
    """Return what is known of the rows of a block."""
    if not known:
        return {}
    rows = (row for _, keys in block.samples(order) for row in order.samples_of(keys).tolist())
    return {row: known[row] for row in rows if row in known}


def plain_blocks(num_samples: int, rank: int, world: int, num_rows: int) -> Iterator[PlainRows]:
    """Yield blocks of up to `num_rows` images of a rank's share of a dataset, in its order."""
    share = rank_share(num_samples, rank, world)
    for start in range(share.start, share.stop, num_rows):
        yield PlainRows(range(start, min(share.stop, start + num_rows)))


def rank_blocks(order: Order, rank: int, world: int, first: int, end: int, target: int) -> Iterator[StepRows]:
    """Yield the blocks with a rank's rows of the steps [first, end), by the first step that needs them and their lane.

    Args:
        target: desired rows of a block; a window stays whole, so that its units are read once.
    """
    if order.is_exact:
        return _row_blocks(order, rank, world, first, end, target)
    lanes = [_window_blocks(order, lane, first, end) for lane in rank_share(order.lanes, rank, world)]
    return heapq.merge(*lanes, key=lambda block: (block.step, block.lane))


def _row_blocks(order: Order, rank: int, world: int, first: int, end: int, target: int) -> Iterator[RankRows]:
    """Yield blocks of several complete steps, or of a part of one; the first ones are smaller, to be there sooner."""
    num_rows = max(1, order.num_rows(rank, world))
    num_parts = -(-num_rows // target)
    part_rows = -(-num_rows // num_parts)
    step, desired = first, min(target, FIRST_ROWS)
    while step < end:
        stop = min(end, step + max(1, desired // num_rows))
        for start in range(0, num_rows, part_rows):
            yield RankRows(step, stop, rank, world, start, min(num_rows, start + part_rows))
        step, desired = stop, min(target, 2 * desired)


def _window_blocks(order: Order, lane: int, first: int, end: int) -> Iterator[WindowRows]:
    """Yield the windows of a lane that steps [first, end) use, without the rows of other steps."""
    size, last = order.lane_rows(lane), order.epoch_len - 1
    for epoch in range(first // order.epoch_len, -(-end // order.epoch_len)):
        cuts = order.windows(epoch, lane)
        start = epoch * order.epoch_len
        begin = max(0, first - start) * size
        # the last step of an epoch takes whatever rows of the lane are left
        stop = int(cuts[-1]) if end - start > last else (end - start) * size
        for window, (low, high) in enumerate(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)):
            if low < stop and high > begin:
                skipped = max(0, begin - low)
                step = start + min(last, (low + skipped) // size)
                yield WindowRows(step, epoch, lane, window, skipped, min(stop, high) - low)
