"""A double of CUDA's streams, events, pinned memory and allocator, which works as late, or as early, as it may.

Tensors "on the GPU" are tensors of the CPU. What is queued on a stream has numbers only when the stream has come so
far, so a missing event, a missing `record_stream` or memory that is used again too early gives wrong numbers.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from weakref import finalize

import torch
from torch import Tensor

from raysl.data.stream import prefetch

CUDA = torch.device("cuda", 0)
Work = Callable[[], bool]
"""Returns whether it is done; what is not done holds its stream up."""


class Event:
    """A `torch.cuda.Event`."""

    def __init__(self, stream: "Stream") -> None:
        self.stream = stream
        self.is_done = False

    def reach(self) -> bool:
        """Be done: the stream has come to this point."""
        self.is_done = True
        return True


class Stream:
    """A `torch.cuda.Stream`: work in its order.

    Args:
        gpu: whose stream it is.
        is_early: whether it does its work as soon as it may; else when another stream waits for it, or at the end.
    """

    def __init__(self, gpu: "LazyGpu", is_early: bool) -> None:
        self.gpu = gpu
        self.is_early = is_early
        self.work: deque[Work] = deque()

    def add(self, work: Work) -> None:
        """Queue work."""
        with self.gpu.lock:
            self.work.append(work)
            for stream in self.gpu.streams:
                if stream.is_early:
                    stream.run(lambda: False)

    def run(self, is_enough: Callable[[], bool]) -> None:
        """Do work until it is enough, or until some of it has to wait."""
        while self.work and not is_enough() and self.work[0]():
            self.work.popleft()

    def record_event(self) -> Event:
        """See torch."""
        event = Event(self)
        self.add(event.reach)
        return event

    def wait_event(self, event: Event) -> None:
        """See torch."""
        self.add(lambda: self._wait(event))

    def wait_stream(self, other: "Stream") -> None:
        """See torch."""
        self.wait_event(other.record_event())

    def _wait(self, event: Event) -> bool:
        event.stream.run(lambda: event.is_done)
        return event.is_done


class LazyGpu:
    """A GPU with the stream of training and that of batches.

    Args:
        early: `batches` or `training`: the stream that runs ahead.

    Attributes:
        waits: copies that the host waited for.
        copied_on: streams that copied.
    """

    def __init__(self, early: str) -> None:
        self.lock = threading.RLock()
        self.training = Stream(self, early == "training")
        self.batches = Stream(self, early == "batches")
        self.streams = (self.training, self.batches)
        self.waits: list[str] = []
        self.copied_on: set[Stream] = set()
        self._here = threading.local()
        self._free: list[Tensor] = []
        self._pinned: dict[int, Tensor] = {}
        self._users: dict[int, set[Stream]] = {}

    def read(self, values: Tensor) -> list[Tensor]:
        """Queue the use of a tensor for training, and return a list that gets the numbers it had then."""
        memory, seen = values.detach(), list[Tensor]()
        self.current().add(lambda: seen.append(memory.clone()) is None)
        return seen

    def finish(self) -> None:
        """Do all that is queued."""
        with self.lock:
            for _ in range(2):
                for stream in self.streams:
                    stream.run(lambda: False)
        assert not any(stream.work for stream in self.streams)

    def current(self, device: object = None) -> Stream:
        """Return the stream of this thread."""
        stream: Stream = getattr(self._here, "stream", self.training)
        return stream

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """Make it the stream of this thread, while open."""
        self._here.stream = stream
        try:
            yield
        finally:
            del self._here.stream

    def pin(self, values: Tensor) -> Tensor:
        """Copy into pinned memory."""
        pinned = values.clone()
        self._pinned[pinned.data_ptr()] = pinned
        return pinned

    def copy(self, source: Tensor, is_late: bool) -> Tensor:
        """Queue a copy to the GPU, into memory that is free for the stream of this thread."""
        if not is_late or source.data_ptr() not in self._pinned:
            self.waits.append("pageable memory" if is_late else "a copy")
        memory, stream = self._memory(source), self.current()
        self.copied_on.add(stream)
        stream.add(lambda: memory.copy_(source) is memory)
        values = memory.detach()
        users = self._users[memory.data_ptr()] = set()
        finalize(values, self._release, memory, stream, users)
        return values

    def use(self, values: Tensor, stream: Stream) -> None:
        """Keep memory until a stream has come to what is queued when the tensor dies."""
        self._users[values.data_ptr()].add(stream)

    def _memory(self, like: Tensor) -> Tensor:
        with self.lock:
            for number, memory in enumerate(self._free):
                if (memory.shape, memory.dtype) == (like.shape, like.dtype):
                    return self._free.pop(number)
        return torch.full_like(like, 77)

    def _release(self, memory: Tensor, owner: Stream, users: set[Stream]) -> None:
        events = [stream.record_event() for stream in users if stream is not owner]
        if all(event.is_done for event in events):
            self._free.append(memory)  # what the stream that it belongs to does with it next comes later in any case


@contextmanager
def lazy_gpu(early: str) -> Iterator[LazyGpu]:
    """Replace torch's streams, copies and pinned memory by those of a double, while open."""
    gpu, to = LazyGpu(early), Tensor.to

    def moved(values: Tensor, target: Any, *args: Any, non_blocking: bool = False, **options: Any) -> Tensor:
        if isinstance(target, torch.device) and target.type == "cuda":
            return gpu.copy(values, non_blocking)
        return to(values, target, *args, non_blocking=non_blocking, **options)

    prefetch._batch_stream.cache_clear()
    with (
        mock.patch.multiple(torch.cuda, Stream=lambda device: gpu.batches, current_stream=gpu.current, stream=gpu.on),
        mock.patch.object(Tensor, "pin_memory", lambda values: gpu.pin(values)),
        mock.patch.object(Tensor, "to", moved),
        mock.patch.object(Tensor, "record_stream", lambda values, stream: gpu.use(values, stream)),
    ):
        try:
            yield gpu
        finally:
            prefetch._batch_stream.cache_clear()
