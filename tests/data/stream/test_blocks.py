"""Blocks and batches, over drawn datasets, lanes, ranks and steps: nothing is lost, doubled, moved or read twice."""

import pickle
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raysl.data.order import Order
from raysl.data.stream.blocks import Block, StepRows, WindowRows, plain_blocks, rank_blocks
from raysl.data.stream.rows import BlockRows, Loaded, join_batches, load_block
from raysl.hashing import Int64s


class Numbered:
    """A loader of an order whose views say which sample and epoch they belong to."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.has_windows = not order.is_exact

    def load_samples(self, index: Int64s, epoch: int, known: object = None) -> Loaded:
        rows = torch.from_numpy(index)
        views = {"global": (rows % 251).to(torch.uint8)[:, None].expand(-1, 2)}
        return Loaded(views, {"epoch": torch.full((len(index), 1), epoch)}, rows, rows * 2, (f"broken {epoch}",))

    def load_rows(self, block: StepRows, known: object = None) -> list[Loaded]:
        return [self.load_samples(index, epoch, known) for epoch, index in block.samples(self.order)]


def read_only(loader: Any, block: Block) -> BlockRows:
    """Load a block as Ray hands it over."""
    rows = load_block(loader, block)
    for column in rows.columns.values():
        column.setflags(write=False)
    return rows


@st.composite
def orders(draw: st.DrawFn) -> Order:
    sizes = np.array(draw(st.lists(st.integers(1, 12), min_size=4, max_size=20)))
    batch = draw(st.integers(1, int(sizes.sum())))
    return Order(
        seed=draw(st.integers(0, 5)),
        fingerprint="numbered",
        unit_sizes=sizes,
        batch_size=batch,
        lanes=draw(st.integers(1, batch)),
        window=draw(st.sampled_from([None, 1, 7, 30])),
        is_exact=draw(st.booleans()),
        drop_last=draw(st.booleans()),
    )


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(orders(), st.integers(1, 4), st.integers(0, 9), st.integers(1, 12), st.integers(1, 50))
def test_every_rank_gets_its_rows_of_every_step_in_order(
    order: Order, world: int, first: int, num_steps: int, target: int
) -> None:
    loader, end = Numbered(order), first + num_steps
    for rank in range(world):
        blocks = list(rank_blocks(order, rank, world, first, end, target))
        assert [block.step for block in blocks] == sorted(block.step for block in blocks)
        waiting = ((block, partial(read_only, loader, block)) for block in blocks)
        batches = list(join_batches(loader, rank, world, first, end, waiting))  # type: ignore[arg-type]
        assert len(batches) == num_steps
        for step, loaded in enumerate(batches, first):
            index = torch.from_numpy(order.batch(step, rank, world))
            assert torch.equal(loaded.key, index)
            assert torch.equal(loaded.label, index * 2)
            assert torch.equal(loaded.views["global"], (index % 251).to(torch.uint8)[:, None].expand(-1, 2))
            assert torch.equal(loaded.extras["epoch"], torch.full((len(index), 1), step // order.epoch_len))
        assert sum(len(loaded.corrupt) for loaded in batches) >= len(blocks)


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(orders(), st.integers(1, 4))
def test_windows_are_read_once_in_an_epoch_and_are_the_same_for_any_number_of_ranks(order: Order, world: int) -> None:
    def windows(world: int, first: int) -> Counter[tuple[int, int]]:
        ranks = [rank_blocks(order, rank, world, first, order.epoch_len, target=8) for rank in range(world)]
        return Counter((block.lane, block.window) for rank in ranks for block in rank if isinstance(block, WindowRows))

    once, resumed = windows(world, 0), windows(world, order.epoch_len // 2)
    assert once == windows(1, 0)
    assert set(once.values()) <= {1}
    assert set(resumed) <= set(once)
    if not order.is_exact:
        assert sum(once.values()) == sum(len(order.windows(0, lane)) - 1 for lane in range(order.lanes))


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(orders(), st.integers(0, 9))
def test_a_resume_decodes_no_row_of_the_steps_before(order: Order, first: int) -> None:
    blocks = rank_blocks(order, 0, 1, first, first + 3, target=8)
    rows = sum(len(index) for block in blocks for _, index in block.samples(order))  # type: ignore[union-attr]
    assert rows == sum(len(order.batch(step)) for step in range(first, first + 3))


def test_a_block_is_a_few_numbers_whatever_the_size_of_the_dataset() -> None:
    order = Order(0, "large", np.full(4000, 256), batch_size=4096, lanes=64, window=None, is_exact=False)
    block = next(rank_blocks(order, 0, 1, 100, 1000, target=256))
    assert len(pickle.dumps(block)) < 300


def test_plain_blocks_cover_a_rank_s_share_in_order() -> None:
    rows = [row for rank in range(3) for block in plain_blocks(601, rank, 3, 64) for row in block.rows]
    assert rows == list(range(601))
