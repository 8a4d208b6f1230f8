"""Receive the blocks of a rank from Ray Data, in order; make a block in this process if no CPU is free for its task."""

import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat
from queue import Empty, Full, Queue
from threading import Event, Thread

import numpy as np
import ray
from ray.data import DataIterator

from raysl.cluster.private import notice_finished_tasks
from raysl.data.order import Order
from raysl.data.stream.blocks import Block, NumberedBlock
from raysl.data.stream.dataset import from_ray, offer
from raysl.data.stream.rows import BlockRows

PARTS = (1, 64, 256, 1024)
"""Numbers of blocks of the first executions of a training stream; the last number holds for all later ones. The first
block is made alone: the processes that a larger execution starts would take CPU time from it."""
STARVED_S = 30.0
"""Seconds that a rank waits for a block before it makes the block itself."""
STILL_STARVED_S = 0.5
"""Seconds that it waits after no CPU was free for the data tasks of the block before."""
POLL_S = 0.2
END = 1 << 62
"""Number that stands for the end of the stream; it is larger than that of any block."""
END_S = 10.0
"""Most seconds to wait for an execution to end."""

Arrived = tuple[int, BlockRows, float]
"""Number of a block, its rows, and the seconds of its task."""


@dataclass
class StreamCosts:
    """Costs of a stream so far.

    Args:
        rows: images that arrived.
        seconds: time since the stream began.
        wait_s: part of that time in which the rank waited.
        read_s, task_s: seconds of data tasks, for reading alone and for everything.
        made_here: blocks that the rank made itself, because they did not arrive in time.
        spilled_mb: megabytes that the cluster's object stores wrote to disks.
    """

    rows: int = 0
    seconds: float = 0.0
    wait_s: float = 0.0
    read_s: float = 0.0
    task_s: float = 0.0
    made_here: int = 0
    spilled_mb: int = 0

    def __str__(self) -> str:
        """Describe the costs in a line.

        >>> print(StreamCosts(rows=5120, seconds=20.0, wait_s=1.0, read_s=2.0, task_s=10.0))
        256 images/s; data tasks: reading 20 %, the rest 80 %; training waited 5 %; 0 MB spilled to disk
        """
        read = self.read_s / max(self.task_s, 1e-9)
        texts = [
            f"{self.rows / max(self.seconds, 1e-9):,.0f} images/s",
            f"data tasks: reading {read:.0%}, the rest {1 - read:.0%}",
            f"training waited {self.wait_s / max(self.seconds, 1e-9):.0%}",
            f"{self.spilled_mb} MB spilled to disk",
        ]
        if self.made_here:
            texts.append(f"blocks made by the worker itself: {self.made_here}")
        return "; ".join(texts).replace("%", " %")


@dataclass
class Feed:
    """Iterates over the blocks of a stream with their rows, in order. Ray Data starts to make them at once.

    Args:
        blocks: function that returns the blocks of the stream; each has the corrupt images known when it is requested.
        make: function that makes the rows of a block in this process.
        on_starved: function that is called for each block made in this process because no CPU is free for its task.
        parts: numbers of blocks of the first executions; the last number holds for all later ones.
    """

    stream: str
    dataset: DataIterator
    blocks: Callable[[], Iterator[NumberedBlock]]
    order: Order
    task_cpus: float
    make: Callable[[NumberedBlock], BlockRows]
    on_starved: Callable[[], object]
    parts: Sequence[int]

    def __post_init__(self) -> None:
        self.patience_s = STARVED_S
        self.arrived: Arrived | None = None
        self.costs = StreamCosts()
        self.start = time.perf_counter()
        self.executions = _Executions(self.stream, self.dataset, self.blocks(), self.parts)

    def __iter__(self) -> Generator[tuple[Block, Callable[[], BlockRows]], None, None]:
        """Yield each block with the function that waits for its rows."""
        # the thread of the executions has its own iterator over the same blocks, which is further on
        for each in self.blocks():
            yield each.block, partial(self._wait, each)

    def end(self) -> str:
        """End Ray Data's execution; return its statistics."""
        self.costs.seconds = time.perf_counter() - self.start
        stats = self.executions.end()
        if spilled := re.findall(r"Spilled to disk: (\d+)", stats):
            self.costs.spilled_mb = max(map(int, spilled))
        return stats

    def _wait(self, block: NumberedBlock) -> BlockRows:
        """Return the rows of a block, and count them and the time waited for them."""
        start = time.perf_counter()
        rows = self._take(block)
        self.costs.wait_s += time.perf_counter() - start
        self.costs.rows += len(rows.columns["key"])
        return rows

    def _take(self, block: NumberedBlock) -> BlockRows:
        while True:
            if self.arrived is None:
                try:
                    self.arrived = self.executions.take(self.patience_s)
                except Empty:
                    if ray.available_resources().get("CPU", 0.0) < self.task_cpus:
                        self.patience_s = STILL_STARVED_S
                        self.on_starved()
                    # CPUs are free again, so the block probably arrives soon: wait as long as at first
                    elif self.patience_s < STARVED_S:
                        self.patience_s = STARVED_S
                        continue
                    self.costs.made_here += 1
                    return self.make(block)
            number, rows, task_s = self.arrived
            if number > block.number:  # Ray Data leaves out blocks without rows
                assert not any(len(keys) for _, keys in block.block.samples(self.order)), f"lost block {block}"
                return self.make(block)
            self.arrived = None
            self.costs.read_s += rows.read_s
            self.costs.task_s += task_s
            # a block with a lower number was made here and has arrived since: it is dropped
            if number == block.number:
                return rows


class _Executions:
    """Executes the dataset of a stream part by part, in a thread that puts arriving blocks into a queue."""

    def __init__(
        self, stream: str, dataset: DataIterator, blocks: Iterator[NumberedBlock], parts: Sequence[int]
    ) -> None:
        self.stream = stream
        self.dataset = dataset
        self.blocks = blocks
        self.parts = parts
        self.stats: list[str] = []
        # room for one block only: later ones wait in Ray's object store, whose limit slows down the tasks
        self.ready: Queue[Arrived | BaseException] = Queue(maxsize=1)
        self.is_over = Event()
        notice_finished_tasks()
        self.thread = Thread(target=self._work, name="raysl-blocks", daemon=True)
        self.thread.start()

    def take(self, timeout_s: float) -> Arrived:
        """Return the next block; raise `Empty` if none has come in time."""
        item = self.ready.get(timeout=timeout_s)
        if isinstance(item, BaseException):
            raise item
        return item

    def end(self) -> str:
        """End when the next block arrives; return Ray Data's statistics."""
        self.is_over.set()
        self.thread.join(END_S)
        return "\n".join(self.stats)

    def _work(self) -> None:
        try:
            sizes, num_blocks = chain(self.parts, repeat(self.parts[-1])), 0
            while not self.is_over.is_set() and (part := list(islice(self.blocks, next(sizes)))):
                offer(self.stream, part)
                self._execute()
                self.stats.append(f"From block {num_blocks} on\n{self.dataset.stats()}")
                num_blocks += len(part)
            # lets the rank see that missing blocks at the end had no rows
            self._hand_over((END, BlockRows({"key": np.empty(0, np.int64)}), 0.0))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the rank gets it
            self._hand_over(error)

    def _execute(self) -> None:
        # closing the iterator ends Ray Data's execution, also before the last block
        with closing(iter(self.dataset.iter_batches(batch_size=None, prefetch_batches=0))) as arriving:
            for block in arriving:
                if not self._hand_over(from_ray(block)):
                    return

    def _hand_over(self, item: Arrived | BaseException) -> bool:
        """Put an item into the queue once there is room; return False if the stream has ended instead."""
        while not self.is_over.is_set():
            try:
                self.ready.put(item, timeout=POLL_S)
            except Full:
                continue
            return True
        return False
