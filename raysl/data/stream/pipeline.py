"""The stream of batches from Ray Data to training workers, in the exact order of `raysl.data.order`.

Each rank works out which blocks it needs (`raysl.data.stream.blocks`) and has a dataset of Ray Data make them, some
ahead of training (`raysl.data.stream.dataset`). A stateless task makes a block, so any process can make any of them
again. The rank joins the rows of blocks to batches, and compares the indices that arrive with the order. No process
handles the images of all ranks.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

import torch
from ray.data import DataIterator

from raysl.data.batch import Batch
from raysl.data.decode.corrupt import CorruptLog
from raysl.data.stream.blocks import Block, NumberedBlock, PlainRows, known_rows, plain_blocks
from raysl.data.stream.dataset import stream_dataset, stream_key
from raysl.data.stream.feed import PARTS, Feed, StreamCosts
from raysl.data.stream.loader import PLAIN_ROWS, Loader
from raysl.data.stream.prefetch import batches_for
from raysl.data.stream.rows import BlockRows, join_batches, load_block, to_loaded

BLOCK_BYTES = 32 << 20  # desired size of a block
LARGEST_BYTES = 128 << 20  # of a block of LEAST_ROWS, where BLOCK_BYTES hold fewer
LEAST_ROWS, MOST_ROWS = 256, 4096


@dataclass
class RayBatches:
    """This rank's batches, made by Ray Data.

    Args:
        device: device of the batches; on a GPU a thread prepares the next ones (see `raysl.data.stream.prefetch`).
        reference: reference to the loader in Ray's object store, from where data tasks take it.
        shard: training dataset of the rank, see `raysl.data.stream.dataset.stream_dataset`.
        on_starved: called each time that this process makes a block, because no CPU is free for data tasks.
    """

    loader: Loader
    total_steps: int
    rank: int
    world: int
    device: torch.device
    reference: Any
    shard: DataIterator
    task_cpus: float
    name: str = "run"
    corrupt: CorruptLog = field(default_factory=CorruptLog)
    on_starved: Callable[[], object] = lambda: None
    _begun: tuple[int, Feed] | None = None
    _training: Feed | None = None

    def begin(self, step: int) -> None:
        """Have the first blocks of `from_step(step)` made, before anybody iterates."""
        self._begun = step, self._feed_from(step)

    def from_step(self, step: int) -> Iterator[Batch]:
        """Yield the batches from `step` to the end of the run."""
        for batch, corrupt in batches_for(self._finished(step), self.device):
            self.corrupt.add(corrupt)
            yield batch

    def plain(self) -> Iterator[Batch]:
        """Return this rank's share of the training images without augmentation, in dataset order, as group "image"."""
        blocks = plain_blocks(self.loader.split.num_samples, self.rank, self.world, PLAIN_ROWS)
        return self.chosen(blocks)

    def chosen(self, blocks: Iterable[PlainRows]) -> Iterator[Batch]:
        """Yield any images without augmentation, as group "image", a batch for each block."""
        listed, key = list(blocks), uuid4().hex
        name = f"{self.name}, plain images of rank {self.rank}"
        images = stream_dataset(key, self.reference, name, "Decode", self.task_cpus, None)
        feed = self._feed(key, images.iterator(), lambda: iter(listed), PARTS[-1:])
        try:
            for _, wait in feed:
                yield self.loader.finish_plain(to_loaded(wait()), self.device)
        finally:
            feed.end()

    def end(self) -> tuple[StreamCosts, str]:
        """End the stream of training batches; return what it took, and the statistics of Ray Data."""
        if self._training is None:
            return StreamCosts(), ""
        stats = self._training.end()
        return self._training.costs, stats

    def _finished(self, step: int) -> Generator[tuple[Batch, tuple[str, ...]], None, None]:
        """Yield batches on the device, with the images that were replaced."""
        begun, self._begun = self._begun, None
        feed = begun[1] if begun is not None and begun[0] == step else self._feed_from(step)
        joined = join_batches(self.loader, self.rank, self.world, step, self.total_steps, feed)
        for number, loaded in enumerate(joined, step):
            yield self.loader.finish(loaded, number, self.device, self.rank, self.world), loaded.corrupt

    def _feed_from(self, step: int) -> Feed:
        rows = max(BLOCK_BYTES // self.loader.row_bytes, min(LEAST_ROWS, LARGEST_BYTES // self.loader.row_bytes))
        target = max(1, min(MOST_ROWS, rows))
        blocks = partial(self.loader.blocks, self.rank, self.world, step, self.total_steps, target)
        # an earlier stream would offer its blocks under the same key, so it ends first
        self.end()
        self._training = self._feed(stream_key(self.reference, self.rank), self.shard, blocks, PARTS)
        return self._training

    def _feed(self, key: str, rows: DataIterator, blocks: Callable[[], Iterator[Block]], parts: Sequence[int]) -> Feed:
        def numbered() -> Iterator[NumberedBlock]:
            for number, block in enumerate(blocks()):
                yield NumberedBlock(number, block, known_rows(block, self.loader.order, self.corrupt.known))

        def make(block: NumberedBlock) -> BlockRows:
            return load_block(self.loader, block.block, block.known)

        return Feed(key, rows, numbered, self.loader.order, self.task_cpus, make, self.on_starved, parts)
