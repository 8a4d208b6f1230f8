"""The stream of batches from Ray Data tasks to training workers, in the exact order of `raysl.data.order`.

One Ray Data execution serves all ranks. Its blocks are numbers; a stateless task maps each to the rows that
`raysl.data.stream.blocks` assigns to it, so any process can make any step. Blocks stay in order and have equal numbers
of rows, so `streaming_split` deals them out in turn. Each rank compares the indices that arrive with the order.
"""

import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch

from raysl.data.batch import Batch
from raysl.data.decode.images import CorruptLog
from raysl.data.order import rank_share
from raysl.data.stream.blocks import Blocks, Numpy, join_steps, to_columns
from raysl.data.stream.execution import COLUMN, deal_blocks
from raysl.data.stream.loader import PLAIN_ROWS, Loaded, Loader
from raysl.data.stream.prefetch import batches_for
from raysl.process.memory import keep_freed_memory

BLOCK_BYTES = 32 << 20  # largest size of a block of more than one row
BLOCK_ROWS = 4096
SEGMENT_BLOCKS = 1024  # blocks of one Ray Data execution, which starts more slowly the more it has
START_S = 6.0  # the next execution starts so long before the end of the current one


@dataclass(frozen=True)
class RayBatches:
    """This rank's batches, made by Ray Data tasks on the cluster.

    Args:
        loader: makes the rows of any step.
        total_steps: steps in the run.
        rank, world: this process among the training workers.
        device: of the batches; on a GPU a thread prepares the next ones (see `raysl.data.stream.prefetch`).
        share: broadcasts an object from rank 0; called by all ranks at the same steps.
        task_cpus: CPUs of each data task.
        prefetch: blocks that are fetched ahead.
        buffer_bytes: of Ray's object store that blocks may fill before tasks wait; None: Ray decides.
        corrupt: records images that were replaced.
    """

    loader: Loader
    total_steps: int
    rank: int
    world: int
    device: torch.device
    share: Callable[[Any], Any]
    task_cpus: float
    prefetch: int
    buffer_bytes: int | None = None
    corrupt: CorruptLog = field(default_factory=CorruptLog)

    def from_step(self, step: int) -> Iterator[Batch]:
        """Yield the batches from `step` to the end of the run."""
        segment = self._segment(step)
        while segment is not None:
            following = self._segment(segment.plan.end)  # collective, so not in a thread
            made = self._make_batches(segment, following, step)
            for batch, corrupt in batches_for(made, self.device):
                self.corrupt.add(corrupt)
                yield batch
            step, segment = segment.plan.end, following

    def plain(self) -> Iterator[Batch]:
        """Yield this rank's share of the training images without augmentation, in dataset order, as group "image".

        Data tasks read the images; every rank must call it at the same step and consume it completely.
        """
        plain = Plain(self.loader, self.world)
        iterators = self.share(self._deal(plain, self.world * plain.num_blocks) if self.rank == 0 else None)
        blocks = iterators[self.rank].iter_batches(
            batch_size=None, batch_format="numpy", prefetch_batches=self.prefetch
        )
        for _, loaded in join_steps(blocks, parts=1):
            yield self.loader.finish_plain(loaded, self.device)

    def _make_batches(
        self, segment: "_Segment", following: "_Segment | None", step: int
    ) -> Generator[tuple[Batch, tuple[str, ...]], None, None]:
        """Yield a segment's batches on the device, with the images that were replaced."""
        blocks = segment.plan
        for arrived, loaded in join_steps(segment.blocks(following), blocks.parts):
            self._check(loaded, arrived, step)
            yield self.loader.finish(loaded, step, self.device, self.rank, self.world), loaded.corrupt
            step += 1
        if step != blocks.end:
            raise RuntimeError(f"rank {self.rank}: the stream ended at step {step} instead of {blocks.end}")

    def _segment(self, first: int) -> "_Segment | None":
        """Prepare the execution over the steps from `first` on; all ranks call this at the same steps."""
        if first >= self.total_steps:
            return None
        order = self.loader.order
        rows = max(order.num_rows(rank, self.world) for rank in range(self.world))
        target = max(1, min(BLOCK_ROWS, BLOCK_BYTES // self.loader.row_bytes))
        plan = Blocks(first, self.total_steps, self.world, rows, target)
        num_groups = max(1, SEGMENT_BLOCKS // (self.world * plan.parts))
        plan = replace(plan, end=min(self.total_steps, first + num_groups * plan.steps))
        iterators = self.share(self._start(plan) if self.rank == 0 else None)
        return _Segment(iterators[self.rank], plan, self.prefetch)

    def _start(self, plan: Blocks) -> list[Any]:
        """Return an iterator for each rank over the blocks of a plan."""
        return self._deal(_Job(replace(self.loader), plan), self.world * plan.num_blocks)

    def _deal(self, make: Callable[[Numpy], Numpy], num_blocks: int) -> list[Any]:
        return deal_blocks(make, num_blocks, self.world, self.task_cpus, self.buffer_bytes)

    def _check(self, loaded: Loaded, arrived: int, step: int) -> None:
        expected = self.loader.order.batch(step, self.rank, self.world)
        if arrived != step or not np.array_equal(loaded.index.numpy(), expected):
            raise RuntimeError(f"rank {self.rank}: the rows that arrived are not those of step {step}")


class _Segment:
    """One Ray Data execution: this rank's blocks of a plan."""

    def __init__(self, iterator: Any, plan: Blocks, prefetch: int) -> None:
        self.iterator = iterator
        self.plan = plan
        self.prefetch = prefetch
        self._thread = ThreadPoolExecutor(1)
        self._started: tuple[Iterator[Numpy], Future[Numpy]] | None = None

    def start(self) -> tuple[Iterator[Numpy], "Future[Numpy]"]:
        """Start the execution in the background; later calls return the same."""
        if self._started is None:
            batches = self.iterator.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=self.prefetch)
            blocks = iter(batches)
            self._started = blocks, self._thread.submit(next, blocks)
        return self._started

    def blocks(self, following: "_Segment | None") -> Iterator[Numpy]:
        """Yield the blocks in order, and start the `following` execution shortly before the last one."""
        rest, first = self.start()
        start = time.perf_counter()
        yield first.result()
        for number, block in enumerate(rest, 2):
            left_s = (time.perf_counter() - start) / number * (self.plan.num_blocks - number)
            if following is not None and left_s < START_S:
                following.start()
            yield block
        self._thread.shutdown()


@dataclass(frozen=True)
class Plain:
    """The function of a data task: maps a block's number to a part of a rank's images, without augmentation."""

    loader: Loader
    world: int

    @property
    def num_blocks(self) -> int:
        """Blocks of each rank; none is empty if there are more images than ranks."""
        return -(-self._most // PLAIN_ROWS)

    @property
    def _most(self) -> int:
        return -(-self.loader.split.num_samples // self.world)

    def __call__(self, block: Numpy) -> Numpy:
        torch.set_num_threads(1)
        keep_freed_memory()
        (number,) = block[COLUMN].tolist()
        turn, rank = divmod(number, self.world)
        share = rank_share(self.loader.split.num_samples, rank, self.world)
        first, end = (share.start + len(share) * place // self.num_blocks for place in (turn, turn + 1))
        loaded = self.loader.load_plain(self.loader.split, first, end)
        return to_columns(loaded, [turn], [end - first], -(-self._most // self.num_blocks))


@dataclass(frozen=True)
class _Job:
    """The function of a data task: maps a block's number to its rows."""

    loader: Loader
    plan: Blocks

    def __call__(self, block: Numpy) -> Numpy:
        torch.set_num_threads(1)
        keep_freed_memory()
        parts = [columns for number in block[COLUMN].tolist() for columns in self._columns(number)]
        return parts[0] if len(parts) == 1 else {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}

    def _columns(self, number: int) -> Iterator[Numpy]:
        """Yield a block's rows; those of an epoch are loaded together, to set up the transforms once."""
        order = self.loader.order
        for epoch, group in groupby(self.plan.members(number), key=lambda part: part.step // order.epoch_len):
            parts = list(group)
            rows = [order.batch(part.step, part.rank, self.plan.world)[part.start : part.stop] for part in parts]
            loaded = self.loader.load_samples(np.concatenate(rows), epoch)
            yield to_columns(loaded, [part.step for part in parts], list(map(len, rows)), self.plan.part_rows)
