"""`python -m perf scale`: what the data of a large run costs, counted and measured with the parts that a run uses.

Runs on 8 to 1,024 GPUs are counted through with the real order of samples and the real blocks, without a GPU and
without images: bytes read, blocks, and samples that wait in memory. Then Ray Data hands out blocks to a rank, made by
tasks that do not decode images. That gives the CPU time of each block, which with the counts says what a node needs.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import cast

import numpy as np
import torch

from perf.harness import Numbers, verdict
from raysl.data.decode.corrupt import Known
from raysl.data.order import Order, default_lanes
from raysl.data.split import runs
from raysl.data.stream.blocks import StepRows, rank_blocks
from raysl.data.stream.loader import Loader
from raysl.data.stream.rows import BlockRows, Loaded, load_block
from raysl.hashing import Int64s
from raysl.report.summary import aligned

GOAL_READ = 1.05
WORLDS = (8, 64, 512, 1024)
TARGET_ROWS = 256
"""Desired rows of a block; a window stays whole."""


@dataclass(frozen=True, kw_only=True)
class ScaleTask:
    """A run to count through."""

    rows: int = 1_281_167  # of ImageNet
    image_bytes: int = 110_000  # of an encoded image
    row_bytes: int = 2 * 3 * 224 * 224  # of an image on its way to a rank; two crops of 224 pixels
    unit_rows: int = 64  # of a read unit, such as a row group
    gpus: int = 8  # of a node, a rank each
    images_s: float = 2000.0  # images that a GPU takes in a second
    blocks: int = 2000  # that a rank takes when its stream is measured

    def order(self, world: int) -> Order:
        """The order of a run on `world` GPUs: a batch of 4,096, or 32 for each GPU if that is more."""
        batch_size = max(4096, 32 * world)
        units = runs(self.rows, self.unit_rows)
        lanes = max(world, default_lanes(batch_size, len(units)))
        return Order(0, "simulated", units, batch_size, lanes, window=None, is_exact=False)


def measure() -> Numbers:
    """Count runs on `WORLDS` GPUs, and measure the stream of a rank.

    Returns:
        `runs` (for each number of GPUs the numbers of `count_run`), `stream` (of `measure_stream`), `node` (what a
        node needs at `images_s` images/s a GPU) and `task`.
    """
    task = ScaleTask()
    counts = {str(world): count_run(task, world) for world in WORLDS}
    stream = measure_stream(task)
    return {"runs": counts, "stream": stream, "node": _node(task, counts, stream), "task": asdict(task)}


def count_run(task: ScaleTask, world: int) -> dict[str, float]:
    """Count an epoch of a run through.

    Returns:
        `read` (bytes read over bytes used), `steps`, `block_rows` (mean), `blocks_step` (of a rank, mean) and
        `live_rows` (that wait in a rank, the most over ranks and steps, without those made ahead).
    """
    order = task.order(world)
    starts = np.cumsum(order.unit_sizes) - order.unit_sizes
    read = used = num_blocks = 0
    live_rows = 0
    for rank in range(world):
        arriving = np.zeros(order.epoch_len, np.int64)
        for block in rank_blocks(order, rank, world, 0, order.epoch_len, TARGET_ROWS):
            arriving[block.step] += block.num_rows
            read += _read_rows(order, starts, block)
            num_blocks += 1
        used += int(arriving.sum())
        waiting = np.cumsum(arriving) - order.num_rows(rank, world) * np.arange(order.epoch_len)
        live_rows = max(live_rows, int(waiting.max()))
    return {
        "read": read / used,
        "steps": order.epoch_len,
        "block_rows": used / num_blocks,
        "blocks_step": num_blocks / order.epoch_len / world,
        "live_rows": live_rows,
    }


def _read_rows(order: Order, starts: Int64s, block: StepRows) -> int:
    """Return the rows of all units that a task reads for a block."""
    samples = np.concatenate([index for _, index in block.samples(order)])
    units = np.unique(np.searchsorted(starts, samples, side="right") - 1)
    return int(order.unit_sizes[units].sum())


class CountingLoader:
    """A loader for data tasks that makes rows of the true number, without reading an image."""

    def __init__(self, order: Order) -> None:
        self.order = order

    def load_rows(self, block: StepRows, known: Known | None = None) -> list[Loaded]:
        """Return the samples without views."""
        return [
            Loaded({}, {}, torch.from_numpy(index), torch.zeros(len(index), dtype=torch.int64))
            for _, index in block.samples(self.order)
        ]


def measure_stream(task: ScaleTask) -> dict[str, float]:
    """Let Ray Data hand out blocks to a rank, which this process plays.

    Returns:
        `blocks_s` (with tasks that do nothing, on this machine) and `rank_ms` (CPU milliseconds of a block in the
        rank, with Ray Data's scheduler, which runs in it).
    """
    import ray

    from raysl.cluster.connection import connect, disconnect
    from raysl.cluster.resources import TASK_CPUS
    from raysl.data.stream.blocks import NumberedBlock
    from raysl.data.stream.dataset import stream_dataset
    from raysl.data.stream.feed import PARTS, Feed

    connect()
    try:
        order = task.order(task.gpus)
        loader = CountingLoader(order)
        reference = ray.put(loader)
        dataset = stream_dataset("perf", reference, "perf", "Nothing", TASK_CPUS, None)

        def blocks() -> Iterator[NumberedBlock]:
            endless = rank_blocks(order, 0, task.gpus, 0, 1000 * order.epoch_len, TARGET_ROWS)
            return (NumberedBlock(number, block) for number, block in enumerate(endless))

        def make(block: NumberedBlock) -> BlockRows:
            return load_block(cast(Loader, loader), block.block)

        feed = Feed("perf", dataset.iterator(), blocks, order, TASK_CPUS, make, lambda: None, PARTS)
        arriving = iter(feed)
        next(arriving)[1]()
        cpu, start = time.process_time(), time.perf_counter()
        for _, wait in islice(arriving, task.blocks):
            wait()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        feed.end()
        return {"blocks_s": task.blocks / seconds, "rank_ms": 1000 * cpu / task.blocks}
    finally:
        disconnect()


def _node(task: ScaleTask, counts: dict[str, dict[str, float]], stream: dict[str, float]) -> Numbers:
    """Return for each number of GPUs what a node needs, calculated from counts and measured CPU times."""
    images_s = task.gpus * task.images_s
    needs = {}
    for world, numbers in counts.items():
        blocks_s = images_s / numbers["block_rows"]
        needs[world] = {
            "blocks_s": blocks_s,
            "stream_cpus": blocks_s * stream["rank_ms"] / 1000,
            "read_gb_s": images_s * numbers["read"] * task.image_bytes / 1e9,
            "live_gb": task.gpus * numbers["live_rows"] * task.row_bytes / 1e9,
        }
    return needs


def table(numbers: Numbers) -> str:
    """Format the result of `measure` as text."""
    task, stream = numbers["task"], numbers["stream"]
    images_s = task["gpus"] * task["images_s"]
    head = ("GPUs", "read/used", "steps an epoch", "rows a block", "blocks a step and GPU", "images that wait a GPU")
    rows = [[*head, "blocks/s a node", "Ray Data, CPUs", "storage, GB/s", "memory, GB"]]
    for world, run in numbers["runs"].items():
        node = numbers["node"][world]
        rows.append(
            [
                *(f"{int(world):,}", f"{run['read']:.4f}", f"{run['steps']:,}", f"{run['block_rows']:,.0f}"),
                *(f"{run['blocks_step']:.2f}", f"{run['live_rows']:,}", f"{node['blocks_s']:,.0f}"),
                *(f"{node['stream_cpus']:.2f}", f"{node['read_gb_s']:.2f}", f"{node['live_gb']:.1f}"),
            ]
        )
    worst = max(run["read"] for run in numbers["runs"].values())
    return "\n".join(
        [
            f"{task['rows']:,} images of {task['image_bytes'] / 1000:.0f} kB in units of {task['unit_rows']}, "
            f"{task['gpus']} GPUs a node, {images_s:,.0f} images/s a node",
            *aligned(rows, 0),
            f"bytes read / bytes used {worst:.4f} at most, goal {GOAL_READ}: {verdict(worst <= GOAL_READ)}",
            f"measured with empty tasks: {stream['blocks_s']:,.0f} blocks/s of a rank here; CPU of a block in the rank "
            f"{stream['rank_ms']:.2f} ms",
        ]
    )
