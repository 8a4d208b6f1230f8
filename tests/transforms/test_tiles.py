"""Tiles of an image, and tables of permutations."""

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from raysl.transforms.random import SampleRandom
from raysl.transforms.tiles import Tiles, permutation_table


def draws(num: int) -> SampleRandom:
    return SampleRandom(0, 0, np.arange(num), 0).at(1)


@pytest.fixture
def jigsaw_images(cuts) -> Tensor:
    """uint8 [4, 3, 255, 255]."""
    return torch.stack(cuts(4, 255, 255))


def slow_tiles(images: Tensor, params: dict[str, Tensor], grid: int, size: int) -> Tensor:
    """Cut in the cells' order, then put in the drawn order, as a list of lists."""
    out = []
    for image, offsets, order in zip(images, params["offsets"], params["order"].tolist(), strict=True):
        cell_height, cell_width = image.shape[1] // grid, image.shape[2] // grid
        tiles = []
        for i in range(grid):
            for j in range(grid):
                x, y = offsets[len(tiles)].tolist()
                left, top = i * cell_width + x, j * cell_height + y
                tiles.append(image[:, top : top + size, left : left + size])
        out.append(torch.stack([tiles[k] for k in order]))
    return torch.stack(out)


@pytest.mark.parametrize("order", ["fixed", "random", permutation_table(100)], ids=["fixed", "random", "table"])
def test_tiles_equal_a_loop_over_cells(jigsaw_images: Tensor, order) -> None:
    tiles = Tiles(order=order)
    params = tiles.draw(draws(4), (255, 255))
    cut = tiles.cut(jigsaw_images, params)
    assert cut.shape == (4, 9, 3, 64, 64)
    assert cut.dtype == torch.uint8
    assert torch.equal(cut, slow_tiles(jigsaw_images, params, 3, 64))
    assert torch.equal(tiles.cut(jigsaw_images.float(), params), cut.float())


def test_tiles_of_an_oblong_image_equal_a_loop_over_cells(images: Tensor) -> None:
    tiles = Tiles(grid=2, size=11, jitter=8)
    params = tiles.draw(draws(9), (36, 44))
    assert tiles.num_tiles == 4
    assert torch.equal(tiles.cut(images, params), slow_tiles(images, params, 2, 11))


def test_cells_are_counted_down_the_columns() -> None:
    image = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3)
    tiles = Tiles(size=1, jitter=1, order="fixed")
    assert tiles.cut(image, tiles.draw(draws(1), (3, 3))).flatten().tolist() == [0, 3, 6, 1, 4, 7, 2, 5, 8]


def test_offsets_are_even_in_all_places_but_the_last_excluded_one() -> None:
    offsets = Tiles().draw(draws(2000), (255, 255))["offsets"]
    for axis in range(2):
        counts = offsets[..., axis].flatten().bincount()
        assert len(counts) == 21
        assert ((counts - 18_000 / 21) ** 2 / (18_000 / 21)).sum() < 20 + 5 * (2 * 20) ** 0.5  # chi-square
    pairs = torch.stack([offsets[:, 0, 0], offsets[:, 0, 1], offsets[:, 1, 0]]).double()
    assert (pairs.corrcoef() - torch.eye(3)).abs().max() < 5 / 2000**0.5


def test_a_table_gives_even_labels_that_name_the_order() -> None:
    table = permutation_table(24, 4)
    tiles = Tiles(grid=2, size=8, jitter=3, order=table)
    params = tiles.draw(draws(20_000), (32, 32))
    label = tiles.extras(params)["permutation"]
    assert torch.equal(params["order"], torch.from_numpy(table.copy())[label])
    counts = label.bincount(minlength=24)
    assert ((counts - 20_000 / 24) ** 2 / (20_000 / 24)).sum() < 23 + 5 * (2 * 23) ** 0.5


def test_a_random_order_has_no_label_and_every_cell_in_every_place() -> None:
    tiles = Tiles()
    params = tiles.draw(draws(9000), (255, 255))
    assert tiles.extras(params) == {}
    assert torch.equal(params["order"].sort(dim=1).values, torch.arange(9).expand(9000, 9))
    for place in range(9):
        counts = params["order"][:, place].bincount(minlength=9)
        assert (counts - 1000).abs().max() < 5 * (9000 / 9 * 8 / 9) ** 0.5


def test_tiles_of_an_image_do_not_depend_on_its_batch(jigsaw_images: Tensor) -> None:
    tiles = Tiles(order=permutation_table(100))
    together = tiles.cut(jigsaw_images, tiles.draw(draws(4), (255, 255)))
    for row in range(4):
        params = tiles.draw(SampleRandom(0, 0, np.array([row]), 0).at(1), (255, 255))
        assert torch.equal(tiles.cut(jigsaw_images[row : row + 1], params)[0], together[row])


@pytest.mark.thorough
def test_tiles_are_equal_where_their_settings_and_tables_are() -> None:
    one, other = Tiles(order=permutation_table(10)), Tiles(order=permutation_table(10, seed=1))
    assert one == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(pickle.loads(pickle.dumps(one)))
    assert len({one, other, Tiles(), Tiles(order="fixed"), Tiles(jitter=20)}) == 5


def test_jitter_that_leaves_the_cell_is_refused() -> None:
    assert Tiles(jitter=22).draw(draws(1), (255, 255))["offsets"].shape == (1, 9, 2)
    with pytest.raises(ValueError, match="at least 258 pixels"):
        Tiles(jitter=23).draw(draws(1), (255, 255))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"grid": 0}, "grid=0"),
        ({"order": "shuffled"}, "shuffled"),
        ({"order": permutation_table(24, 4)}, "9"),
        ({"order": permutation_table(10) + 1}, "count from 0"),
    ],
)
def test_settings_that_make_no_tiles_are_refused(settings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tiles(**settings)


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


@pytest.mark.thorough
def test_permutations_are_complete_and_all_different() -> None:
    table = permutation_table(300)
    assert table.shape == (300, 9)
    assert table.dtype == np.int64
    assert np.array_equal(np.sort(table, axis=1), np.broadcast_to(np.arange(9), (300, 9)))
    assert len(np.unique(table, axis=0)) == 300


@pytest.mark.thorough
def test_a_larger_set_starts_with_the_smaller_one_and_a_seed_changes_it() -> None:
    assert np.array_equal(permutation_table(100)[:40], permutation_table(40))
    assert not np.array_equal(permutation_table(40), permutation_table(40, seed=1))


@pytest.mark.thorough
def test_first_permutations_are_even_over_seeds() -> None:
    firsts = [tuple(permutation_table.__wrapped__(1, 3, seed)[0].tolist()) for seed in range(3000)]
    counts = [firsts.count(candidate) for candidate in itertools.permutations(range(3))]
    assert max(abs(count - 500) for count in counts) < 5 * math.sqrt(3000 / 6 * 5 / 6)


@pytest.mark.thorough
@pytest.mark.parametrize("num", [20, 100])
def test_they_differ_in_more_places_than_random_sets(num: int) -> None:
    random = np.random.default_rng(0)
    best = max(mean_distance(np.stack([random.permutation(9) for _ in range(num)])) for _ in range(50))
    assert mean_distance(permutation_table(num)) > best


def mean_distance(table: np.ndarray) -> float:
    """The average share of positions in which two different rows differ."""
    return float(np.mean([(a != b).mean() for a, b in itertools.combinations(table, 2)]))


@pytest.mark.thorough
def test_a_shared_table_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        permutation_table(5)[0, 0] = 1


@pytest.mark.parametrize(("num", "num_tiles"), [(0, 9), (25, 4), (10, 10), (1, 0)])
def test_sets_that_do_not_exist_are_refused(num: int, num_tiles: int) -> None:
    with pytest.raises(ValueError, match="num"):
        permutation_table(num, num_tiles)
