"""The stream from data tasks gives the batches of one process, to the bit, at any number of ranks."""

import io
import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import ray.cloudpickle
import torch
from PIL import Image

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.data.decode.corrupt import Replaced
from raysl.data.order import Order, Part
from raysl.data.source import Rows, Split
from raysl.data.sources.parquet import Parquet
from raysl.data.sources.synthetic import Synthetic
from raysl.data.stream import feed, pipeline, prefetch
from raysl.data.stream.blocks import PlainRows, known_rows, rank_blocks
from raysl.data.stream.dataset import stream_dataset, stream_key
from raysl.data.stream.loader import Loader, LocalBatches
from raysl.data.stream.pipeline import RayBatches
from raysl.hashing import Int64s
from raysl.runs.worker import Job, pack, unpack
from raysl.train.prepare import prepare
from raysl.transforms import ColorJitter, HorizontalFlip, RandomResizedCrop, View, ViewRecipe
from raysl.transforms.view_recipe import evaluation_recipe

CPU = torch.device("cpu")
STORE_BYTES = 80 * 1024**2
BUFFER_BYTES = 20 << 20
UNIT_ROWS = 16


@pytest.fixture(scope="module", autouse=True)
def small_ray() -> Iterator[None]:
    ray.shutdown()
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )
    yield
    ray.shutdown()


def _loader(
    num: int = 100, size: int = 8, batch: int = 10, lanes: int = 10, kind: str = "exact", split: Split | None = None
) -> Loader:
    source = Synthetic(Synthetic.Config(num_train=num, image_size=size, unit_rows=UNIT_ROWS))
    split = split or source.required("train")
    jitter = ColorJitter(p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    view = View(RandomResizedCrop(size=size), (HorizontalFlip(p=0.5), jitter))
    return Loader(
        split=split,
        recipe=ViewRecipe({"global": (view, view)}),
        order=Order(0, split.fingerprint, split.unit_sizes, batch, lanes, window=20, is_exact=kind == "exact"),
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        augment_in_task=True,
        plain_recipe=evaluation_recipe(size),
    )


def _parquet_loader(folder: Path) -> Loader:
    """A loader of 200 images in row groups of `UNIT_ROWS`."""
    images = []
    for row in range(200):
        file = io.BytesIO()
        Image.fromarray(np.random.default_rng(row).integers(0, 256, (8, 8, 3), np.uint8)).save(file, "png")
        images.append(file.getvalue())
    table = pa.table({"image": images, "label": np.arange(200) % 7})
    pq.write_table(table, folder / "train.parquet", row_group_size=UNIT_ROWS)
    split = Parquet(Parquet.Config(path=str(folder), image_size=8)).required("train")
    return _loader(batch=20, lanes=5, kind="windows", split=split)


class _Wrapped(Split):
    """The images of another split."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.classes, self.unit_sizes, self.fingerprint = split.classes, split.unit_sizes, split.fingerprint
        self.is_random_access = split.is_random_access

    def read(self, index: Int64s) -> Rows:
        return self.split.read(index)


class _Counting(_Wrapped):
    """Notes what is read."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.reads: list[Int64s] = []

    def read(self, index: Int64s) -> Rows:
        self.reads.append(index)
        return super().read(index)


class _ManyFiles(_Wrapped):
    """As large as a folder of a million files."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.paths = [f"/images/of/a/folder/{row:07}.jpg" for row in range(1_000_000)]


def _streams(loader: Loader, world: int, end: int) -> list[RayBatches]:
    """The streams of all ranks."""
    reference, task_cpus = ray.put(loader), 0.5

    def stream(rank: int) -> RayBatches:
        dataset = stream_dataset(stream_key(reference, rank), reference, "test", "Decode", task_cpus, BUFFER_BYTES)
        return RayBatches(loader, end, rank, world, CPU, reference, dataset.iterator(), task_cpus)

    return [stream(rank) for rank in range(world)]


def _consume(loader: Loader, world: int, start: int, end: int) -> list[list[Batch]]:
    """The batches of steps [start, end), by rank."""

    def consume(stream: RayBatches) -> list[Batch]:
        batches = list(stream.from_step(start))
        stream.end()
        return batches

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(consume, _streams(loader, world, end)))


def _assert_same(loader: Loader, ranks: list[list[Batch]], start: int, end: int) -> None:
    """The ranks together have the batches of one process."""
    assert {len(batches) for batches in ranks} == {end - start}
    for step, whole in enumerate(islice(LocalBatches(loader).from_step(start), end - start)):
        parts = [batches[step] for batches in ranks]
        assert torch.equal(torch.cat([part.index for part in parts]), whole.index)
        assert torch.equal(torch.cat([part.label for part in parts]), whole.label)
        assert torch.equal(torch.cat([part.views["global"] for part in parts]), whole.views["global"])


@pytest.mark.parametrize(
    ("world", "kind", "is_ahead"),
    [(1, "exact", True), (2, "windows", False), (3, "windows", True)],
)
def test_pixels_and_order_are_those_of_one_process(
    world: int, kind: str, is_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "runs_ahead", lambda device: is_ahead)
    monkeypatch.setattr(pipeline, "MOST_ROWS", 8)  # two steps a block for three ranks with 3, 3 and 4 rows
    loader = _loader(kind=kind)
    _assert_same(loader, _consume(loader, world, start=3, end=27), 3, 27)


@pytest.mark.parametrize(("world", "kind"), [(1, "exact"), (2, "windows")])
def test_images_that_a_mix_takes_several_times_have_new_views_each_time(world: int, kind: str) -> None:
    loader = _loader(kind=kind)
    # 16 of the 100 images make up 80 % of an epoch
    loader = replace(loader, order=replace(loader.order, mix=(Part("few", 1, 80), Part("many", 6, 20))))
    ranks = _consume(loader, world, start=3, end=14)
    _assert_same(loader, ranks, 3, 14)
    batches = list(islice(LocalBatches(loader).from_step(0), 10))
    index, views = (
        torch.cat([take(batch) for batch in batches]) for take in (lambda b: b.index, lambda b: b.views["global"])
    )
    assert torch.bincount(index, minlength=100)[:16].tolist() == [5] * 16
    for row in range(16):
        assert len(torch.unique(views[index == row].flatten(1), dim=0)) == 5
    numbers = np.concatenate([batch.random("mask").uniform(0, 1) for batch in batches])
    assert len(np.unique(numbers)) == 100
    assert np.array_equal(
        batches[0].random("mask").uniform(0, 1), batches[0].map(torch.clone).random("mask").uniform(0, 1)
    )


@pytest.mark.parametrize("kind", ["exact", "windows"])
def test_the_smaller_last_batch_of_an_epoch_is_shared_out_too(kind: str) -> None:
    loader = _loader(num=47, lanes=6, kind=kind)
    loader = replace(loader, order=replace(loader.order, drop_last=False))
    ranks = _consume(loader, 2, start=3, end=7)
    assert [len(batch) for batch in ranks[0]] != [len(ranks[0][0])] * 4
    _assert_same(loader, ranks, 3, 7)


def test_rows_too_many_for_a_block_travel_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "MOST_ROWS", 3)
    loader = _loader()
    _assert_same(loader, _consume(loader, 1, start=2, end=5), 2, 5)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_windowed_parquet_set_goes_on_at_any_step_with_any_number_of_ranks(world: int, tmp_path: Path) -> None:
    loader = _parquet_loader(tmp_path)
    assert not loader.order.is_exact
    for start in (0, 7):
        _assert_same(loader, _consume(loader, world, start, 16), start, 16)


def test_each_byte_of_a_windowed_set_is_read_once(tmp_path: Path) -> None:
    loader = _parquet_loader(tmp_path)
    counting = _Counting(loader.split)
    list(islice(LocalBatches(replace(loader, split=counting)).from_step(0), loader.order.epoch_len))
    lanes = loader.order.lanes
    units = Counter(unit for read in counting.reads for unit in np.unique(read // UNIT_ROWS).tolist())
    assert sum(units.values()) <= len(loader.split.unit_sizes) + lanes - 1


def test_a_rank_gets_its_blocks_while_other_work_holds_all_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "STARVED_S", 0.5)

    @ray.remote(num_cpus=1)
    class Other:
        def ready(self) -> None:
            """Answer when it has its CPU."""

    others = [Other.remote() for _ in range(2)]
    ray.get([other.ready.remote() for other in others])
    loader, starved = _loader(kind="windows"), []
    (stream,) = _streams(loader, world=1, end=3)
    stream.on_starved = lambda: starved.append(True)
    batches = list(stream.from_step(0))
    for other in others:
        ray.kill(other)
    _assert_same(loader, [batches], 0, 3)
    assert starved


class _Rows(_Wrapped):
    """The label of an image is its row, and no class."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.classes = ()

    def read(self, index: Int64s) -> Rows:
        return replace(super().read(index), labels=index.copy())


@pytest.mark.parametrize("kind", ["exact", "windows"])
def test_known_corrupt_images_are_not_read_again_on_ray_and_in_one_process(kind: str) -> None:
    loader = replace(_loader(kind=kind), split=_Rows(_loader(kind=kind).split))
    known = {7: Replaced("7.jpg: truncated", row=7, other=8), 90: Replaced("90.jpg: truncated", row=90, other=3)}
    (stream,) = _streams(loader, 1, 10)
    alone = LocalBatches(loader)
    for batches in (stream, alone):
        batches.corrupt.learn(known.values())
        seen = list(islice(batches.from_step(0), 10))
        index, labels = (torch.cat([getattr(batch, name) for batch in seen]).tolist() for name in ("index", "label"))
        label = dict(zip(index, labels, strict=True))
        assert label == {row: row for row in range(100)} | {7: 8, 90: 3}
        assert sorted(batches.corrupt.take_unreported()) == sorted(known.values()), (
            "the log of a start still lists them"
        )
        plain = torch.cat([batch.label for batch in batches.plain()])
        assert plain[[7, 90]].tolist() == [8, 3]


def test_a_block_takes_along_only_its_own_known_images() -> None:
    order = _loader().order
    blocks = list(rank_blocks(order, 0, 1, 0, order.epoch_len, 16))
    parts = [known_rows(block, order, {7: "seven", 90: "ninety"}) for block in blocks]
    assert sum(map(len, parts)) == 2
    assert {row: text for part in parts for row, text in part.items()} == {7: "seven", 90: "ninety"}
    assert known_rows(PlainRows(range(5, 8)), order, {7: "seven", 90: "ninety"}) == {7: "seven"}


def test_what_the_controller_and_the_workers_are_sent_does_not_grow_with_the_dataset() -> None:
    run = prepare(load_config("quickstart", ["data.limit=500"]))
    loader = replace(run.loader, split=_ManyFiles(run.loader.split))
    settings = pack(Job(replace(run, loader=loader), 1.0, board="", owner=None, marks={}, resources={}, is_alone=True))
    assert len(ray.cloudpickle.dumps(settings)) < 10_000
    assert len(unpack(settings).run.loader.split.paths) == 1_000_000


def test_threads_that_read_ahead_change_nothing() -> None:
    loader = _loader()
    alone, ahead = (list(islice(LocalBatches(loader, threads=threads).from_step(5), 8)) for threads in (0, 3))
    for one, other in zip(alone, ahead, strict=True):
        assert torch.equal(one.index, other.index)
        assert torch.equal(one.views["global"], other.views["global"])


def test_augmenting_on_the_device_changes_no_pixel() -> None:
    loader = _loader()
    in_task = next(iter(LocalBatches(loader).from_step(4)))
    on_device = next(iter(LocalBatches(replace(loader, augment_in_task=False)).from_step(4)))
    assert torch.equal(in_task.views["global"], on_device.views["global"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exact", "windows"])
def test_a_stream_larger_than_the_object_store_flows_through(kind: str) -> None:
    loader = _loader(num=2048, size=128, batch=64, lanes=16, kind=kind)
    (stream,) = _streams(loader, 1, 32)
    rows = [batch.index.numpy() for batch in stream.from_step(0)]
    num_bytes = 32 * 64 * 2 * 3 * 128 * 128
    assert num_bytes > 2 * STORE_BYTES
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(2048))


def test_plain_images_are_shared_out_in_dataset_order() -> None:
    loader = _loader()
    index = [batch.index for rank in range(3) for batch in loader.plain(rank, 3, CPU)]
    assert torch.equal(torch.cat(index), torch.arange(100))


@pytest.mark.parametrize("world", [1, 2])
def test_plain_images_from_data_tasks_are_those_of_one_process(world: int) -> None:
    loader = _loader(num=601)  # in blocks of up to 256, of 300 and 301 images for two ranks
    ranks = [list(stream.plain()) for stream in _streams(loader, world, 10)]
    for rank, found in enumerate(ranks):
        expected = list(loader.plain(rank, world, CPU))
        for take in (lambda batch: batch.index, lambda batch: batch.label, lambda batch: batch.views["image"]):
            assert torch.equal(torch.cat(list(map(take, found))), torch.cat(list(map(take, expected))))


def test_chosen_images_from_data_tasks_are_those_of_one_process_and_may_be_held_out() -> None:
    loader = replace(_loader(), held_out=_loader(num=300).split)
    loader = replace(loader, held_out=_Rows(loader.held_out))
    blocks = [PlainRows([5, 70, 71]), PlainRows([299, 2], is_held_out=True)]
    (stream,) = _streams(loader, 1, 10)
    stream.corrupt.learn([Replaced("2.jpg: truncated", row=2, other=8)])  # a training image
    made, expected = list(stream.chosen(blocks)), list(LocalBatches(loader).chosen(blocks))
    for one, other in zip(made, expected, strict=True):
        assert torch.equal(one.index, other.index)
        assert torch.equal(one.label, other.label)
        assert torch.equal(one.views["image"], other.views["image"])
    assert made[0].index.tolist() == [5, 70, 71]
    assert made[1].label.tolist() == [299, 2]


def test_a_stream_that_waits_for_its_consumer_leaves_the_cpu_alone() -> None:
    loader = _loader(num=2048, size=64, batch=64, lanes=64)

    def consume(driver: int) -> float:
        """CPUs in use while the buffer is full and nobody takes from it."""
        (stream,) = _streams(loader, 1, 10_000)
        batches = stream.from_step(0)
        next(batches)
        in_use = 1.0
        for _ in range(8):  # while it fills, and processes for data tasks still start
            family = psutil.Process(driver).children(recursive=True)
            before, start = _cpu_seconds(family), time.perf_counter()
            time.sleep(2)
            in_use = min(in_use, (_cpu_seconds(family) - before) / (time.perf_counter() - start))
            if in_use < 0.5:
                break
        return in_use

    assert ray.get(ray.remote(num_cpus=0)(consume).remote(os.getpid())) < 0.5


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes if process.is_running())
