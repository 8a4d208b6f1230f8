"""Blocks and batches, over drawn (steps, ranks, rows, target): nothing is lost, doubled or out of turn."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raysl.data.stream.blocks import Blocks, join_steps, to_columns
from raysl.data.stream.loader import Loaded


@st.composite
def plans(draw: st.DrawFn) -> Blocks:
    first = draw(st.integers(0, 50))
    return Blocks(
        first=first,
        end=first + draw(st.integers(1, 12)),
        world=draw(st.integers(1, 4)),
        rows=draw(st.integers(1, 20)),
        target=draw(st.integers(1, 50)),
    )


def rows_of(step: int, rank: int, num: int, start: int, stop: int) -> Loaded:
    """Rows [start, stop) of a rank's `num` rows, which say who they are."""
    return loaded_of(torch.arange(num)[start:stop] + 100 * step + 10_000 * rank)


def loaded_of(index: torch.Tensor) -> Loaded:
    extra = {"turn": index[:, None] % 4}
    return Loaded({"global": (index % 251).to(torch.uint8)[:, None].expand(-1, 2)}, extra, index, index * 2)


@settings(max_examples=150, deadline=None)
@given(plans(), st.data())
def test_every_rank_gets_its_rows_of_every_step_in_order(plan: Blocks, data: st.DataObject) -> None:
    num = [data.draw(st.integers(0, plan.rows)) for _ in range(plan.world)]
    blocks: list[list[dict[str, np.ndarray]]] = [[] for _ in range(plan.world)]
    for number in range(plan.world * plan.num_blocks):
        parts = list(plan.members(number))
        assert {part.rank for part in parts} == {number % plan.world}
        rows = [rows_of(part.step, part.rank, num[part.rank], part.start, part.stop).index for part in parts]
        loaded = replace(loaded_of(torch.cat(rows)), corrupt=(f"image of block {number}",) * bool(sum(map(len, rows))))
        block = to_columns(loaded, [part.step for part in parts], list(map(len, rows)), plan.part_rows)
        assert len(block["index"]) <= max(plan.target, plan.part_rows)
        for column in block.values():
            column.setflags(write=False)  # as Ray hands them over
        blocks[number % plan.world].append(block)
    for rank in range(plan.world):
        got = list(join_steps(blocks[rank], plan.parts))
        assert [step for step, _ in got] == list(range(plan.first, plan.end))
        told = [name for _, loaded in got for name in loaded.corrupt]
        assert len(told) == len(set(told))
        assert num[rank] == 0 or len(told) >= plan.num_blocks // plan.parts
        for step, loaded in got:
            whole = rows_of(step, rank, num[rank], 0, num[rank])
            assert torch.equal(loaded.index, whole.index)
            assert torch.equal(loaded.label, whole.label)
            assert torch.equal(loaded.views["global"], whole.views["global"])
            assert torch.equal(loaded.extras["turn"], whole.extras["turn"])


def test_blocks_of_an_execution_have_equal_rows_so_that_they_are_dealt_out_in_turn() -> None:
    for plan in (Blocks(0, 7, 2, 5, 12), Blocks(0, 7, 2, 25, 12)):
        sizes = {sum(plan.part_rows for _ in plan.members(number)) for number in range(2 * (plan.num_blocks - 1))}
        assert len(sizes) == 1
