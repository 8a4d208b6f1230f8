"""Rows of the global batch, which lie on all ranks: gathered, or sent from one rank to another.

Inside a training step the plan says how many rows each rank holds, so gathering them is one exchange, for which the
host does not wait.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor

from raysl.distributed.ranks import rank, world
from raysl.process.screen import counted

# Up to torch 2.13 these functions have other names.
_gather: Any = getattr(torch_dist, "all_gather_single", None) or torch_dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(torch_dist, "reduce_scatter_single", None) or torch_dist.reduce_scatter_tensor


@contextmanager
def planned_rows(counts: Sequence[int]) -> Iterator[None]:
    """Tell `all_gather` how many rows of the global batch each rank holds, while inside.

    The loop uses it around each step, so that ranks need not exchange their numbers of rows.

    Args:
        counts: [W], rows of each rank.
    """
    global _planned
    before, _planned = _planned, list(counts)
    try:
        yield
    finally:
        _planned = before


def all_gather(rows: Tensor, same_loss: bool = False) -> Tensor:
    """Return the rows of all ranks in rank order: [B_r, ...] on each rank to [sum of B_r, ...] on every rank.

    Inside a training step there must be one row for each image of this rank; `all_gather_ragged` takes any number.
    Outside of a step ranks may hold any numbers of rows, including 0. Gradients flow back to the rank that owns a row,
    summed over ranks.

    >>> all_gather(torch.arange(3)).tolist()  # one process
    [0, 1, 2]

    Args:
        same_loss: whether all ranks compute the same number from the result, and weigh it by their rows as the loop
            does. Inside a step the sum over ranks is then known without an exchange.

    Raises:
        ValueError: in a step, if the number of rows is not this rank's share of the batch.
    """
    counts = row_shares(rows)
    return rows if world() == 1 else _AllGather.apply(rows, counts, loss_factor() if same_loss else None)


def all_gather_ragged(rows: Tensor) -> Tensor:
    """Return the rows of all ranks, as `all_gather`, for any numbers of rows at any time.

    Ranks first exchange their numbers of rows; on a GPU the host waits for that.
    """
    if world() == 1:
        return rows
    return _AllGather.apply(rows, row_counts(len(rows), rows.device), None)  # type: ignore[no-any-return]


def row_counts(num_rows: int, device: torch.device | str = "cpu") -> list[int]:
    """Return the number of rows of each rank, by an exchange that makes the host wait for the device."""
    if world() == 1:
        return [num_rows]
    counts = torch.empty(world(), dtype=torch.int64, device=device)
    _gather(counts, torch.full((1,), num_rows, dtype=torch.int64, device=device))
    return [int(count) for count in counts.tolist()]


def row_shares(rows: Tensor) -> list[int]:
    """Return the number of rows of each rank in `all_gather(rows)`; raises and, outside of a step, waits as that
    does."""
    if _planned is None:
        return row_counts(len(rows), rows.device)
    if len(_planned) != world() or len(rows) != _planned[rank()]:
        raise ValueError(
            f"{len(rows)} rows cannot be gathered as rows of this step's batch, of which the "
            f"{counted(len(_planned), 'rank')} hold {_planned} and this is rank {rank()} of {world()}; give one row "
            "for each image of the rank's batch, or use all_gather_ragged"
        )
    return _planned


def own_rows(rows: Tensor) -> Tensor:
    """Return the indices, int64 [B], of this rank's rows in `all_gather(rows)`; raises as that does."""
    first = sum(row_shares(rows)[: rank()])
    return torch.arange(first, first + len(rows), device=rows.device)


def planned_num() -> int | None:
    """Return the number of rows of the step's batch over all ranks; None outside of a step."""
    return None if _planned is None else sum(_planned)


def planned_share() -> int | None:
    """Return the number of rows of the step's batch on this rank; None outside of a step."""
    return None if _planned is None else _planned[rank()]


def loss_factor() -> float | None:
    """Return the sum over ranks of the factors of a loss, over the factor of this rank's; None outside of a step.

    The loop weighs a rank's loss by its share of the rows. So a gradient that all ranks compute alike, from a loss that
    is the same on all, is summed over ranks by this factor, without an exchange.

    >>> with planned_rows([4]):
    ...     loss_factor()  # one process
    1.0
    """
    if _planned is None:
        return None
    share = _planned[rank()]
    return sum(_planned) / share if share else 0.0  # without rows there is nothing to which a gradient flows


@torch.no_grad()
def exchange_rows(rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
    """Send rows to each rank, and return those that the ranks have sent, in rank order; without gradients.

    >>> exchange_rows(torch.arange(3), [3], [3]).tolist()  # one process
    [0, 1, 2]

    Args:
        rows: [sum of sent, ...], those for rank 0 first.
        sent: [W], number of rows for each rank.
        received: [W], number of rows from each rank, which every rank has to know.
    """
    if world() == 1:
        return rows
    out = rows.new_empty(sum(received), *rows.shape[1:])
    torch_dist.all_to_all_single(out, rows.contiguous(), list(received), list(sent))
    return out


_planned: list[int] | None = None
"""Rows of each rank, inside `planned_rows`."""


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int], factor: float | None) -> Tensor:
        ctx.counts, ctx.factor = counts, factor
        most = max(counts)
        padded = rows.contiguous()
        # the exchange takes equal numbers of rows, so ranks with fewer pad theirs
        if len(rows) < most:
            padded = torch.cat([rows, rows.new_zeros((most - len(rows), *rows.shape[1:]))])
        gathered = rows.new_empty(len(counts) * most, *rows.shape[1:])
        _gather(gathered, padded)
        return gathered if min(counts) == most else torch.cat(_without_padding(gathered, counts))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        if ctx.factor is not None:
            return torch.split(grads[0], ctx.counts)[rank()] * ctx.factor, None, None
        return _sum_own_rows(grads[0], ctx.counts), None, None


def _without_padding(rows: Tensor, counts: list[int]) -> list[Tensor]:
    return [part[:count] for part, count in zip(torch.split(rows, max(counts)), counts, strict=True)]


def _sum_own_rows(rows: Tensor, counts: list[int]) -> Tensor:
    """Return this rank's rows [B, ...] of the sum over ranks of [sum of B, ...]; half types are summed in float32."""
    most = max(counts)
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32)).contiguous()
    if min(counts) < most:
        padding = wide.new_zeros(most, *rows.shape[1:])
        parts = zip(torch.split(wide, counts), counts, strict=True)
        wide = torch.cat([piece for part, count in parts for piece in (part, padding[count:])])
    total = wide.new_empty(most, *rows.shape[1:])
    _reduce_scatter(total, wide)
    return total[: counts[rank()]].to(rows.dtype)
