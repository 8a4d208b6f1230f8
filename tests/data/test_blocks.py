"""Blocks and batches, over drawn (steps, ranks, rows, target): nothing is lost, doubled or out of turn."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raysl.data.blocks import Blocks, batches_of, to_columns
from raysl.data.load import Loaded


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
    index = torch.arange(num)[start:stop] + 100 * step + 10_000 * rank
    names = tuple(f"image {number}" for number in index.tolist() if number % 7 == 0)
    extra = {"turn": index[:, None] % 4}
    return Loaded({"global": (index % 251).to(torch.uint8)[:, None].expand(-1, 2)}, extra, index, index * 2, names)


@settings(max_examples=150, deadline=None)
@given(plans(), st.data())
def test_every_rank_gets_its_rows_of_every_step_in_order(plan: Blocks, data: st.DataObject) -> None:
    num = [data.draw(st.integers(0, plan.rows)) for _ in range(plan.world)]
    blocks: list[list[dict[str, np.ndarray]]] = [[] for _ in range(plan.world)]
    for number in range(plan.world * plan.num_blocks):
        parts = [
            to_columns(rows_of(part.step, part.rank, num[part.rank], part.start, part.stop), part.step, plan.part_rows)
            for part in plan.members(number)
        ]
        assert {part.rank for part in plan.members(number)} == {number % plan.world}
        block = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        assert len(block["index"]) <= max(plan.target, plan.part_rows)
        for column in block.values():
            column.setflags(write=False)  # as Ray hands them over
        blocks[number % plan.world].append(block)
    for rank in range(plan.world):
        got = list(batches_of(blocks[rank], plan.parts))
        assert [step for step, _ in got] == list(range(plan.first, plan.end))
        for step, loaded in got:
            whole = rows_of(step, rank, num[rank], 0, num[rank])
            assert torch.equal(loaded.index, whole.index)
            assert torch.equal(loaded.label, whole.label)
            assert torch.equal(loaded.views["global"], whole.views["global"])
            assert torch.equal(loaded.extras["turn"], whole.extras["turn"])
            assert loaded.corrupt == whole.corrupt


def test_blocks_of_an_execution_have_equal_rows_so_that_they_are_dealt_out_in_turn() -> None:
    for plan in (Blocks(0, 7, 2, 5, 12), Blocks(0, 7, 2, 25, 12)):
        sizes = {sum(plan.part_rows for _ in plan.members(number)) for number in range(2 * (plan.num_blocks - 1))}
        assert len(sizes) == 1
