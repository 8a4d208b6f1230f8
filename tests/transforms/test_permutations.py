"""Sets of permutations."""

import itertools
import math

import numpy as np
import pytest

from raysl.transforms.tiles import average_hamming_distance, permutation_table


def naive_greedy(num: int, num_tiles: int, first: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Take the candidate with the largest sum of distances from all chosen, the first of several."""
    everything = list(itertools.permutations(range(num_tiles)))
    chosen = [first]
    while len(chosen) < num:
        candidates = [candidate for candidate in everything if candidate not in chosen]
        distances = [
            sum(a != b for other in chosen for a, b in zip(candidate, other, strict=True)) for candidate in candidates
        ]
        chosen.append(candidates[distances.index(max(distances))])
    return chosen


@pytest.mark.parametrize(("num", "num_tiles", "seed"), [(24, 4, 0), (10, 4, 1), (7, 4, 2), (30, 5, 3), (1, 1, 0)])
def test_the_set_is_that_of_a_naive_greedy_search(num: int, num_tiles: int, seed: int) -> None:
    table = permutation_table(num, num_tiles, seed)
    assert [tuple(row) for row in table.tolist()] == naive_greedy(num, num_tiles, tuple(table[0].tolist()))


def test_permutations_are_complete_and_all_different() -> None:
    table = permutation_table(300)
    assert table.shape == (300, 9)
    assert table.dtype == np.int64
    assert np.array_equal(np.sort(table, axis=1), np.broadcast_to(np.arange(9), (300, 9)))
    assert len(np.unique(table, axis=0)) == 300


def test_a_larger_set_starts_with_the_smaller_one_and_a_seed_changes_it() -> None:
    assert np.array_equal(permutation_table(100)[:40], permutation_table(40))
    assert not np.array_equal(permutation_table(40), permutation_table(40, seed=1))


def test_first_permutations_are_even_over_seeds() -> None:
    firsts = [tuple(permutation_table.__wrapped__(1, 3, seed)[0].tolist()) for seed in range(3000)]
    counts = [firsts.count(candidate) for candidate in itertools.permutations(range(3))]
    assert max(abs(count - 500) for count in counts) < 5 * math.sqrt(3000 / 6 * 5 / 6)


@pytest.mark.parametrize("num", [20, 100])
def test_they_differ_in_more_places_than_random_sets(num: int) -> None:
    random = np.random.default_rng(0)
    best = max(average_hamming_distance(np.stack([random.permutation(9) for _ in range(num)])) for _ in range(50))
    assert average_hamming_distance(permutation_table(num)) > best


def test_average_distance_equals_a_loop_over_pairs() -> None:
    table = permutation_table(12, 5)
    pairs = [(a != b).mean() for a, b in itertools.combinations(table, 2)]
    assert average_hamming_distance(table) == pytest.approx(np.mean(pairs))


def test_a_shared_table_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        permutation_table(5)[0, 0] = 1


@pytest.mark.parametrize(("num", "num_tiles"), [(0, 9), (25, 4), (10, 10), (1, 0)])
def test_sets_that_do_not_exist_are_refused(num: int, num_tiles: int) -> None:
    with pytest.raises(ValueError, match="num"):
        permutation_table(num, num_tiles)
