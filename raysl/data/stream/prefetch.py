"""Batches made ahead by a thread, on a CUDA stream of its own where they go to a GPU."""

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import cache
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Generic, TypeVar

import torch
from torch import Tensor

from raysl.data.batch import Batch

Note = TypeVar("Note")

DEPTH = 2  # batches that are ready or in the making, besides the one that the consumer has


def runs_ahead(device: torch.device) -> bool:
    """Whether batches for a device are made by a thread; a CPU would only be shared with it."""
    return device.type == "cuda"


def batches_for(
    source: Generator[tuple[Batch, Note], None, None], device: torch.device
) -> Iterator[tuple[Batch, Note]]:
    """The items of a source, made ahead where that is of use on the device."""
    return made_ahead(source, device) if runs_ahead(device) else source


def made_ahead(
    source: Generator[tuple[Batch, Note], None, None], device: torch.device, depth: int = DEPTH
) -> Iterator[tuple[Batch, Note]]:
    """The same items in the same order, made by a thread while the consumer works on those before.

    All of `source` runs in the thread: what it does on a GPU, copies from pinned memory and augmentation, goes to a
    stream of the thread, and the consumer's stream waits for the batch where it takes it, without its host waiting.
    An error of the source is raised where its item would have come. The thread ends with the source, with an error, or
    when this iterator is closed or forgotten; it closes the source first.

    Args:
        source: batches on the device, each with what else belongs to it.
        device: where the batches are.
        depth: most of them that are ready or in the making, at least 1.
    """
    thread = _Thread(source, device, depth)
    thread.start()
    try:
        while (made := thread.take()) is not None:
            yield made
    finally:
        thread.end()


@dataclass(frozen=True)
class _Made(Generic[Note]):
    item: tuple[Batch, Note]
    event: torch.cuda.Event | None


class _Thread(Generic[Note]):
    """The thread behind `made_ahead`; `take` and `end` are for its consumer."""

    def __init__(self, source: Generator[tuple[Batch, Note], None, None], device: torch.device, depth: int) -> None:
        self.source = source
        self.device = device
        self.stream = _stream_of(device) if device.type == "cuda" else None
        self.room = Semaphore(depth)
        self.ready: SimpleQueue[_Made[Note] | BaseException | None] = SimpleQueue()
        self.is_over = False
        self.thread = Thread(target=self._work, name="raysl-prefetch", daemon=True)

    def start(self) -> None:
        """Begin."""
        if self.stream is not None:  # the source may use what the consumer has in the making
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
        self.thread.start()

    def take(self) -> tuple[Batch, Note] | None:
        """The next item, for use on the consumer's current stream; None after the last."""
        made = self.ready.get()
        self.room.release()
        if isinstance(made, BaseException):
            raise made
        if made is None:
            return None
        if made.event is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(made.event)
            made.item[0].map(lambda tensor: _in_use(tensor, stream))
        return made.item

    def end(self) -> None:
        """Let the thread finish what it is doing, and no more."""
        self.is_over = True
        self.room.release()
        self.thread.join()

    def _work(self) -> None:
        try:
            with self._on_stream(), closing(self.source):
                while self._wait_for_room() and (item := next(self.source, None)) is not None:
                    self.ready.put(_Made(item, None if self.stream is None else self.stream.record_event()))
            self.ready.put(None)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the consumer gets it
            self.ready.put(error)

    def _wait_for_room(self) -> bool:
        self.room.acquire()
        return not self.is_over

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)


@cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """The one stream for batches of a device: memory that is freed on a stream is kept for that stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _in_use(tensor: Tensor, stream: torch.cuda.Stream) -> Tensor:
    """Keep the memory of a tensor from being given to another before what `stream` does with it is done."""
    tensor.record_stream(stream)
    return tensor
