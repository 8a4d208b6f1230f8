"""Sets of permutations that are easy to tell apart, for Jigsaw (Noroozi and Favaro 2016, section 4.2)."""

import math
from functools import lru_cache
from itertools import chain, permutations

import numpy as np
from numpy.typing import NDArray

from raysl.hashing import hash_words
from raysl.transforms.random import Ints

MAX_TILES = 9


@lru_cache(maxsize=8)
def permutation_table(num: int, num_tiles: int = 9, seed: int = 0) -> Ints:
    """A set of permutations, each as far as possible from those before it.

    The first is drawn with the seed; each further one has the largest average Hamming distance from all before, and is
    the first of the lexicographic order where several have. A function of its arguments alone. 2000 permutations of 9
    take about a second.

    Args:
        num: how many, in [1, num_tiles!].
        num_tiles: length of each, in [1, 9].
        seed: which first permutation.

    Returns:
        int64 [num, num_tiles], all different, not to be written to.

    Raises:
        ValueError: if there are not that many, or the tiles are too many to list all their permutations.
    """
    if not 1 <= num_tiles <= MAX_TILES:
        raise ValueError(f"num_tiles={num_tiles} must be in [1, {MAX_TILES}]; more have too many to compare")
    if not 1 <= num <= math.factorial(num_tiles):
        raise ValueError(f"num={num} permutations of {num_tiles}: give 1 to {math.factorial(num_tiles)}")
    candidates = _all_permutations(num_tiles)  # [num_tiles, N]
    chosen = hash_words(seed, num_tiles) % candidates.shape[1]
    table = np.empty((num, num_tiles), dtype=np.int64)
    num_equal = np.zeros(candidates.shape[1], dtype=np.int32)  # places shared with all chosen so far
    shared = np.empty(candidates.shape[1], dtype=np.uint8)
    same = np.empty(candidates.shape[1], dtype=np.bool_)
    for row in range(num):
        table[row] = candidates[:, chosen]
        shared.fill(0)
        for place, tile in enumerate(table[row]):
            np.equal(candidates[place], np.uint8(tile), out=same)
            np.add(shared, same.view(np.uint8), out=shared)
        np.add(num_equal, shared, out=num_equal)
        num_equal[chosen] = np.iinfo(np.int32).max // 2  # never again: far more than num * num_tiles
        chosen = int(num_equal.argmin())
    table.setflags(write=False)
    return table


def average_hamming_distance(table: Ints) -> float:
    """Share of places in which two different rows of [num, num_tiles] differ, on average over all pairs, in [0, 1]."""
    num, num_tiles = table.shape
    counts = np.stack([np.bincount(column, minlength=num_tiles) for column in table.T])
    equal_pairs = (counts * (counts - 1)).sum()  # ordered pairs that share a place
    return float(1.0 - equal_pairs / (num * (num - 1) * num_tiles))


def _all_permutations(num_tiles: int) -> NDArray[np.uint8]:
    """uint8 [num_tiles, num_tiles!], in lexicographic order."""
    count = math.factorial(num_tiles) * num_tiles
    flat = np.fromiter(chain.from_iterable(permutations(range(num_tiles))), dtype=np.uint8, count=count)
    return np.ascontiguousarray(flat.reshape(-1, num_tiles).T)
