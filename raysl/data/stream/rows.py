"""Rows of blocks on their way to a rank: as columns of arrays, and joined to the batches of steps."""

import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from raysl.data.decode.corrupt import Known
from raysl.data.stream.blocks import ALL_LANES, Block, PlainRows

if TYPE_CHECKING:
    from raysl.data.stream.loader import Loader

Columns = dict[str, np.ndarray]
"""Arrays [rows, ...] by name: `key`, `label`, and views and extras with a prefix."""

_VIEW, _EXTRA = "view:", "extra:"


@dataclass(frozen=True)
class Loaded:
    """Views of some samples before normalisation.

    Args:
        views: uint8 [B, V, C, H, W] by group, before augmentation with the boxes that the recipe asks for; those of the
            n-th paired source end in `_n`. Not to be written to: they may be memory that processes share.
        extras: outputs of the recipe beside the views, [B, ...] by group and name; empty before augmentation.
        key: int64 [B], the order's keys of the samples.
        label: int64 [B], or [B, K].
        corrupt: images that were replaced because they cannot be decoded, "name: reason".
        read_s: seconds of reading encoded images.
    """

    views: dict[str, Tensor]
    extras: dict[str, Tensor]
    key: Tensor
    label: Tensor
    corrupt: tuple[str, ...] = ()
    read_s: float = 0.0


@dataclass(frozen=True)
class BlockRows:
    """The rows of a block as a data task returns them.

    Args:
        corrupt: images that were replaced, "name: reason".
        read_s: seconds of reading encoded images.
    """

    columns: Columns
    corrupt: tuple[str, ...] = ()
    read_s: float = 0.0


def load_block(loader: "Loader", block: Block, known: Known | None = None) -> BlockRows:
    """Load the rows of a block.

    Args:
        known: corrupt images that need not be read again, see `cut_images`.
    """
    if isinstance(block, PlainRows):
        split = loader.held_out if block.is_held_out else loader.split
        assert split is not None
        return to_rows(loader.load_plain(split, np.asarray(block.rows), known, block.interpolation))
    parts = [to_rows(loaded) for loaded in loader.load_rows(block, known)]
    corrupt = tuple(name for part in parts for name in part.corrupt)
    return BlockRows(_join([part.columns for part in parts]), corrupt, sum(part.read_s for part in parts))


def to_rows(loaded: Loaded) -> BlockRows:
    """Turn loaded samples into rows, without a copy."""
    columns = {"key": loaded.key.numpy(), "label": loaded.label.numpy()}
    columns |= {_VIEW + name: view.numpy() for name, view in loaded.views.items()}
    columns |= {_EXTRA + name: extra.numpy() for name, extra in loaded.extras.items()}
    return BlockRows(columns, loaded.corrupt, loaded.read_s)


def to_loaded(rows: BlockRows) -> Loaded:
    """Turn rows into loaded samples. Memory that Ray shares is read-only: views stay in it, all else is copied."""
    _accept_read_only()
    tensors = {
        name: torch.from_numpy(column if column.flags.writeable or name.startswith(_VIEW) else column.copy())
        for name, column in rows.columns.items()
    }
    views, extras = (
        {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        for prefix in (_VIEW, _EXTRA)
    )
    return Loaded(views, extras, tensors["key"], tensors["label"], rows.corrupt)


@cache
def _accept_read_only() -> None:
    """Take in silence the warning that torch gives once in a process, at the first tensor in read-only memory."""
    column = np.zeros(1)
    column.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(column)


def join_batches(
    loader: "Loader",
    rank: int,
    world: int,
    first: int,
    end: int,
    blocks: Iterable[tuple[Block, Callable[[], BlockRows]]],
) -> Iterator[Loaded]:
    """Yield a rank's rows of each of the steps [first, end).

    Args:
        blocks: blocks in the order of `rank_blocks`, each with the function that waits for its rows; called when a step
            needs them.

    Raises:
        RuntimeError: if the rows are not those of the step.
    """
    order = loader.order
    lanes: defaultdict[int, deque[Columns]] = defaultdict(deque)  # rows that have arrived and were not used yet
    arriving = iter(blocks)
    following = next(arriving, None)
    for step in range(first, end):
        corrupt: list[str] = []
        # blocks are sorted by the first step that needs them; a window's rows may last for several steps
        while following is not None and following[0].step <= step:
            block, wait = following
            rows = wait()
            lanes[block.lane].append(rows.columns)
            corrupt += rows.corrupt
            following = next(arriving, None)
        expected = order.batch(step, rank, world)
        row_lanes = order.lanes_of(step, rank, world) if loader.has_windows else np.full(len(expected), ALL_LANES)
        # `np.unique` sorts, which is the order of the lanes inside a batch
        counts = zip(*np.unique(row_lanes, return_counts=True), strict=True)
        parts = [part for lane, count in counts for part in _take(lanes[int(lane)], int(count))]
        # a rank may have no rows at a step; its views still need their names and shapes
        columns = _join(parts) if parts else to_rows(loader.load_samples(expected[:0], step // order.epoch_len)).columns
        if not np.array_equal(columns["key"], expected):
            raise RuntimeError(f"rank {rank}: the rows that arrived are not those of step {step}")
        yield to_loaded(BlockRows(columns, tuple(corrupt)))


def _take(waiting: deque[Columns], count: int) -> Iterator[Columns]:
    """Remove the next `count` rows from those of a lane; yield them in one or several parts."""
    while count > 0 and waiting:
        columns = waiting.popleft()
        num_rows = len(columns["key"])
        if num_rows > count:
            waiting.appendleft({name: column[count:] for name, column in columns.items()})
            columns = {name: column[:count] for name, column in columns.items()}
        count -= num_rows
        yield columns


def _join(parts: list[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
