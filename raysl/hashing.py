"""Counter-based randomness: 64-bit numbers that are a pure function of the integers they belong to.

The mixing is the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, in Stafford's variant 13), chained over
the words of a key.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Words = NDArray[np.uint64]

MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB

_CHUNK = 1 << 16
_STEP = 2  # what a key is for; SampleRandom has 1, 3 and 4


def hash_words(*words: int) -> int:
    """A number in [0, 2**64) that depends on every word and on their order; words are taken modulo 2**64."""
    state = _GOLDEN
    for number in words:
        state = _mix_int(state ^ _mix_int((number + _GOLDEN) & MASK))
    return state


def hash_text(text: str) -> int:
    """A number in [0, 2**64) that depends on a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def step_seed(seed: int, step: int, rank: int | None) -> int:
    """Seed in [0, 2**63) for what one rank draws at one training step and what belongs to no sample.

    Without a rank it is that of what all ranks draw alike before a step.
    """
    return hash_words(_STEP, seed, step, *([] if rank is None else [rank])) >> 1


def absorb(state: Words, words: Words) -> Words:
    """What one round of `hash_words` does, on arrays that broadcast."""
    return _mix(state ^ _mix(words + np.uint64(_GOLDEN)))


def as_word(value: int) -> Words:
    """One integer as an array for `absorb`."""
    return np.array([value & MASK], dtype=np.uint64)


def hash_rows(key: int, rows: Int64s) -> Words:
    """A number in [0, 2**64) for each row, from a key and the row's own number."""
    return absorb(as_word(key), np.ascontiguousarray(rows, dtype=np.int64).view(np.uint64))


def permutation(n: int, key: int) -> Int64s:
    """The permutation of 0..n-1 that belongs to a key: places sorted by their hashes, of which no two are equal."""
    hashes = np.empty(n, np.uint64)
    for start in range(0, n, _CHUNK):  # the steps in between need five times the memory of their result
        stop = min(n, start + _CHUNK)
        hashes[start:stop] = hash_rows(key, np.arange(start, stop))
    return np.argsort(hashes)


def _mix(words: Words) -> Words:
    """SplitMix64's finaliser, a bijection; arrays wrap around modulo 2**64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
    return words ^ (words >> np.uint64(31))


def _mix_int(word: int) -> int:
    word = ((word ^ (word >> 30)) * _FIRST) & MASK
    word = ((word ^ (word >> 27)) * _SECOND) & MASK
    return word ^ (word >> 31)
