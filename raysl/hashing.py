"""Counter-based random numbers: 64-bit hashes of integers, such as (seed, epoch, sample index).

The mixing is the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, in Stafford's variant 13), chained over
the words of a key.
"""

import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Words = NDArray[np.uint64]

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB

_CHUNK = 1 << 16
_ROUNDS = 8  # of a Feistel network; 4 pass our tests of uniformity
_STEP = 2  # first word of the keys of steps; `SampleRandom` uses 1, 3 and 4


def hash_words(*words: int) -> int:
    """Return a number in [0, 2**64) that depends on every word and on their order; words are taken modulo 2**64.

    >>> hash_words(1, 2) == hash_words(2, 1)
    False
    """
    state = GOLDEN
    for number in words:
        # the mixing maps 0 to 0, so a constant is added: a word of 0 then changes the state like any other
        state = _mix_int(state ^ _mix_int((number + GOLDEN) & MASK))
    return state


def digest(*parts: str | bytes | memoryview) -> str:
    """Return 16 hexadecimal digits that change with the content of the parts, laid end to end."""
    return digest_each(parts)


def digest_each(parts: Iterable[str | bytes | memoryview]) -> str:
    """Return the digits of `digest`; parts are made one at a time, so that large ones need not be in memory at once."""
    content = hashlib.sha256()
    for part in parts:
        content.update(part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part)
    return content.hexdigest()[:16]


def hash_text(text: str) -> int:
    """Return a number in [0, 2**64) that depends on a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def step_seed(seed: int, step: int, rank: int | None) -> int:
    """Return a seed in [0, 2**63) for random numbers of one rank at one training step that belong to no sample.

    Without a rank: for random numbers that all ranks draw alike before a step.
    """
    return hash_words(_STEP, seed, step, *([] if rank is None else [rank])) >> 1


def absorb(state: Words, words: Words) -> Words:
    """Do one round of `hash_words` on arrays that broadcast."""
    return _mix(state ^ _mix(words + np.uint64(GOLDEN)))


def as_word(value: int) -> Words:
    """Return one integer as an array for `absorb`."""
    return np.array([value & MASK], dtype=np.uint64)


def hash_rows(key: int, rows: Int64s) -> Words:
    """Return a number in [0, 2**64) for each row, from a key and the number of the row."""
    return absorb(as_word(key), np.ascontiguousarray(rows, dtype=np.int64).view(np.uint64))


def permutation(n: int, key: int) -> Int64s:
    """Return the permutation of 0..n-1 that belongs to a key.

    >>> permutation(5, key=3).tolist() == permutation(5, key=3).tolist()
    True
    """
    # numbers sorted by their hashes, which are all different: the mixing is a bijection
    hashes = np.empty(n, np.uint64)
    # in chunks: the steps of the mixing need five times the memory of their result
    for start in range(0, n, _CHUNK):
        stop = min(n, start + _CHUNK)
        hashes[start:stop] = hash_rows(key, np.arange(start, stop))
    return np.argsort(hashes)


def feistel(n: int, key: int, positions: Int64s) -> Int64s:
    """Return the numbers at some positions of a permutation of 0..n-1 that belongs to a key, without memory for others.

    A Feistel network permutes 0..a*b-1, where a and b are about the square root of n and a*b is at least n; a result of
    n or more is permuted again (Black and Rogaway, CT-RSA 2002: generalised Feistel, and cycle walking). It is not the
    permutation of `permutation`, and for n below some hundreds not all permutations are equally likely.

    Args:
        n: numbers that are permuted.
        key: any integer.
        positions: int64, each in [0, n).

    >>> sorted(feistel(5, key=3, positions=np.arange(5)).tolist())
    [0, 1, 2, 3, 4]
    """
    # the root in integers, rounded up: a float could be one off for large n
    a = math.isqrt(n - 1) + 1
    sides = np.uint64(a), np.uint64(-(-n // a))
    keys = [hash_words(key, number) for number in range(_ROUNDS)]
    numbers = _network(positions.astype(np.uint64), sides, keys)
    outside = np.flatnonzero(numbers >= n)
    # ends, since the walk from a number below n lies on a cycle of the permutation that leads back below n
    while len(outside):
        numbers[outside] = _network(numbers[outside], sides, keys)
        outside = outside[numbers[outside] >= n]
    return numbers.view(np.int64)


def _network(numbers: Words, sides: tuple[np.uint64, np.uint64], keys: Sequence[int]) -> Words:
    """Apply one round for each key, of which there is an even number, to numbers in [0, a*b) for sides a and b."""
    a, b = sides
    right, left = np.divmod(numbers, a)
    for key, side in zip(keys, itertools.cycle((a, b)), strict=False):
        # the hash is reduced before the sum, so that the sum cannot exceed 64 bits
        left, right = right, (left + hash_rows(key, right.view(np.int64)) % side) % side
    return left + right * a


def _mix(words: Words) -> Words:
    """Apply SplitMix64's finaliser, a bijection, to an array; it wraps around modulo 2**64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
    return words ^ (words >> np.uint64(31))


def _mix_int(word: int) -> int:
    word = ((word ^ (word >> 30)) * _FIRST) & MASK
    word = ((word ^ (word >> 27)) * _SECOND) & MASK
    return word ^ (word >> 31)
