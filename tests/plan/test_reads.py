"""What a plan says of reads, shuffle and memory before anything is read."""

import numpy as np
import pytest

from raysl.cli import main
from raysl.config.load import load_config
from raysl.data.order import Order, Part
from raysl.data.split import runs
from raysl.plan.reads import Reads, describe_mix
from raysl.train.prepare import prepare

ROW_BYTES = 300_000
DATA = load_config("simclr", ["data=parquet", "data.path=/images", "data.limit=900000"]).data


def order(unit_rows: int, lanes: int = 64, window: int | None = None, rows: int = 1_281_167) -> Order:
    return Order(0, "images", runs(rows, unit_rows), 4096, lanes, window, is_exact=False)


@pytest.mark.thorough
@pytest.mark.parametrize("lanes", [16, 64, 512])
@pytest.mark.parametrize("unit_rows", [64, 256, 5000])
def test_the_ratio_of_reads_is_that_of_the_units_in_the_windows(unit_rows: int, lanes: int) -> None:
    drawn = order(unit_rows, lanes)
    unit_of = np.repeat(np.arange(len(drawn.unit_sizes)), drawn.unit_sizes)
    read = 0
    for lane in range(lanes):
        for number in range(len(drawn.windows(1, lane)) - 1):
            read += int(drawn.unit_sizes[np.unique(unit_of[drawn.window_samples(1, lane, number)])].sum())
    used = drawn.epoch_len * drawn.batch_size
    # 1 % more: the last unit of the epoch is left out in part
    assert 1 < read / used <= Reads.of(drawn).read * 1.01


def _overlap(drawn: Order, epochs: int) -> float:
    """Variance of the number of samples that batches of two epochs share, over its mean."""
    batch_of = np.full((epochs, drawn.num_samples), drawn.epoch_len)
    for epoch in range(epochs):
        for step in range(drawn.epoch_len):
            batch_of[epoch, drawn.batch(epoch * drawn.epoch_len + step)] = step
    shared = []
    for first in range(epochs - 1):
        pairs = batch_of[first] * (drawn.epoch_len + 1) + batch_of[first + 1]
        table = np.bincount(pairs, minlength=(drawn.epoch_len + 1) ** 2).reshape(drawn.epoch_len + 1, -1)
        shared.append(table[:-1, :-1])
    return float(np.var(shared) / np.mean(shared))


@pytest.mark.thorough
@pytest.mark.parametrize(("unit_rows", "window"), [(16, None), (64, None), (64, 128), (256, 256), (16, 16)])
def test_the_formula_of_the_shuffle_is_what_two_epochs_show(unit_rows: int, window: int | None) -> None:
    drawn = Order(3, "images", runs(65_536, unit_rows), 512, 16, window, is_exact=False)
    assert _overlap(drawn, epochs=3) == pytest.approx(Reads.of(drawn).shuffle, rel=0.35)
    exact = Order(3, "images", drawn.unit_sizes, 512, 16, None, is_exact=True)
    assert Reads.of(exact).shuffle == pytest.approx(_overlap(exact, epochs=3), rel=0.1)


def test_a_good_layout_has_no_warning_and_its_numbers_in_words() -> None:
    reads = Reads.of(order(64))
    assert reads.warning(ROW_BYTES, DATA) is None
    assert reads.lines(ROW_BYTES) == [
        "20,019 read units of 64 images in 64 lanes: an epoch reads at most 1.003 times the bytes it uses",
        "windows of 512 images are shuffled: the overlap of batches of two epochs varies 2.0 times as much as with an "
        "exact permutation",
        "4.92 GB of images wait for their step, over all workers",
    ]
    exact = Reads.of(Order(0, "images", runs(1_281_167), 4096, 64, None, is_exact=True))
    assert exact.warning(ROW_BYTES, DATA) is None
    assert exact.lines(ROW_BYTES) == ["images are read one by one, in an exact permutation of those of an epoch"]


def test_a_bad_layout_is_named_with_its_costs_and_the_way_out() -> None:
    assert Reads.of(order(10_000)).warning(ROW_BYTES, DATA) == (
        "the training images are stored in 129 read units of 9,932 images, for 64 lanes: an epoch reads "
        "up to 1.5 times the bytes it uses; about 95.3 GB of images wait for their step in memory. raysl ingest "
        "data=parquet data.limit=900000 data.path=/images --out FOLDER stores them in smaller ones, or data.lanes=32 "
        "reads less, with at most 32 workers"
    )
    many_lanes = Reads.of(order(64, lanes=4096, rows=800_000)).warning(ROW_BYTES, DATA)
    assert many_lanes is not None
    assert many_lanes.endswith(
        "up to 1.3 times the bytes it uses. data.lanes=2048 reads less, with at most 2,048 workers"
    )
    narrow = Reads.of(order(1000, window=1000)).warning(ROW_BYTES, DATA)
    assert narrow is None, "the overlap varies 5 times as much"
    few = Reads.of(order(1000, lanes=1, window=1000)).warning(ROW_BYTES, DATA)
    assert few is not None
    assert "the overlap of batches of two epochs varies 1,000 times as much as with an exact permutation" in few
    small = Reads.of(order(64, lanes=16, rows=5000)).warning(ROW_BYTES, DATA)
    assert small is None, "there is not much to read, and nothing that reads less"


def test_the_command_prints_the_numbers_of_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = ["data=synthetic", "data.num_train=20480", "data.unit_rows=64", "data.limit=null", "benchmarks=[]"]
    words = [*images, "data.is_random_access=false", "train.batch_size=512", "train.epochs=3", "train.workers=3"]
    monkeypatch.setattr("sys.argv", ["raysl", "plan", "quickstart", *words, "train.uneven=true", "data.image_size=32"])
    with pytest.raises(SystemExit) as caught:
        main()
    lines = capsys.readouterr().out.splitlines()
    assert caught.value.code in (0, None)
    assert lines[:3] == [
        "images      20,480 to train on",
        "batch       512 images: 168 to 176 on each of 3 workers, 64 lanes",
        "training    120 steps, 40 in an epoch",
    ]
    assert lines[3].startswith(
        "reads       320 read units of 64 images in 64 lanes: an epoch reads at most 1.197 times"
    )
    assert len(lines) == 6


@pytest.mark.thorough
def test_a_start_warns_once_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "raysl")
    images = ["data=synthetic", "data.num_train=40000", "data.unit_rows=5000", "data.limit=null", "benchmarks=[]"]
    exact, streamed = (
        load_config("quickstart", [*images, f"data.is_random_access={word}"]) for word in ("true", "false")
    )
    caplog.clear()
    prepare(exact)
    assert not caplog.messages
    prepare(streamed)
    (line,) = caplog.messages
    assert line.startswith("the training images are stored in 8 read units of 5,000 images, for 16 lanes")
    assert "raysl ingest data=synthetic data.num_train=40000 data.unit_rows=5000" in line


def test_a_mix_says_what_an_epoch_takes_from_each_source() -> None:
    mix = (Part("100% cats", units=8, rows=700), Part("dogs", units=2, rows=300))
    drawn = Order(0, "images", runs(1000, 100), 50, lanes=4, window=None, is_exact=True, mix=mix)
    assert describe_mix(drawn) == (
        "an epoch of 1,000 images takes 70.0 % from 100% cats, 0.875 times its 800; 30.0 % from dogs, 1.5 times its 200"
    )
    assert describe_mix(order(256)) is None
