"""`python -m perf order`: bytes read beside bytes used, and how well a run shuffles, counted on ImageNet's shape.

Nothing is read. The order of samples and its blocks are those of training; a block counts the bytes of each read unit
that it has a row of, in place of reading them.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perf.harness import Numbers
from raysl.data.order import Order
from raysl.data.split import runs
from raysl.data.stream.blocks import rank_blocks
from raysl.hashing import Int64s
from raysl.plan.reads import Reads
from raysl.process.screen import counted
from raysl.report.summary import aligned

NUM_IMAGES, IMAGE_BYTES, BATCH = 1_281_167, 110_000, 4096
UNIT_BYTES = 8_000_000
FILE_ROWS = 10_000
TARGET_ROWS = 111  # of 32 MiB of two views of 224 pixels; a block of version 1 has so many
WORLDS = (1, 8, 64)
LANES, MANY_LANES = 64, 512
FILES = ("parquet", "tar")


@dataclass(frozen=True)
class Stored:
    """A dataset as files."""

    row_bytes: Int64s  # of each image, int64 [N]
    unit_of: Int64s  # read unit of each image, ascending, int64 [N]

    @classmethod
    def parquet(cls, num_images: int) -> "Stored":
        """Return files of 10,000 images in row groups of 64, which are 7 MB."""
        files = runs(num_images, FILE_ROWS)
        units = np.concatenate([runs(rows, 64) for rows in files.tolist()])
        return cls(np.full(num_images, IMAGE_BYTES), np.repeat(np.arange(len(units)), units))

    @classmethod
    def tar(cls, num_images: int) -> "Stored":
        """Return tars of 10,000 images of different sizes, which are read in runs of 8 MB."""
        row_bytes = np.random.default_rng(0).lognormal(0, 0.6, num_images)
        row_bytes = (row_bytes / row_bytes.mean() * IMAGE_BYTES).astype(np.int64)
        ends = np.cumsum(row_bytes)
        tar_of = np.arange(num_images) // FILE_ROWS
        starts = (ends - row_bytes)[::FILE_ROWS][tar_of]
        run_of = (ends - row_bytes - starts) // UNIT_BYTES
        is_first = (np.diff(run_of, prepend=-1) != 0) | (np.diff(tar_of, prepend=-1) != 0)
        return cls(row_bytes, np.cumsum(is_first) - 1)

    def order(self, lanes: int = LANES, is_exact: bool = False) -> Order:
        """Return the order of a run over these images."""
        sizes = np.bincount(self.unit_of)
        return Order(0, "images", sizes, min(BATCH, len(self.unit_of)), lanes, None, is_exact)

    def count(self, order: Order, world: int, first: int, end: int) -> tuple[int, int]:
        """Return the bytes that all ranks read and use for the steps [first, end)."""
        unit_bytes = np.bincount(self.unit_of, self.row_bytes).astype(np.int64)
        uses = np.zeros(len(self.unit_of), np.int64)
        read = 0
        for rank in range(world):
            for block in rank_blocks(order, rank, world, first, end, TARGET_ROWS):
                index = np.concatenate([samples for _, samples in block.samples(order)])
                read += int(unit_bytes[np.unique(self.unit_of[index])].sum())
                uses[index] += 1
        if uses.sum() != (end - first) * order.batch_size or uses.max() > -(-(end - first) // order.epoch_len):
            raise RuntimeError(f"{uses.sum():,} images came in {end - first} steps of {order.batch_size:,}")
        return read, int((uses * self.row_bytes).sum())


def measure(num_images: int = NUM_IMAGES) -> Numbers:
    """Count reads and shuffle of an epoch of some images at batch 4,096.

    Returns:
        `read_amplification`: bytes read over bytes used by kind of files and number of ranks; with 512 lanes; and with
        a resume on 64 ranks of an epoch that 8 began. `shuffle`: variance of the number of images that batches of two
        epochs share, over its mean, `measured` and by the `formula` of the plan.
    """
    stored = {"parquet": Stored.parquet(num_images), "tar": Stored.tar(num_images)}

    def amplification(lanes: int) -> dict[str, dict[str, float]]:
        return {
            name: {str(world): _amplification(files, files.order(lanes), world) for world in WORLDS}
            for name, files in stored.items()
        }

    return {
        "read_amplification": amplification(LANES),
        "read_amplification_512_lanes": amplification(MANY_LANES),
        "read_amplification_resumed": {name: _resumed(files) for name, files in stored.items()},
        "shuffle": _shuffle(stored),
    }


def table(numbers: Numbers) -> str:
    """Format the result of `measure` as text."""
    rows = [["bytes read / used, ImageNet at batch 4,096", *FILES]]
    for key, lanes in (("read_amplification", "64 lanes"), ("read_amplification_512_lanes", "512 lanes")):
        for world in WORLDS:
            values = [f"{numbers[key][name][str(world)]:.3f}" for name in FILES]
            rows.append([f"{lanes}, {counted(world, 'rank')}", *values])
    rows.append(["8 ranks, resumed by 64", *(f"{numbers['read_amplification_resumed'][name]:.3f}" for name in FILES)])
    rows.append(["variance of the overlap of epochs / mean", "measured", "formula"])
    rows += [[name, f"{row['measured']:.2f}", f"{row['formula']:.2f}"] for name, row in numbers["shuffle"].items()]
    return "\n".join(aligned(rows, 1))


def _amplification(files: Stored, order: Order, world: int) -> float:
    read, used = files.count(order, world, 0, order.epoch_len)
    return read / used


def _resumed(files: Stored) -> float:
    order = files.order()
    middle = order.epoch_len // 2 + 1
    before, after = files.count(order, 8, 0, middle), files.count(order, 64, middle, order.epoch_len)
    return (before[0] + after[0]) / (before[1] + after[1])


def _shuffle(stored: dict[str, Stored]) -> dict[str, dict[str, float]]:
    parquet = stored["parquet"]
    large = replace(parquet, unit_of=parquet.unit_of // 4)
    orders = {
        "parquet": parquet.order(),
        "tar": stored["tar"].order(),
        "parquet, 512 lanes": parquet.order(MANY_LANES),
        "parquet, row groups of 256": large.order(),
        "exact": parquet.order(is_exact=True),
    }
    return {
        name: {"measured": overlap_variance(order), "formula": Reads.of(order).shuffle}
        for name, order in orders.items()
    }


def overlap_variance(order: Order, epochs: int = 2) -> float:
    """Return the variance of the number of samples that batches of consecutive epochs share, over its mean."""
    num = order.epoch_len + 1  # the last column is for samples of no batch
    shared: list[NDArray[np.int64]] = []
    before: Int64s | None = None
    for epoch in range(epochs):
        batch_of = np.full(order.num_samples, order.epoch_len)
        for step in range(order.epoch_len):
            batch_of[order.batch(epoch * order.epoch_len + step)] = step
        if before is not None:
            counts = np.bincount(before * num + batch_of, minlength=num**2).reshape(num, num)
            shared.append(counts[:-1, :-1])
        before = batch_of
    return float(np.var(shared) / np.mean(shared))
