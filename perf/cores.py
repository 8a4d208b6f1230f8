"""`python -m perf cores`: images a second that one CPU core reads, decodes and augments, to size the CPUs of a GPU.

The views of SimCLR (two of 224 px) and DINO (two of 224, eight of 96) are made of the same JPEG files, stored as
Parquet, as a folder and as tars. One thread makes some batches of each in turn, as a data task does, and its CPU time
counts, so other work on the machine disturbs the numbers little. Ray's own share comes on top, of which the margin
takes account: `python -m perf pipeline` asks for at least 0.85 of the speed without Ray.
"""

import io
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from perf.harness import Numbers, choose_cases, interleaved, log, machine, medians, scratch_folder
from perf.pictures import STORED, read_pictures, write_pictures
from raysl.config.load import load_config
from raysl.data.stream.loader import Loader
from raysl.process.memory import keep_freed_memory
from raysl.report.summary import aligned
from raysl.train.prepare import prepare

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


def measure(names: Sequence[str] = (), *, repeats: int = 5, batches: int = 2, batch_size: int = BATCH) -> Numbers:
    """Measure images a second of CPU time.

    Returns:
        `images_per_s` of a core and `repeats` by case; `picture_kb`, the mean size of a file; `environment`.
    """
    chosen = choose_cases(names, case_names())
    torch.set_num_threads(1)
    keep_freed_memory()
    with scratch_folder() as folder:
        picture_kb = _write(folder)
        loaders = {name: _loader(name, folder, batch_size) for name in chosen}
        for name, loader in loaders.items():
            log.info("warming up %s", name)
            loader.load(0, 0, 1)

        def images_s(name: str, repeat: int) -> float:
            first, start = 1 + repeat * batches, time.process_time()
            images = sum(len(loaders[name].load(step, 0, 1).key) for step in range(first, first + batches))
            return images / (time.process_time() - start)

        speeds = interleaved(chosen, repeats, images_s)
    return {
        "images_per_s": medians(speeds),
        "repeats": speeds,
        "picture_kb": picture_kb,
        "environment": machine() | {"batch_size": batch_size, "batches": batches},
    }


def table(numbers: Numbers) -> str:
    """Format the result of `measure` as text."""
    height, width = STORED[SIZE]
    rows = [["views", "source", "images/s a core", *(f"for {rate:,}/s" for rate in GPU_RATES)]]
    for name, speed in numbers["images_per_s"].items():
        recipe, _, source = name.partition("/")
        cores = [f"{cores_for(rate, speed):.1f}" for rate in GPU_RATES]
        rows.append([RECIPES[recipe], source, f"{speed:.0f}", *cores])
    title = (
        f"JPEG of {width}x{height}, {numbers['picture_kb']:.0f} kB; cores of a GPU that trains this number of images "
        f"a second, with a margin of {MARGIN:.1f}"
    )
    return "\n".join([title, *aligned(rows, 2)])


def cores_for(rate: float, speed: float) -> float:
    """Return the cores that feed a GPU of `rate` images a second, at `speed` images a second of a core.

    >>> round(cores_for(2000, speed=400), 3)
    6.0
    """
    return MARGIN * rate / speed


def _loader(name: str, folder: Path, batch_size: int) -> Loader:
    recipe, _, source = name.partition("/")
    settings = (
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
    return prepare(load_config(recipe, settings)).loader


def _write(folder: Path) -> float:
    """Write the same pictures for every source; return the mean size of a file in kB."""
    for source in SOURCES:
        (folder / source).mkdir()
    parquet = folder / "parquet" / "train-0.parquet"
    write_pictures(parquet, SIZE, NUM_PICTURES)
    images = read_pictures(parquet)
    with tarfile.open(folder / "webdataset" / "train-0.tar", "w") as tar:
        for number, image in enumerate(images):
            file = folder / "image_folder" / "train" / f"class{number % 2}" / f"{number:05}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(image)
            for name, content in ((f"{number:05}.cls", b"%d" % (number % 2)), (f"{number:05}.jpg", image)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return sum(map(len, images)) / len(images) / 1000
