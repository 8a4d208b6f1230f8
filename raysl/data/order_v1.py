"""Version 1 of the order of samples, for runs that began with it."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from raysl.data.order import SAMPLES, WINDOW, Order, cached_permutation
from raysl.hashing import Int64s

WINDOW_ROWS = 2048
"""Rows of a window where the settings name no number."""
EXACT_BELOW = 4_194_304
"""Rows of the smallest dataset that gets no exact permutation, where the settings name no number."""


@dataclass(frozen=True, eq=False)
class OrderV1(Order):
    """Version 1 of the order of samples, bit for bit, with the arguments of `Order`.

    All windows of a lane have `window` rows, so they begin inside units, and a unit belongs to several windows. Exact
    permutations are sorted at any size.
    """

    version: ClassVar[int] = 1

    @property
    @override
    def has_windows(self) -> bool:
        return False

    @override
    def _exact(self, epoch: int, first: int, stop: int) -> Int64s:
        return cached_permutation(self.num_samples, self._key(SAMPLES, epoch))[first:stop]

    @override
    def _lane_batch(self, epoch: int, in_epoch: int, lane: int) -> Int64s:
        start, length = self._lane_start(lane), self._lane_start(lane + 1) - self._lane_start(lane)
        size, window = self.lane_rows(lane), self.window or WINDOW_ROWS
        rows = np.arange(in_epoch * size, length if in_epoch == self.epoch_len - 1 else (in_epoch + 1) * size)
        shuffled = np.empty_like(rows)
        for number in np.unique(rows // window).tolist():
            first = number * window
            num = min(window, length - first)
            order = cached_permutation(num, self._key(WINDOW, epoch, lane, number))
            inside = rows // window == number
            shuffled[inside] = first + order[rows[inside] - first]
        return self._samples(epoch, start + shuffled)
