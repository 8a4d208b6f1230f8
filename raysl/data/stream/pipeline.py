"""The stream of batches from data tasks to training workers, in the exact order of `raysl.data.order`.

Each rank works out which blocks it needs (`raysl.data.stream.blocks`) and asks the executor of its node for them, some
ahead of training. A stateless task makes a block, so any process can make any of them again. The rank joins the rows of
blocks to batches, and compares the indices that arrive with the order. Nothing is shared between ranks or grows with
their number.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from raysl.data.batch import Batch
from raysl.data.decode.corrupt import CorruptLog
from raysl.data.stream.blocks import Block, PlainRows, known_rows, plain_blocks, rank_blocks
from raysl.data.stream.execution import Ahead, Feed
from raysl.data.stream.loader import PLAIN_ROWS, Loader
from raysl.data.stream.prefetch import batches_for
from raysl.data.stream.rows import join_batches, to_loaded

BLOCK_BYTES = 32 << 20  # desired size of a block
LARGEST_BYTES = 128 << 20  # of a block of LEAST_ROWS, where BLOCK_BYTES hold fewer
LEAST_ROWS, MOST_ROWS = 256, 4096


@dataclass
class RayBatches:
    """This rank's batches, made by data tasks on the cluster.

    Args:
        loader: whose batches they are.
        total_steps: steps in the run.
        rank, world: this process among the training workers.
        device: of the batches; on a GPU a thread prepares the next ones (see `raysl.data.stream.prefetch`).
        reference: to the loader in Ray's object store, from where data tasks take it.
        executor: of this node, see `raysl.data.stream.execution.start_executor`.
        ahead: how much is made before it is needed.
        corrupt: records images that were replaced.
        on_starved: called each time that a block is made without a CPU, because none is free.
    """

    loader: Loader
    total_steps: int
    rank: int
    world: int
    device: torch.device
    reference: Any
    executor: Any
    ahead: Ahead
    corrupt: CorruptLog = field(default_factory=CorruptLog)
    on_starved: Callable[[], object] = lambda: None
    _begun: tuple[int, Feed] | None = None

    def begin(self, step: int) -> None:
        """Ask for the first blocks of `from_step(step)`, before anybody iterates."""
        self._begun = step, self._feed_from(step)

    def from_step(self, step: int) -> Iterator[Batch]:
        """Yield the batches from `step` to the end of the run."""
        for batch, corrupt in batches_for(self._made(step), self.device):
            self.corrupt.add(corrupt)
            yield batch

    def plain(self) -> Iterator[Batch]:
        """Return this rank's share of the training images without augmentation, in dataset order, as group "image"."""
        blocks = plain_blocks(self.loader.split.num_samples, self.rank, self.world, PLAIN_ROWS)
        return self.chosen(blocks)

    def chosen(self, blocks: Iterable[PlainRows]) -> Iterator[Batch]:
        """Yield any images without augmentation, as group "image", a batch for each block."""
        for _, wait in self._feed(iter(blocks)):
            yield self.loader.finish_plain(to_loaded(wait()), self.device)

    def _made(self, step: int) -> Generator[tuple[Batch, tuple[str, ...]], None, None]:
        """Yield batches on the device, with the images that were replaced."""
        begun, self._begun = self._begun, None
        feed = begun[1] if begun is not None and begun[0] == step else self._feed_from(step)
        joined = join_batches(self.loader, self.rank, self.world, step, self.total_steps, feed)
        for number, loaded in enumerate(joined, step):
            yield self.loader.finish(loaded, number, self.device, self.rank, self.world), loaded.corrupt

    def _feed_from(self, step: int) -> Feed:
        rows = max(BLOCK_BYTES // self.loader.row_bytes, min(LEAST_ROWS, LARGEST_BYTES // self.loader.row_bytes))
        target = max(1, min(MOST_ROWS, rows))
        blocks = rank_blocks(self.loader.order, self.rank, self.world, step, self.total_steps, target)
        return self._feed(blocks)

    def _feed(self, blocks: Iterator[Block]) -> Feed:
        known_in = partial(known_rows, order=self.loader.order, known=self.corrupt.known)
        row_bytes = self.loader.row_bytes
        return Feed(self.executor, self.reference, blocks, row_bytes, self.ahead, known_in, self.on_starved)
