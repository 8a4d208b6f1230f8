"""What a batch tells of its rows is the same at any number of ranks."""

from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest
import torch

from raysl.data.batch import Batch
from raysl.data.order import Order
from raysl.data.sources.synthetic import Synthetic
from raysl.data.stream.loader import Loader, LocalBatches
from raysl.transforms.view_recipe import evaluation_recipe

NUM_STEPS = 5  # of 4 in an epoch


@pytest.fixture(scope="module", params=[True, False], ids=["exact", "lanes"])
def loader(request: pytest.FixtureRequest) -> Loader:
    split = Synthetic(Synthetic.Config(num_train=47, image_size=4, unit_rows=8)).required("train")
    order = Order(
        3, split.fingerprint, split.unit_sizes, 12, lanes=5, window=8, is_exact=request.param, drop_last=False
    )
    recipe = evaluation_recipe(4)
    return Loader(split, recipe, order, (0.5,) * 3, (0.25,) * 3, True, recipe)


def batches(loader: Loader, rank: int, world: int) -> list[Batch]:
    return list(islice(LocalBatches(loader, rank, world).from_step(0), NUM_STEPS))


TOLD: dict[str, Callable[[Batch], np.ndarray]] = {
    "lane": lambda batch: batch.lane.numpy(),
    "uniform": lambda batch: batch.random("negatives").uniforms(3),
    "permutation": lambda batch: batch.random("mask").permutation(4),
}


@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("world", [2, 3])
def test_rows_have_the_same_lanes_and_numbers_at_any_number_of_ranks(loader: Loader, told: str, world: int) -> None:
    ranks = [batches(loader, rank, world) for rank in range(world)]
    for step, whole in enumerate(batches(loader, 0, 1)):
        parts = [TOLD[told](made[step]) for made in ranks]
        assert len(parts[0]) < len(whole)
        assert np.array_equal(np.concatenate(parts), TOLD[told](whole))


def test_lanes_are_those_of_the_order(loader: Loader) -> None:
    for step, batch in enumerate(batches(loader, 1, 2)):
        assert np.array_equal(batch.lane.numpy(), loader.order.lanes_of(step, 1, 2))
        assert set(batch.lane.tolist()) == {2, 3, 4}


def test_numbers_belong_to_the_sample_the_epoch_the_slot_and_the_seed(loader: Loader) -> None:
    batch = batches(loader, 0, 1)[0]
    numbers = batch.random("a").uniform()
    assert len(set(numbers.tolist())) == len(batch)
    turned = batch.map(lambda rows: rows.flip(0))
    assert np.array_equal(turned.random("a").uniform(), numbers[::-1])
    bare = Batch({}, batch.index, batch.label, seed=3, step=17)
    assert np.array_equal(bare.random("a").uniform(), numbers), "the step and the views are no part of the key"
    others = [
        batch.random("b"),
        Batch({}, batch.index, batch.label, seed=4).random("a"),
        Batch({}, batch.index, batch.label, seed=3, epoch=1).random("a"),
        Batch({}, batch.index + 100, batch.label, seed=3).random("a"),
    ]
    for other in others:
        assert not np.isin(other.uniform(), numbers).any()


def test_shared_numbers_are_those_of_every_rank_and_of_the_step(loader: Loader) -> None:
    ranks = [[batch.shared("mix").uniforms(2) for batch in batches(loader, rank, 3)] for rank in range(3)]
    for found in ranks:
        assert all(numbers.shape == (1, 2) for numbers in found)
        assert np.array_equal(found, ranks[0])
    assert len(np.unique(ranks[0])) == 2 * NUM_STEPS
    batch = batches(loader, 0, 1)[0]
    assert not np.isin(batch.shared("other").uniforms(2), ranks[0]).any()
    assert not np.isin(batch.random("mix").uniforms(2), ranks[0]).any()


def test_a_batch_with_another_number_of_lanes_than_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="2 lanes for 3 rows; give one for each, or none"):
        Batch({}, torch.arange(3), torch.arange(3), torch.zeros(2, dtype=torch.int64))
    assert Batch({}, torch.arange(3), torch.arange(3)).lane.tolist() == [0, 0, 0]
