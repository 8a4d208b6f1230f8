"""The data paths that are compared, as they run in their own processes: two SimCLR views of each encoded image.

* `vision_pil`, `vision_tensor`: a torch DataLoader with torchvision's transforms v2, image by image
* `lightly`, `lightly_tensor`: a torch DataLoader with lightly's SimCLRTransform, on PIL images and on tensors
* `stable`: a torch DataLoader with stable-pretraining's transforms, where it is installed
* `dali`: NVIDIA DALI's pipeline on CPUs, where it is installed
* `raysl_local`: raysl in one process, with threads
* `raysl_ray`: raysl's data tasks feeding a worker of Ray Train
* `decode`: decoding alone, the floor under all of them

Each is an endless stream of batches; all use as many processes or threads as the others.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from perf.dali import simclr_batches
from perf.harness import Numbers
from perf.pictures import EncodedImages, open_image, read_pictures
from perf.processes import join, prepare_process
from raysl.config.schema import DataConfig
from raysl.data.decode.decode import decode
from raysl.data.decode.quiet import quiet_libraries
from raysl.data.order import Order
from raysl.data.sources.parquet import Parquet
from raysl.data.stream.loader import Loader, LocalBatches
from raysl.process.memory import keep_freed_memory, most_resident
from raysl.transforms.photometric import blur_kernel_size
from raysl.transforms.recipes import Crops
from raysl.transforms.view_recipe import evaluation_recipe

MEAN, STD = DataConfig.mean, DataConfig.std
BUFFER_BYTES = 512 << 20  # what may wait in Ray's object store between turns: used up in a part of the warm-up
FOREVER = 1 << 30
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StreamTask:
    """Settings of a contender's process. Other versions of raysl have the same ones."""

    name: str
    socket: str  # of the lineup
    folder: str  # for its files
    file: str  # with the encoded images
    size: int  # side of the views, in pixels
    batch_size: int
    threads: int  # or processes that work at the same time
    niceness: int = 0
    world: int = 1

    def serve(self, stream: Iterator[Any]) -> None:
        """Take batches from the stream at each turn of this contender, after some seconds of warm-up."""
        line = join(self.socket, self.name)
        is_last = False
        while not is_last:
            turn = line.receive()
            is_last = turn["is_last"]
            next(stream)
            _waits(stream, turn["warmup_s"])
            start = time.perf_counter()
            waits = _waits(stream, turn["seconds"])
            images_s = len(waits) * self.batch_size / (time.perf_counter() - start)
            line.send({"images_per_s": images_s, "longest_s": max(waits), "memory_gb": most_resident() / 1e9})


def _waits(stream: Iterator[Any], seconds: float) -> list[float]:
    """Return the seconds of each batch, for a number of seconds and at least one batch."""
    waits: list[float] = []
    start = before = time.perf_counter()
    while not waits or before - start < seconds:
        next(stream)
        now = time.perf_counter()
        waits.append(now - before)
        before = now
    return waits


def stable(task: StreamTask) -> Iterator[Any]:
    """stable-pretraining's SimCLR views, in the workers of a DataLoader as its documentation shows for CPUs."""
    from stable_pretraining.data import transforms

    def view() -> Any:
        return transforms.Compose(
            transforms.RandomResizedCrop((task.size, task.size), scale=(0.08, 1.0)),
            transforms.RandomHorizontalFlip(p=0.5),
            transforms.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8),
            transforms.RandomGrayscale(p=0.2),
            transforms.PILGaussianBlur(sigma=[0.1, 2.0], p=0.5),
            transforms.ToImage(mean=list(MEAN), std=list(STD)),
        )

    views = transforms.MultiViewTransform([view(), view()])
    return _loaded(task, open_image, lambda image: views({"image": image}))


def raysl_ray(settings: Numbers) -> None:
    """raysl on Ray; Ray Train calls it in its worker."""
    import ray

    from raysl.cluster.resources import TASK_CPUS
    from raysl.data.stream.dataset import stream_dataset, stream_key
    from raysl.data.stream.pipeline import RayBatches

    task: StreamTask = settings["task"]
    prepare_process(task.niceness, threads=1)
    loader = _loader(task)
    reference = ray.put(loader)
    key = stream_key(reference, 0)
    dataset = stream_dataset(key, reference, "perf", "DecodeCropAugment", TASK_CPUS, BUFFER_BYTES)
    stream = RayBatches(
        loader=loader,
        total_steps=FOREVER,
        rank=0,
        world=1,
        device=torch.device("cpu"),
        reference=reference,
        shard=dataset.iterator(),
        task_cpus=TASK_CPUS,
    )
    task.serve(stream.from_step(0))


def decode_alone(task: StreamTask) -> Iterator[Any]:
    """Decoding, in threads, and nothing else."""
    images = read_pictures(Path(task.file))
    steps = itertools.count()

    def batch(step: int) -> list[Tensor]:
        first = step * task.batch_size
        with quiet_libraries():
            return [decode(images[(first + row) % len(images)]) for row in range(task.batch_size)]

    with ThreadPoolExecutor(task.threads) as pool:
        while True:
            yield from pool.map(batch, itertools.islice(steps, 4 * task.threads))


STREAMS: dict[str, Callable[[StreamTask], Iterator[Any]]] = {
    "vision_pil": lambda task: _loaded(task, open_image, _twice(_vision_simclr(task.size))),
    "vision_tensor": lambda task: _loaded(task, decode, _twice(_vision_simclr(task.size))),
    "lightly": lambda task: _loaded(task, open_image, _lightly_simclr(task.size)),
    "lightly_tensor": lambda task: _loaded(task, decode, _lightly_simclr(task.size)),
    "stable": stable,
    "dali": lambda task: simclr_batches(
        read_pictures(Path(task.file)), task.size, task.batch_size, task.threads, MEAN, STD
    ),
    "raysl_local": lambda task: LocalBatches(_loader(task), threads=task.threads).from_step(0),
    "decode": decode_alone,
}


def parts_of_local(task: StreamTask, num_batches: int) -> dict[str, float]:
    """Microseconds of CPU time that an image takes in each part of `raysl_local`, on one thread."""
    from raysl.data.decode.images import read_images
    from raysl.transforms.functional import normalize

    keep_freed_memory()  # as in a contender's process
    loader = _loader(task)
    seconds: dict[str, float] = {}

    def timed(name: str, part: Callable[[], T]) -> T:
        start = time.thread_time()
        result = part()
        seconds[name] = seconds.get(name, 0.0) + time.thread_time() - start
        return result

    for step in range(num_batches + 2):
        if step == 2:  # the first two warm up
            seconds.clear()
        index = timed("order", partial(loader.order.batch, step))
        pictures = timed("read and decode", partial(read_images, loader.split, index)).pictures[0]
        crops = timed("crop", partial(loader.recipe.crop, pictures.images, index, 0, 0))
        views = timed("augment", partial(loader.recipe.augment, crops, index, 0, 0)).views
        for view in views.values():
            timed("normalise", partial(normalize, view, MEAN, STD))
    return {name: 1e6 * value / (num_batches * task.batch_size) for name, value in seconds.items()}


def _loader(task: StreamTask) -> Loader:
    split = Parquet(Parquet.Config(train=task.file, image_size=task.size)).required("train")
    return Loader(
        split=split,
        recipe=Crops(size=task.size).recipe(),
        order=Order(
            seed=0,
            fingerprint=split.fingerprint,
            unit_sizes=split.unit_sizes,
            batch_size=task.batch_size,
            lanes=min(64, task.batch_size),
            window=2048,
            is_exact=True,
        ),
        mean=MEAN,
        std=STD,
        augment_in_task=True,
        plain_recipe=evaluation_recipe(task.size),
    )


def _loaded(task: StreamTask, decoder: Callable[[bytes], Any], transform: Callable[[Any], Any]) -> Iterator[Any]:
    images = EncodedImages(read_pictures(Path(task.file)), transform, decoder, length=FOREVER)
    return iter(DataLoader(images, batch_size=task.batch_size, num_workers=task.threads))


def _twice(transform: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    return lambda image: torch.stack([transform(image), transform(image)])


def _lightly_simclr(size: int) -> Callable[[Any], Any]:
    from lightly.transforms import SimCLRTransform

    transform: Callable[[Any], Any] = SimCLRTransform(input_size=size, normalize={"mean": list(MEAN), "std": list(STD)})
    return transform


def _vision_simclr(size: int) -> Callable[[Any], Tensor]:
    """SimCLR's views (appendix A) by torchvision v2."""
    from torchvision.transforms import v2

    compose: Callable[[Any], Tensor] = v2.Compose(
        [
            v2.RandomResizedCrop(size, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(blur_kernel_size(size), (0.1, 2.0))], 0.5),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    return compose


def main() -> None:
    """`python -m perf.streams NAME TASK`."""
    program, text = sys.argv[1:]
    task = StreamTask(**json.loads(text))
    prepare_process(task.niceness, threads=1)
    task.serve(STREAMS[program](task))


if __name__ == "__main__":
    main()
