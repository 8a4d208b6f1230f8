"""Random numbers for the samples of a batch, each a pure function of its sample."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysl.hashing import MASK, Words, absorb, as_word, hash_words
from raysl.transforms import device_hash
from raysl.transforms.device import to_device
from raysl.transforms.device_hash import CHILD, DRAW

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SAMPLE = 1  # the purpose of a key, beside those of `device_hash`, so that no two purposes share numbers


class SampleRandom:
    """Random numbers for the samples of a batch, a function of (seed, epoch, sample index, view, slot).

    A sample gets the same numbers in any batch. Each draw moves on to fresh numbers; `at` returns the stream of one
    transform, which does not depend on what was drawn here before.

    >>> both = SampleRandom(seed=0, epoch=0, index=np.array([7, 8]), view=0)
    >>> alone = SampleRandom(seed=0, epoch=0, index=np.array([8]), view=0)
    >>> bool(both.uniform()[1] == alone.uniform()[0])
    True

    Args:
        seed: seed of the run.
        epoch: pass over the dataset.
        index: int64 [B], the samples' stable indices in the dataset.
        view: number of the view among all views of the sample.
    """

    def __init__(self, seed: int, epoch: int, index: Ints, view: int) -> None:
        rows = np.ascontiguousarray(index, dtype=np.int64).view(np.uint64)
        if rows.ndim != 1:
            raise ValueError(f"index has shape {rows.shape}; give one dimension, [B]")
        start = np.full(rows.shape, hash_words(SAMPLE, seed, epoch), dtype=np.uint64)
        self._start(absorb(absorb(start, rows), as_word(view)))

    def _start(self, keys: Words) -> None:
        self._keys = keys  # [B]
        self._num_draws = 0

    def __len__(self) -> int:
        return len(self._keys)

    def at(self, slot: int) -> "SampleRandom":
        """Return the stream of a slot, independent of the draws here and of all other slots."""
        child = SampleRandom.__new__(SampleRandom)
        child._start(absorb(absorb(self._keys, as_word(CHILD)), as_word(slot)))
        return child

    def at_each(self, slots: Sequence[int], num_draws: int = 0) -> "SampleRandom":
        """Return the streams of several slots after some draws of each, as one of [S * B] rows, slot by slot."""
        child = SampleRandom.__new__(SampleRandom)
        numbers = np.array([slot & MASK for slot in slots], dtype=np.uint64)
        child._start(absorb(absorb(self._keys, as_word(CHILD)), numbers[:, None]).reshape(-1))
        child._num_draws = num_draws
        return child

    def uniform(self, low: float = 0.0, high: float = 1.0) -> Floats:
        """Draw float64 [B] from [low, high); `low` itself where the two are equal."""
        return self.uniforms(1, low, high)[:, 0]

    def uniforms(self, num: int, low: float = 0.0, high: float = 1.0) -> Floats:
        """Draw float64 [B, num] from [low, high); `low` itself where the two are equal."""
        if not low <= high:
            raise ValueError(f"uniform numbers in [{low}, {high}) do not exist; swap the bounds")
        values = low + self._unit(num) * (high - low)
        return np.minimum(values, np.nextafter(high, low))  # the sum may round up to `high`

    def bernoulli(self, p: float) -> NDArray[np.bool_]:
        """Draw bool [B], true with probability `p` in [0, 1]."""
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"probability {p} is outside [0, 1]")
        return self._unit(1)[:, 0] < p

    def integers(self, low: int | Ints, high: int | Ints) -> Ints:
        """Draw int64 [B] from [low, high); each bound is a number, or one number per sample [B]."""
        if np.any(np.asarray(low) >= np.asarray(high)):
            raise ValueError(f"integers in [{low}, {high}) do not exist; the upper bound is exclusive")
        span = np.asarray(high, dtype=np.int64) - np.asarray(low, dtype=np.int64)
        return np.asarray(low + (self._unit(1)[:, 0] * span).astype(np.int64), dtype=np.int64)

    def integers_on(self, device: torch.device, num: int, high: int) -> Tensor:
        """Draw int64 [B, num] from [0, high) on a device: those of `uniforms(num, 0, high)`, rounded down.

        The device computes them from the samples' keys, the same numbers on any device, so that thousands of numbers a
        sample need not be drawn and copied by the host.
        """
        numbers = device_hash.drawn(self.keys_on(device), self._first_counter(), num)  # [B, num]
        return numbers.mul_(high).long().clamp_(max=high - 1)  # the product may round up to `high`

    def normals_on(self, device: torch.device, num: int) -> Tensor:
        """Draw float64 [B, num] from the standard normal distribution on a device, which computes them from the
        samples' keys: the same on any device but for rounding."""
        numbers = device_hash.drawn(self.keys_on(device), self._first_counter(), num)  # [B, num]
        normals: Tensor = torch.special.ndtri(numbers.add_(2.0**-54))  # never 0, whose quantile is infinite
        return normals

    def keys_on(self, device: torch.device) -> Tensor:
        """Return the keys of these samples, int64 [B], for `device_hash.uniforms`."""
        return to_device(torch.from_numpy(self._keys.view(np.int64)), device)

    def permutation(self, n: int) -> Ints:
        """Draw int64 [B, n], a permutation of 0 to n - 1 for each sample."""
        return np.argsort(self._unit(n), axis=1, kind="stable").astype(np.int64)

    def _unit(self, num: int) -> Floats:
        """Draw float64 [B, num] from [0, 1), multiples of 2**-53."""
        start = self._first_counter()
        counters = np.array([(start + number) & MASK for number in range(num)], dtype=np.uint64)
        bits = absorb(self._keys[:, None], counters)  # [B, num]
        return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def _first_counter(self) -> int:
        """Return the first counter of a fresh draw."""
        start = hash_words(DRAW, self._num_draws)
        self._num_draws += 1
        return start
