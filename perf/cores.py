"""`python -m perf cores`: images a second that one CPU core reads, decodes and augments, to size the CPUs of a GPU.

The views of SimCLR (two of 224 px) and DINO (two of 224, eight of 96) are made of the same JPEG files, stored as
Parquet, as a folder and as tars. One thread makes some batches of each in turn, as a data task does, and its CPU time
counts, so other work on the machine disturbs the numbers little. Ray's own share comes on top, of which the margin
takes account: `python -m perf pipeline` asks for at least 0.85 of the speed without Ray.
"""

import io
import logging
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from perf.numbers import choose_cases, machine, medians, rotated
from perf.pictures import STORED, read_pictures, write_pictures
from raysl.config.load import load_config
from raysl.data.stream.loader import Loader
from raysl.process.memory import keep_freed_memory
from raysl.train.prepare import prepare

log = logging.getLogger("raysl")

SIZE = 224
NUM_PICTURES = 256
BATCH = 32
RECIPES = {"simclr": "SimCLR, 2 x 224", "dino": "DINO, 2 x 224 + 8 x 96"}
"""Configurations and their views."""
SOURCES = ("parquet", "image_folder", "webdataset")
GPU_RATES = (500, 1000, 2000)
"""Images a second of a GPU for which the table has its cores."""
MARGIN = 1.2


def case_names() -> list[str]:
    """Return what can be measured: a configuration and a source each."""
    return [f"{recipe}/{source}" for recipe in RECIPES for source in SOURCES]


def measure_cores(
    names: Sequence[str] = (), *, repeats: int = 5, batches: int = 2, batch_size: int = BATCH
) -> dict[str, Any]:
    """Measure images a second of CPU time.

    Args:
        names: of `case_names`; default: all.
        repeats: turns of each.
        batches: that a turn times, after an untimed one in the first turn.
        batch_size: images.

    Returns:
        `images_per_s` of a core and `repeats` by case; `picture_kb`, the mean size of a file; `environment`.

    Raises:
        ConfigError: if there is no such case.
    """
    chosen = choose_cases(names, case_names())
    torch.set_num_threads(1)
    keep_freed_memory()
    with tempfile.TemporaryDirectory(prefix="raysl_speed_") as folder:
        picture_kb = _write(Path(folder))
        loaders = {name: _loader(name, Path(folder), batch_size) for name in chosen}
        for name, loader in loaders.items():
            log.info("warming up %s", name)
            loader.load(0, 0, 1)
        speeds = []
        for repeat in range(repeats):
            first = 1 + repeat * batches
            speeds.append({name: _speed(loaders[name], first, batches) for name in rotated(chosen, repeat)})
    return {
        "images_per_s": medians([{name: speed[name] for name in chosen} for speed in speeds]),
        "repeats": speeds,
        "picture_kb": picture_kb,
        "environment": machine() | {"batch_size": batch_size, "batches": batches},
    }


def cores_table(numbers: dict[str, Any]) -> str:
    """Format the result of `measure_cores` as text."""
    height, width = STORED[SIZE]
    head = "".join(f"{f'for {rate:,}/s':>12}" for rate in GPU_RATES)
    lines = [
        f"JPEG of {width}x{height}, {numbers['picture_kb']:.0f} kB; cores of a GPU that trains so many images "
        f"a second, with a margin of {MARGIN:.1f}",
        f"{'views':<25}{'source':<14}{'images/s a core':>16}{head}",
    ]
    for name, speed in numbers["images_per_s"].items():
        recipe, _, source = name.partition("/")
        cores = "".join(f"{cores_for(rate, speed):>12.1f}" for rate in GPU_RATES)
        lines.append(f"{RECIPES[recipe]:<25}{source:<14}{speed:>16.0f}{cores}")
    return "\n".join(lines)


def cores_for(rate: float, speed: float) -> float:
    """Return the cores that feed a GPU.

    Args:
        rate: images a second that it trains.
        speed: images a second of a core.

    >>> round(cores_for(2000, speed=400), 3)
    6.0
    """
    return MARGIN * rate / speed


def _speed(loader: Loader, first: int, batches: int) -> float:
    """Return images a second of CPU time of this process over some batches."""
    num_images = 0
    start = time.process_time()
    for step in range(first, first + batches):
        num_images += len(loader.load(step, 0, 1).index)
    return num_images / (time.process_time() - start)


def _loader(name: str, folder: Path, batch_size: int) -> Loader:
    recipe, _, source = name.partition("/")
    words = (
        f"data={source}",
        f"data.path={folder / source}",
        f"data.image_size={SIZE}",
        "data.augment_on=task",
        f"data.lanes={min(batch_size, 8)}",
        f"train.batch_size={batch_size}",
        "train.epochs=1000",
        "optim.warmup=0st",
        "train.online_knn_every=null",
        "benchmarks=[]",
    )
    return prepare(load_config(recipe, words)).loader


def _write(folder: Path) -> float:
    """Write the same pictures for every source; return the mean size of a file in kB."""
    parquet = folder / "parquet" / "train-0.parquet"
    for source in SOURCES:
        (folder / source).mkdir()
    write_pictures(parquet, SIZE, NUM_PICTURES)
    images = read_pictures(parquet)
    writers: tuple[Callable[[Path, Sequence[bytes]], None], ...] = (_write_folder, _write_tar)
    for source, write in zip(SOURCES[1:], writers, strict=True):
        write(folder / source, images)
    return sum(len(image) for image in images) / len(images) / 1000


def _write_folder(folder: Path, images: Sequence[bytes]) -> None:
    for number, image in enumerate(images):
        file = folder / "train" / f"class{number % 2}" / f"{number:05}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image)


def _write_tar(folder: Path, images: Sequence[bytes]) -> None:
    with tarfile.open(folder / "train-0.tar", "w") as tar:
        for number, image in enumerate(images):
            for name, content in ((f"{number:05}.cls", b"%d" % (number % 2)), (f"{number:05}.jpg", image)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
