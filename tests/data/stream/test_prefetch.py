"""Batches made ahead by a thread: their order, errors, and how the thread ends."""

import gc
import threading
from collections.abc import Callable, Generator
from itertools import islice

import pytest
import torch

from raysl.data.batch import Batch
from raysl.data.stream.prefetch import prefetch

CPU = torch.device("cpu")
Source = Generator[tuple[Batch, int], None, None]


def batch_of(number: int) -> Batch:
    return Batch({"global": torch.full((2, 1), float(number))}, torch.full((2,), number), torch.zeros(2))


class Numbers:
    """A source of batches that notes how far it has come, where, and that it was closed.

    Args:
        num: batches in it.
        error_at: number of a batch that cannot be made.
    """

    def __init__(self, num: int = 1000, error_at: int | None = None) -> None:
        self.num = num
        self.error_at = error_at
        self.made: list[int] = []
        self.threads: set[str] = set()
        self.closed = threading.Event()
        self.waits: dict[int, threading.Event] = {}

    def __call__(self) -> Source:
        try:
            for number in range(self.num):
                if number == self.error_at:
                    raise OSError(f"batch {number} cannot be read")
                self.made.append(number)
                self.threads.add(threading.current_thread().name)
                self.waits.setdefault(number, threading.Event()).set()
                yield batch_of(number), number
        finally:
            self.closed.set()

    def wait_for(self, number: int) -> None:
        """Wait until a batch is being made."""
        assert self.waits.setdefault(number, threading.Event()).wait(10)


def alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "raysl-prefetch"]


def test_items_come_in_order_with_their_batches_and_from_another_thread() -> None:
    source = Numbers(50)
    found = list(prefetch(source(), CPU))
    assert [note for _, note in found] == list(range(50))
    assert all(int(batch.index[0]) == note for batch, note in found)
    assert source.threads == {"raysl-prefetch"}
    assert source.closed.is_set()
    assert alive() == []


@pytest.mark.parametrize("depth", [1, 2])
def test_no_more_than_the_depth_is_made_ahead(depth: int) -> None:
    source = Numbers()
    items = prefetch(source(), CPU, depth)
    for taken in range(1, 6):
        next(items)
        source.wait_for(taken + depth - 1)  # it goes on by itself
        assert max(source.made) == taken + depth - 1
    items.close()


def test_an_error_comes_in_the_place_of_its_item() -> None:
    source = Numbers(error_at=3)
    items = prefetch(source(), CPU)
    assert [note for _, note in islice(items, 3)] == [0, 1, 2]
    with pytest.raises(OSError, match="batch 3 cannot be read") as error:
        next(items)
    assert error.traceback[-1].name == "__call__", "the traceback leads to the source"
    assert alive() == []
    assert source.closed.is_set()


@pytest.mark.thorough
@pytest.mark.parametrize("end", [lambda items: items.close(), lambda items: None], ids=["closed", "forgotten"])
def test_a_consumer_that_stops_early_ends_the_thread_and_closes_the_source(end: Callable[[Source], None]) -> None:
    source = Numbers()
    items = prefetch(source(), CPU)
    next(items)
    assert len(alive()) == 1
    end(items)
    del items
    gc.collect()
    assert alive() == []
    assert source.closed.is_set()
    assert len(source.made) <= 4


@pytest.mark.thorough
def test_a_consumer_that_fails_ends_the_thread() -> None:
    source = Numbers()

    def consume() -> None:
        for _, note in prefetch(source(), CPU):
            if note == 2:
                raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        consume()
    gc.collect()
    assert alive() == []


def test_nothing_is_started_before_the_first_item_is_asked_for() -> None:
    source = Numbers()
    items = prefetch(source(), CPU)
    assert alive() == []
    items.close()
    assert source.made == []


def test_a_source_that_is_empty_is_empty() -> None:
    assert list(prefetch(Numbers(0)(), CPU)) == []
