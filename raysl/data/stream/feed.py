"""The blocks of a rank as they arrive: checked by their numbers, and made here where Ray Data is starved of CPUs."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import islice
from queue import Empty, Full, Queue
from threading import Event, Thread

import numpy as np
import ray
from ray.data import DataIterator

from raysl.data.order import Order
from raysl.data.stream.blocks import Block, NumberedBlock
from raysl.data.stream.dataset import from_ray, offer
from raysl.data.stream.rows import BlockRows

FIRST_BLOCKS, MOST_BLOCKS = 64, 1024
"""Blocks of the first execution of a stream, and of each later one at most; each has twice those of the last."""
STARVED_S = 30.0
"""How long a rank waits for a block until it asks whether any CPU is free for data tasks."""
STILL_STARVED_S = 0.5
"""How long it waits the next time, once none was."""
POLL_S = 0.2

Arrived = tuple[int, BlockRows]


class Feed:
    """The rows of the blocks of a stream, in order; Ray Data makes them ahead from the start on.

    Args:
        stream: key of the stream, see `raysl.data.stream.dataset.offer`.
        rows: of the stream's dataset.
        blocks: returns the blocks of the stream, with the corrupt images that are known when they are asked for.
        order: of the run's samples.
        task_cpus: CPUs of each data task.
        make: makes the rows of a block in this process.
        on_starved: called each time that a block is made in this process, because no CPU is free for data tasks.
    """

    def __init__(
        self,
        stream: str,
        rows: DataIterator,
        blocks: Callable[[], Iterator[NumberedBlock]],
        order: Order,
        task_cpus: float,
        make: Callable[[NumberedBlock], BlockRows],
        on_starved: Callable[[], object],
    ) -> None:
        self.order = order
        self.blocks = blocks
        self.task_cpus = task_cpus
        self.make = make
        self.on_starved = on_starved
        self.patience_s = STARVED_S
        self.arrived: Arrived | None = None
        self.thread = _Executions(stream, rows, blocks())

    def __iter__(self) -> Generator[tuple[Block, Callable[[], BlockRows]], None, None]:
        """Yield each block with what waits for its rows."""
        try:
            for each in self.blocks():
                yield each.block, lambda each=each: self._wait(each)
        finally:
            self.thread.end()

    def _wait(self, block: NumberedBlock) -> BlockRows:
        """Return the rows of a block once they are there, or made here."""
        while True:
            if self.arrived is None:
                try:
                    self.arrived = self.thread.take(self.patience_s)
                except Empty:
                    if ray.available_resources().get("CPU", 0.0) >= self.task_cpus:
                        continue
                    self.patience_s = STILL_STARVED_S
                    self.on_starved()
                    return self.make(block)
            number, rows = self.arrived
            if number <= block.number:
                self.arrived = None
            if number == block.number:
                return rows
            if number > block.number:  # Ray Data leaves out blocks without rows
                assert not any(len(index) for _, index in block.block.samples(self.order)), f"lost block {block}"
                return self.make(block)


class _Executions:
    """Executes the dataset of a stream part by part in a thread, which hands over what arrives."""

    def __init__(self, stream: str, rows: DataIterator, blocks: Iterator[NumberedBlock]) -> None:
        self.stream = stream
        self.rows = rows
        self.blocks = blocks
        self.ready: Queue[Arrived | BaseException] = Queue(maxsize=1)
        self.is_over = Event()
        self.thread = Thread(target=self._work, name="raysl-blocks", daemon=True)
        self.thread.start()

    def take(self, timeout_s: float) -> Arrived:
        """Return the next block; raise `Empty` if none has come in time."""
        item = self.ready.get(timeout=timeout_s)
        if isinstance(item, BaseException):
            raise item
        return item

    def end(self) -> None:
        """Let the thread end as soon as Ray Data hands it the next block."""
        self.is_over.set()

    def _work(self) -> None:
        try:
            size = FIRST_BLOCKS
            while part := list(islice(self.blocks, size)):
                offer(self.stream, part)
                with closing(iter(self.rows.iter_batches(batch_size=None, prefetch_batches=0))) as arriving:
                    for block in arriving:
                        if not self._hand_over(from_ray(block)):
                            return
                size = min(MOST_BLOCKS, 2 * size)
            self._hand_over((END, BlockRows({"index": np.empty(0, np.int64)})))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the rank gets it
            self._hand_over(error)

    def _hand_over(self, item: Arrived | BaseException) -> bool:
        """Wait for room; return whether the stream goes on."""
        while not self.is_over.is_set():
            try:
                self.ready.put(item, timeout=POLL_S)
            except Full:
                continue
            return True
        return False


END = 1 << 62
"""Number behind that of every block."""
