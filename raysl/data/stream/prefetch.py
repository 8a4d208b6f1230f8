"""Prefetching: a thread makes batches ahead, on a separate CUDA stream if they go to a GPU."""

from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from functools import cache
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Generic, TypeVar

import torch
from torch import Tensor

from raysl.data.batch import Batch

Note = TypeVar("Note")

DEPTH = 2  # batches that are ready or in progress, besides the one that the consumer has


def runs_ahead(device: torch.device) -> bool:
    """Whether a thread prefetches batches for this device; on a CPU it would compete with training."""
    return device.type == "cuda"


def batches_for(
    source: Generator[tuple[Batch, Note], None, None], device: torch.device
) -> Iterator[tuple[Batch, Note]]:
    """Return the items of a source, prefetched if the device is a GPU."""
    return prefetch(source, device) if runs_ahead(device) else source


def prefetch(
    source: Generator[tuple[Batch, Note], None, None], device: torch.device, depth: int = DEPTH
) -> Iterator[tuple[Batch, Note]]:
    """Yield the same items in the same order, made by a thread while the consumer works on earlier ones.

    All of `source` runs in the thread. Its GPU work (copies from pinned memory, augmentation) runs on a stream of the
    thread; the consumer's stream waits for each batch, its host does not. An error of the source is raised in place of
    its item. The thread ends, and closes the source, with the last item, an error, or the end of this iterator.

    Args:
        depth: most batches that are ready or in progress, at least 1.
    """
    thread = _Thread(source, device, depth)
    thread.start()
    try:
        while (item := thread.take()) is not None:
            yield item
    finally:
        thread.end()


class _Thread(Generic[Note]):
    def __init__(self, source: Generator[tuple[Batch, Note], None, None], device: torch.device, depth: int) -> None:
        self.source = source
        self.device = device
        self.stream = _batch_stream(device) if device.type == "cuda" else None
        self.room = Semaphore(depth)
        # items with the event of their work on the GPU, then None or an error
        self.ready: SimpleQueue[tuple[tuple[Batch, Note], torch.cuda.Event | None] | BaseException | None]
        self.ready = SimpleQueue()
        self.is_over = False
        self.thread = Thread(target=self._work, name="raysl-prefetch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        if self.stream is not None:  # the source may use tensors that the consumer's stream is still computing
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
        self.thread.start()

    def take(self) -> tuple[Batch, Note] | None:
        """Return the next item, for use on the consumer's current stream; None after the last."""
        ready = self.ready.get()
        self.room.release()
        if isinstance(ready, BaseException):
            raise ready
        if ready is None:
            return None
        item, event = ready
        if event is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(event)
            item[0].map(lambda tensor: _mark_in_use(tensor, stream))
        return item

    def end(self) -> None:
        """Let the thread finish its current item, then stop it."""
        # set before the thread is woken by `release`, or it would make another batch
        self.is_over = True
        self.room.release()
        self.thread.join()

    def _work(self) -> None:
        try:
            with nullcontext() if self.stream is None else torch.cuda.stream(self.stream), closing(self.source):
                # room is taken before a batch is made, so one in progress counts as one of the `depth`
                while self.room.acquire() and not self.is_over and (item := next(self.source, None)) is not None:
                    self.ready.put((item, None if self.stream is None else self.stream.record_event()))
            self.ready.put(None)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the consumer gets it
            self.ready.put(error)


@cache
def _batch_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for batches of a device.

    It is always the same one, because the allocator keeps memory freed on a stream for that stream.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _mark_in_use(tensor: Tensor, stream: torch.cuda.Stream) -> Tensor:
    """Keep the allocator from reusing a tensor's memory before the work of `stream` on it is done."""
    tensor.record_stream(stream)
    return tensor
