"""The stream through Ray Data gives the batches of one process, to the bit, at any number of ranks."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from threading import Barrier
from typing import Any

import numpy as np
import psutil
import pytest
import ray
import torch

from raysl.data.batch import Batch
from raysl.data.order import Order
from raysl.data.sources.synthetic import Synthetic
from raysl.data.stream import pipeline, prefetch
from raysl.data.stream.loader import Loader, LocalBatches
from raysl.data.stream.pipeline import RayBatches
from raysl.transforms import ColorJitter, HorizontalFlip, RandomResizedCrop, View, ViewRecipe
from raysl.transforms.view_recipe import evaluation_recipe

CPU = torch.device("cpu")
STORE_BYTES = 80 * 1024**2


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


def _loader(num: int = 100, size: int = 8, batch: int = 10, lanes: int = 10, is_exact: bool = True) -> Loader:
    source = Synthetic(Synthetic.Config(num_train=num, image_size=size, unit_rows=16))
    split = source.required("train")
    jitter = ColorJitter(p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    view = View(RandomResizedCrop(size=size), (HorizontalFlip(p=0.5), jitter))
    return Loader(
        split=split,
        recipe=ViewRecipe({"global": (view, view)}),
        order=Order(0, split.fingerprint, split.unit_sizes, batch, lanes, window=20, is_exact=is_exact),
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        augment_in_task=True,
        plain_recipe=evaluation_recipe(size),
    )


class _Share:
    """Hands rank 0's object to all ranks, which are threads here."""

    def __init__(self, world: int) -> None:
        self.barrier = Barrier(world)
        self.object: Any = None

    def __call__(self, given: Any) -> Any:
        if given is not None:
            self.object = given
        self.barrier.wait()
        taken = self.object
        self.barrier.wait()
        return taken


def _consume(loader: Loader, world: int, start: int, end: int, take: Callable[[Batch], Any]) -> list[list[Any]]:
    """What `take` gives for each batch of steps [start, end), by rank."""
    share = _Share(world)

    def rank_stream(rank: int) -> list[Any]:
        stream = RayBatches(loader, end, rank, world, CPU, share, task_cpus=1.0, prefetch=1)
        return [take(batch) for batch in stream.from_step(start)]

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(rank_stream, range(world)))


@pytest.mark.parametrize(("world", "is_exact", "is_ahead"), [(1, True, False), (3, False, False), (3, False, True)])
def test_pixels_and_order_are_those_of_one_process(
    world: int, is_exact: bool, is_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "runs_ahead", lambda device: is_ahead)
    monkeypatch.setattr(pipeline, "BLOCK_ROWS", 8)  # two steps a block for three ranks with 3, 3 and 4 rows
    monkeypatch.setattr(pipeline, "SEGMENT_BLOCKS", 15)  # two or more Ray Data executions, joined without a seam
    loader = _loader(is_exact=is_exact)
    ranks = _consume(loader, world, start=3, end=17, take=lambda batch: batch)
    alone = list(islice(LocalBatches(loader).from_step(3), 14))
    for step, whole in enumerate(alone):
        parts = [batches[step] for batches in ranks]
        assert torch.equal(torch.cat([part.index for part in parts]), whole.index)
        assert torch.equal(torch.cat([part.label for part in parts]), whole.label)
        assert torch.equal(torch.cat([part.views["global"] for part in parts]), whole.views["global"])


def test_the_smaller_last_batch_of_an_epoch_is_shared_out_too() -> None:
    loader = _loader(num=47, lanes=6)
    loader = replace(loader, order=replace(loader.order, drop_last=False))
    ranks = _consume(loader, 2, start=3, end=7, take=lambda batch: batch)
    for step, whole in enumerate(islice(LocalBatches(loader).from_step(3), 4)):
        parts = [batches[step] for batches in ranks]
        assert len(whole) == (7 if step == 1 else 10)
        assert torch.equal(torch.cat([part.index for part in parts]), whole.index)
        assert torch.equal(torch.cat([part.views["global"] for part in parts]), whole.views["global"])


def test_rows_too_many_for_a_block_travel_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "BLOCK_ROWS", 3)
    loader = _loader()
    (batches,) = _consume(loader, 1, start=2, end=5, take=lambda batch: batch)
    for whole, batch in zip(LocalBatches(loader).from_step(2), batches, strict=False):
        assert torch.equal(batch.index, whole.index)
        assert torch.equal(batch.views["global"], whole.views["global"])


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
def test_a_stream_larger_than_the_object_store_flows_through() -> None:
    loader = _loader(num=2048, size=128, batch=64, lanes=64)
    (rows,) = _consume(loader, 1, start=0, end=32, take=lambda batch: batch.index.numpy())
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
    share = _Share(world)

    def plain(rank: int) -> list[Batch]:
        return list(RayBatches(loader, 10, rank, world, CPU, share, task_cpus=1.0, prefetch=1).plain())

    with ThreadPoolExecutor(world) as pool:
        ranks = list(pool.map(plain, range(world)))
    for rank, found in enumerate(ranks):
        expected = list(loader.plain(rank, world, CPU))
        for take in (lambda batch: batch.index, lambda batch: batch.label, lambda batch: batch.views["image"]):
            assert torch.equal(torch.cat(list(map(take, found))), torch.cat(list(map(take, expected))))


def test_a_stream_that_waits_for_its_consumer_leaves_the_cpu_alone() -> None:
    loader = _loader(num=2048, size=64, batch=64, lanes=64)

    def consume(driver: int) -> float:
        """CPUs in use while the buffer is full and nobody takes from it."""
        stream = RayBatches(loader, 10_000, 0, 1, CPU, lambda value: value, 0.5, prefetch=1, buffer_bytes=20 << 20)
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
