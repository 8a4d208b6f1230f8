"""The stream of batches from Ray Data tasks to training workers, in the exact order of `raysl.data.order`.

One Ray Data execution serves all ranks. Its blocks are jobs (first step, rank), each mapped by a stateless task to that
rank's rows of a few consecutive steps, so any step can be made by any process. Blocks keep their order and all have
the same number of rows (shorter ones are padded), which is why `streaming_split` deals them out in turn: block i goes
to rank i mod W. Each rank checks the indices that arrive against the order.
"""

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray.data
import torch
from ray.data import DataContext

from raysl.data.batch import Batch
from raysl.data.load import Loaded, Loader

BLOCK_ROWS = 512  # small local batches are joined in one block up to this many rows
SEGMENT_BLOCKS = 1024  # blocks of one Ray Data execution: it takes longer to start the more it has
START_S = 6.0  # the next execution is started so long before the current one is used up

Numpy = dict[str, np.ndarray]


@dataclass(frozen=True)
class RayBatches:
    """This rank's batches, made by Ray Data tasks on the cluster.

    Args:
        loader: makes the rows of any step.
        total_steps: steps in the run.
        rank, world: this process among the training workers.
        device: where batches go.
        share: hands the object of rank 0 to every rank; called by all ranks at the same steps.
        task_cpus: CPUs that each data task takes.
        prefetch: blocks that are fetched ahead.
    """

    loader: Loader
    total_steps: int
    rank: int
    world: int
    device: torch.device
    share: Callable[[Any], Any]
    task_cpus: float
    prefetch: int

    def from_step(self, step: int) -> Iterator[Batch]:
        """Batches from that of `step` to the run's last."""
        segment = self._segment(step)
        while segment is not None:
            following = self._segment(segment.end)
            for block in segment.blocks(following):
                for loaded in _batches_of(block):
                    self._check(loaded, step)
                    yield self.loader.finish(loaded, step, self.device)
                    step += 1
            if step != segment.end:
                raise RuntimeError(f"rank {self.rank}: the stream ended at step {step} instead of {segment.end}")
            segment = following

    def plain(self) -> Iterator[Batch]:
        """See `raysl.data.load.Loader.plain`."""
        return self.loader.plain(self.rank, self.world, self.device)

    def _segment(self, first: int) -> "_Segment | None":
        """The execution over the steps from `first` on; all ranks call this at the same steps."""
        if first >= self.total_steps:
            return None
        end = min(self.total_steps, first + max(1, SEGMENT_BLOCKS // self.world) * self._block_steps)
        iterators = self.share(self._start(first, end) if self.rank == 0 else None)
        num_blocks = -(-(end - first) // self._block_steps)
        return _Segment(iterators[self.rank], num_blocks, end, self.prefetch)

    @property
    def _rows(self) -> int:
        """Most rows that a rank holds of a global batch."""
        return max(self.loader.order.num_rows(rank, self.world) for rank in range(self.world))

    @property
    def _block_steps(self) -> int:
        return max(1, BLOCK_ROWS // self._rows)

    def _start(self, first: int, end: int) -> list[Any]:
        """Iterators, one a rank, over the blocks of steps [first, end)."""
        context = DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        job = _Job(replace(self.loader), first, end, self._block_steps, self._rows, self.world)
        num_blocks = self.world * -(-(end - first) // self._block_steps)
        blocks = ray.data.range(num_blocks, override_num_blocks=num_blocks).map_batches(
            job, batch_size=None, num_cpus=self.task_cpus
        )
        return list(blocks.streaming_split(self.world, equal=False))

    def _check(self, loaded: Loaded, step: int) -> None:
        expected = self.loader.order.batch(step, self.rank, self.world)
        if not np.array_equal(loaded.index.numpy(), expected):
            raise RuntimeError(f"rank {self.rank}: the rows that arrived are not those of step {step}")


class _Segment:
    """One Ray Data execution: this rank's blocks up to the step `end`."""

    def __init__(self, iterator: Any, num_blocks: int, end: int, prefetch: int) -> None:
        self.iterator = iterator
        self.num_blocks = num_blocks
        self.end = end
        self.prefetch = prefetch
        self._thread = ThreadPoolExecutor(1)
        self._begun: tuple[Iterator[Numpy], Future[Numpy]] | None = None

    def begin(self) -> tuple[Iterator[Numpy], "Future[Numpy]"]:
        """Start the execution, in the background; a second call does nothing."""
        if self._begun is None:
            batches = self.iterator.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=self.prefetch)
            blocks = iter(batches)
            self._begun = blocks, self._thread.submit(next, blocks)
        return self._begun

    def blocks(self, following: "_Segment | None") -> Iterator[Numpy]:
        """The blocks in order; shortly before the last one the `following` execution is started."""
        rest, first = self.begin()
        start = time.perf_counter()
        yield first.result()
        for number, block in enumerate(rest, 2):
            left_s = (time.perf_counter() - start) / number * (self.num_blocks - number)
            if following is not None and left_s < START_S:
                following.begin()
            yield block
        self._thread.shutdown()


@dataclass(frozen=True)
class _Job:
    """What a data task does: a block's number to the rows of a rank at a few consecutive steps."""

    loader: Loader
    first: int
    end: int
    block_steps: int
    rows: int
    world: int

    def __call__(self, block: Numpy) -> Numpy:
        torch.set_num_threads(1)
        parts = [part for number in block["id"].tolist() for part in self._parts(number)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _parts(self, number: int) -> Iterator[Numpy]:
        group, rank = divmod(number, self.world)
        start = self.first + group * self.block_steps
        for step in range(start, min(self.end, start + self.block_steps)):
            yield _pad(_columns(self.loader.load(step, rank, self.world), step), self.rows)


def _columns(loaded: Loaded, step: int) -> Numpy:
    num_rows = len(loaded.index)
    corrupt = np.zeros(num_rows, np.int32)
    corrupt[:1] = loaded.num_corrupt
    columns = {"step": np.full(num_rows, step), "index": loaded.index.numpy(), "label": loaded.label.numpy()}
    return columns | {"corrupt": corrupt} | {f"view:{name}": view.numpy() for name, view in loaded.views.items()}


def _pad(columns: Numpy, num_rows: int) -> Numpy:
    """Repeat the last row up to `num_rows`, with index -1."""
    missing = num_rows - len(columns["index"])
    if missing == 0:
        return columns
    padded = {name: np.concatenate([c, np.repeat(c[-1:], missing, axis=0)]) for name, c in columns.items()}
    padded["index"][-missing:] = -1
    padded["corrupt"][-missing:] = 0
    return padded


def _batches_of(block: Numpy) -> Iterator[Loaded]:
    """The local batches of a block, without the padding; copies, since Ray's arrays are read-only."""
    for step in np.unique(block["step"]):
        rows = np.flatnonzero((block["step"] == step) & (block["index"] >= 0))
        part = {name: torch.from_numpy(column[rows]) for name, column in block.items()}
        views = {name.removeprefix("view:"): view for name, view in part.items() if name.startswith("view:")}
        yield Loaded(views, part["index"], part["label"], int(part["corrupt"].sum()))
