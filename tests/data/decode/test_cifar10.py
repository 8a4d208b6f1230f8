"""The Parquet source on real files: all of CIFAR-10, where it is at hand."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from raysl.config.load import load_config
from raysl.data.decode.decode import decode
from raysl.data.decode.images import read_images
from raysl.data.sources.parquet import Parquet
from raysl.train.prepare import prepare


@pytest.mark.thorough
def test_rows_in_the_order_of_an_epoch_are_those_of_the_files(cifar10: Path) -> None:
    job = prepare(load_config("cifar10/simclr", [f"data.path={cifar10}"]))
    assert (job.setup.data.num_samples, job.setup.data.num_classes) == (50_000, 10)
    assert Parquet(job.config.data).required("test").num_samples == 10_000
    order = job.loader.order
    assert order.is_exact
    index = order.batch(order.epoch_len + 3, rank=1, world=4)
    read = read_images(job.loader.split, index)
    table = pq.read_table(sorted(cifar10.glob("train-*.parquet")), columns=["image", "label"])
    np.testing.assert_array_equal(read.labels, table["label"].to_numpy()[index])
    assert read.corrupt == ()
    images = read.pictures[0].images
    for place in (0, 50, 127):
        assert (images[place] == decode(table["image"][int(index[place])].as_py())).all()
        assert images[place].shape == (3, 32, 32)
