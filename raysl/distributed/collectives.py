"""Collectives: the identity on one process, differentiable where a loss needs it, exact for uneven rows.

Contract for losses: a rank's loss is the mean over its rows, the loop weighs it by rows * W / batch, DDP averages
gradients, and the backward pass of every collective sums gradients over ranks. Then any number of ranks gives the
gradient of one process with the whole batch. Half types are summed in float32.

Inside a training step the plan says how many rows each rank holds, so gathering them is one exchange. Functions that a
step calls (`all_gather`, `own_rows`, `all_sum`, `all_mean`, `all_least`) do not make the host wait for a GPU; those
that return Python values (`row_counts`, `all_true`, `gather_objects`) do.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as torch_dist
from torch import Tensor

T = TypeVar("T")
Group = torch_dist.ProcessGroup
"""A group of ranks."""


def rank() -> int:
    """Return the number of this process, from 0."""
    return torch_dist.get_rank() if _is_on() else 0


def world() -> int:
    """Return the number of processes, W."""
    return torch_dist.get_world_size() if _is_on() else 1


def num_collectives() -> int:
    """Return how many collective operations this process has begun in the group of all ranks; 0 on one process."""
    if not _is_on():
        return 0
    group: Any = torch_dist.distributed_c10d._get_default_group()
    return int(group._get_sequence_number_for_group())


def is_main() -> bool:
    """Return whether this is rank 0, which logs and saves."""
    return rank() == 0


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


def all_gather(rows: Tensor) -> Tensor:
    """Return the rows of all ranks in rank order: [B_r, ...] on each rank to [sum of B_r, ...] on every rank.

    Inside a training step there must be one row for each image of this rank; `all_gather_ragged` takes any number.
    Outside of a step ranks may hold any numbers of rows, including 0. Gradients flow back to the rank that owns a row,
    summed over ranks.

    >>> all_gather(torch.arange(3)).tolist()  # one process
    [0, 1, 2]

    Raises:
        ValueError: in a step, if the number of rows is not this rank's share of the batch.
    """
    counts = _counts_of(rows)
    return rows if world() == 1 else _AllGather.apply(rows, counts)


def all_gather_ragged(rows: Tensor) -> Tensor:
    """Return the rows of all ranks, as `all_gather`, for any numbers of rows at any time.

    Ranks first exchange their numbers of rows; on a GPU the host waits for that.
    """
    if world() == 1:
        return rows
    return _AllGather.apply(rows, row_counts(len(rows), rows.device))  # type: ignore[no-any-return]


def row_counts(num_rows: int, device: torch.device | str = "cpu") -> list[int]:
    """Return the number of rows of each rank, by an exchange that makes the host wait for the device."""
    if world() == 1:
        return [num_rows]
    counts = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world())]
    torch_dist.all_gather(counts, torch.full((1,), num_rows, dtype=torch.int64, device=device))
    return [int(count) for count in torch.cat(counts).tolist()]


def own_rows(rows: Tensor) -> Tensor:
    """Return the indices, int64 [B], of this rank's rows in `all_gather(rows)`; raises as that does."""
    first = sum(_counts_of(rows)[: rank()])
    return torch.arange(first, first + len(rows), device=rows.device)


def all_sum(value: Tensor, group: "Group | None" = None) -> Tensor:
    """Return the element-wise sum over ranks, computed in float32 or wider; gradients are summed too.

    Args:
        value: tensor of the same shape on every rank.
        group: ranks, from `group_of`; default: all.
    """
    return value if world() == 1 else _AllSum.apply(value, group)


def all_mean(value: Tensor) -> Tensor:
    """Return the element-wise mean over ranks; gradients are summed over ranks and divided by W in backward."""
    return all_sum(value) / world()


def all_true(flag: bool, device: torch.device | str = "cpu") -> bool:
    """Return whether `flag` is true on every rank."""
    if world() == 1:
        return flag
    return bool(all_least(torch.full((), float(flag), device=device)).item())


@torch.no_grad()
def all_least(values: Tensor) -> Tensor:
    """Return the element-wise minimum over ranks, still on the device, so that the host does not wait."""
    if world() == 1:
        return values
    least = values.contiguous().clone()
    torch_dist.all_reduce(least, op=torch_dist.ReduceOp.MIN)
    return least


def gather_objects(value: T) -> list[T]:
    """Return the picklable objects of all ranks, in rank order."""
    if world() == 1:
        return [value]
    objects: list[T] = [value] * world()
    torch_dist.all_gather_object(objects, value)
    return objects


def broadcast(tensors: Sequence[Tensor]) -> None:
    """Overwrite tensors with those of rank 0, in place."""
    if world() > 1:
        for tensor in tensors:
            torch_dist.broadcast(tensor, src=0)


def group_of(names: Sequence[Any]) -> Group | None:
    """Return the group of the ranks that share this rank's name, such as that of its node; every rank must call it.

    Args:
        names: [W], the name of each rank, the same list everywhere.

    Returns:
        None on one process, or if all names are equal.
    """
    if world() == 1 or len(set(names)) == 1:
        return None
    groups: dict[Any, Any] = {
        name: torch_dist.new_group([other for other, label in enumerate(names) if label == name])
        for name in dict.fromkeys(names)
    }
    group: Group = groups[names[rank()]]
    return group


def barrier() -> None:
    """Wait until every rank has called this."""
    if world() > 1:
        torch_dist.barrier()


@torch.no_grad()
def average_(tensors: Sequence[Tensor]) -> None:
    """Replace floating-point tensors by their mean over ranks, in place, in one exchange.

    The mean is taken in float64, where a sum of equal float32 numbers is exact: numbers that are equal on all ranks
    keep their bits, so averaging again changes nothing.
    """
    if world() == 1 or not tensors:
        return
    flat = torch.cat([tensor.double().flatten() for tensor in tensors])
    torch_dist.all_reduce(flat)
    parts = torch.split(flat / world(), [tensor.numel() for tensor in tensors])
    for tensor, mean in zip(tensors, parts, strict=True):
        tensor.copy_(mean.view_as(tensor))


_planned: list[int] | None = None
"""Rows of each rank, inside `planned_rows`."""


def _counts_of(rows: Tensor) -> list[int]:
    """Return the number of rows of each rank: as planned, or by an exchange."""
    if _planned is None:
        return row_counts(len(rows), rows.device)
    if len(_planned) != world() or len(rows) != _planned[rank()]:
        raise ValueError(
            f"{len(rows)} rows cannot be gathered as rows of this step's batch, of which the {len(_planned)} rank(s) "
            f"hold {_planned} and this is rank {rank()} of {world()}; give one row for each image of the rank's batch, "
            "or use all_gather_ragged"
        )
    return _planned


def _is_on() -> bool:
    return torch_dist.is_available() and torch_dist.is_initialized()


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        most = max(counts)
        padded = rows.contiguous()
        if len(rows) < most:
            padded = torch.cat([rows, rows.new_zeros((most - len(rows), *rows.shape[1:]))])
        gathered = [torch.empty_like(padded) for _ in counts]
        torch_dist.all_gather(gathered, padded)
        return torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return torch.split(_sum_over_ranks(grads[0]), ctx.counts)[rank()], None


class _AllSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group | None) -> Tensor:
        ctx.group = group
        return _sum_over_ranks(value, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _sum_over_ranks(grads[0], ctx.group), None


def _sum_over_ranks(value: Tensor, group: Group | None = None) -> Tensor:
    """Return the sum over ranks as a new tensor of the same type; half types are summed in float32."""
    wide = torch.promote_types(value.dtype, torch.float32) if value.is_floating_point() else value.dtype
    total = value.to(wide, copy=True, memory_format=torch.contiguous_format)
    torch_dist.all_reduce(total, group=group)
    return total.to(value.dtype)
