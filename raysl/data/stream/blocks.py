"""Blocks of rows on their way to the ranks: how steps are cut into blocks, and batches are made from them again.

All blocks of an execution have the same number of rows (short ones are padded), so that Ray Data deals them out to the
ranks in turn, block i to rank i mod W.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raysl.data.stream.loader import Loaded

Numpy = dict[str, np.ndarray]

_VIEW, _EXTRA = "view:", "extra:"


@dataclass(frozen=True)
class StepRows:
    """Rows [start, stop) of a rank at a step."""

    step: int
    rank: int
    start: int
    stop: int


@dataclass(frozen=True)
class Blocks:
    """The blocks of the steps [first, end) for all ranks: each has some complete steps, or a part of one.

    Args:
        first, end: steps.
        world: number of ranks.
        rows: largest number of rows of a rank at a step.
        target: desired number of rows of a block.
    """

    first: int
    end: int
    world: int
    rows: int
    target: int

    @property
    def steps(self) -> int:
        """Steps in a block."""
        return max(1, self.target // self.rows)

    @property
    def parts(self) -> int:
        """Blocks of a rank's rows at one step; above 1 if they are too many for one block."""
        return -(-self.rows // self.target)

    @property
    def part_rows(self) -> int:
        """Rows of each part of a step, padding included."""
        return -(-self.rows // self.parts)

    @property
    def num_blocks(self) -> int:
        """Blocks of each rank."""
        return -(-(self.end - self.first) // self.steps) * self.parts

    def members(self, number: int) -> Iterator[StepRows]:
        """Yield the content of block `number`, in [0, world * num_blocks)."""
        turn, rank = divmod(number, self.world)
        group, part = divmod(turn, self.parts)
        start = self.first + group * self.steps
        for step in range(start, min(self.end, start + self.steps)):
            yield StepRows(step, rank, part * self.part_rows, (part + 1) * self.part_rows)


def to_columns(loaded: Loaded, steps: Sequence[int], counts: Sequence[int], part_rows: int) -> Numpy:
    """Turn rows of consecutive steps into the columns of a block.

    Args:
        loaded: the rows of all steps.
        steps: their numbers.
        counts: rows of each step.
        part_rows: rows of each step in the block; missing ones are filled with rows of index -1.
    """
    columns: Numpy = {"index": loaded.index.numpy(), "label": loaded.label.numpy()}
    columns |= {_VIEW + name: view.numpy() for name, view in loaded.views.items()}
    columns |= {_EXTRA + name: extra.numpy() for name, extra in loaded.extras.items()}
    num_rows = len(steps) * part_rows
    if len(loaded.index) < num_rows:
        positions = np.concatenate([np.arange(count) + nth * part_rows for nth, count in enumerate(counts)])
        columns = {name: _spread(column, positions, num_rows) for name, column in columns.items()}
        is_filler = np.ones(num_rows, bool)
        is_filler[positions] = False
        columns["index"][is_filler] = -1
    names = [*loaded.corrupt, *[""] * (num_rows - len(loaded.corrupt))]
    return {"step": np.repeat(steps, part_rows), "corrupt": np.array(names), **columns}


def _spread(column: np.ndarray, positions: np.ndarray, num_rows: int) -> np.ndarray:
    """Place the rows of a column at some positions of an array of zeros."""
    out = np.zeros((num_rows, *column.shape[1:]), column.dtype)
    out[positions] = column
    return out


def join_steps(blocks: Iterable[Numpy], parts: int) -> Iterator[tuple[int, Loaded]]:
    """Yield each step with the rank's rows, from its blocks in order.

    Args:
        blocks: columns as `to_columns` makes them; from Ray they may be read-only.
        parts: number of blocks of a step.
    """
    waiting: list[Loaded] = []
    for block in blocks:
        for step, loaded in _split_steps(block):
            waiting.append(loaded)
            if len(waiting) == parts:
                yield step, _join(waiting)
                waiting = []


def _split_steps(block: Numpy) -> Iterator[tuple[int, Loaded]]:
    steps = block["step"]
    cuts = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)]
    for start, end in itertools.pairwise(cuts):
        stop = end - int((block["index"][start:end] < 0).sum())
        part = {name: column[start:stop] for name, column in block.items()}
        names = tuple(name for name in part["corrupt"].tolist() if name)
        tensors = {name: _tensor(column) for name, column in part.items() if name not in ("step", "corrupt")}
        views, extras = (_select_prefix(prefix, tensors) for prefix in (_VIEW, _EXTRA))
        yield int(steps[start]), Loaded(views, extras, tensors["index"], tensors["label"], names)


def _select_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _tensor(column: np.ndarray) -> Tensor:
    """Return the column as a tensor, copied only if it is read-only, as memory that Ray shares is."""
    return torch.from_numpy(column if column.flags.writeable else column.copy())


def _join(parts: list[Loaded]) -> Loaded:
    """Join the parts of one step."""
    if len(parts) == 1:
        return parts[0]
    return Loaded(
        {name: torch.cat([part.views[name] for part in parts]) for name in parts[0].views},
        {name: torch.cat([part.extras[name] for part in parts]) for name in parts[0].extras},
        torch.cat([part.index for part in parts]),
        torch.cat([part.label for part in parts]),
        tuple(name for part in parts for name in part.corrupt),
    )
