import tracemalloc

import pytest

from perf.order import WORLDS, Stored, measure, overlap_variance, table
from raysl.data.order import Order
from raysl.data.split import runs
from raysl.plan.reads import Reads

NUM_IMAGES = 65_536


@pytest.mark.thorough
def test_every_unit_is_read_about_once_at_any_number_of_ranks_and_after_a_resume() -> None:
    numbers = measure(NUM_IMAGES)
    for name, files in (("parquet", Stored.parquet(NUM_IMAGES)), ("tar", Stored.tar(NUM_IMAGES))):
        ratios = numbers["read_amplification"][name]
        assert list(ratios) == [str(world) for world in WORLDS]
        assert len(set(ratios.values())) == 1, "lanes do not depend on the ranks"
        assert 1 < ratios["1"] <= Reads.of(files.order()).read * 1.01
        # a window of 512 images a lane is read again
        assert ratios["1"] < numbers["read_amplification_resumed"][name] < ratios["1"] + 64 * 512 / NUM_IMAGES + 0.1
    for row in numbers["shuffle"].values():
        assert 0.5 < row["measured"] / row["formula"] < 2
    assert "64 lanes, 8 ranks" in table(numbers)


def test_the_units_of_a_dataset_have_about_8_mb() -> None:
    for files in (Stored.parquet(NUM_IMAGES), Stored.tar(NUM_IMAGES)):
        units = files.order().unit_sizes
        assert units.sum() == NUM_IMAGES
        assert 6e6 < files.row_bytes.sum() / len(units) < 9e6


@pytest.mark.thorough
def test_the_overlap_of_permutations_varies_as_much_as_its_mean() -> None:
    order = Stored.parquet(200_000).order(is_exact=True)
    assert 0.9 < overlap_variance(order, epochs=4) < 1.1


@pytest.mark.thorough
def test_the_order_of_a_billion_rows_needs_no_permutation_of_them() -> None:
    tracemalloc.start()
    order = Order(0, "simulated", runs(1_000_000_000, 1000), 32_768, 1024, window=2048, is_exact=False)
    assert len(order.batch(3 * order.epoch_len + order.epoch_len // 2, 7, 1024)) == 32
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()
