"""Collectives: the identity on one process, differentiable where a loss needs it, exact for uneven rows.

Contract for losses: a rank's loss is the mean over its rows, the loop
weighs it by rows * W / batch, DDP averages gradients, and every collective here that a gradient flows through sums it
over ranks in its backward pass. Then any number of ranks gives the gradient of one process with the whole batch. Sums
of half types are taken in float32. Inside a training step the plan says how many rows each rank holds, so gathering
them is one exchange, and no function that a step calls (`all_gather`, `own_rows`, `all_sum`, `all_mean`, `all_least`)
makes the host wait for a GPU; those that give back numbers (`row_counts`, `all_true`, `gather_objects`) do.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as torch_dist
from torch import Tensor

T = TypeVar("T")
Group = torch_dist.ProcessGroup
"""Some of the ranks."""


def rank() -> int:
    """Number of this process, from 0."""
    return torch_dist.get_rank() if _is_on() else 0


def world() -> int:
    """Number of processes."""
    return torch_dist.get_world_size() if _is_on() else 1


def is_main() -> bool:
    """Whether this process is the one that logs."""
    return rank() == 0


@contextmanager
def planned_rows(counts: Sequence[int]) -> Iterator[None]:
    """While it is open, `all_gather` takes rows of one global batch, of which the ranks hold `counts` [W].

    The loop opens it for each step, with what the plan says: so nobody has to ask the others how many rows they have.
    """
    global _planned
    before, _planned = _planned, list(counts)
    try:
        yield
    finally:
        _planned = before


def all_gather(rows: Tensor) -> Tensor:
    """Rows of all ranks in rank order: [B_r, ...] on each rank to [sum of B_r, ...] on every rank.

    Inside a training step these are rows of the batch, one for each image that the rank holds; `all_gather_ragged`
    takes any. Outside of one, ranks may hold any numbers of rows, also none. Gradients flow back to the rank that owns
    a row, summed over ranks.

    Raises:
        ValueError: in a step, if there are more or fewer rows than this rank's share of the batch.
    """
    counts = _counts_of(rows)
    return rows if world() == 1 else _AllGather.apply(rows, counts)


def all_gather_ragged(rows: Tensor) -> Tensor:
    """The same for any numbers of rows, also none, at any time: ranks first tell each other how many they have.

    On a GPU the host waits for that exchange.
    """
    if world() == 1:
        return rows
    return _AllGather.apply(rows, row_counts(len(rows), rows.device))  # type: ignore[no-any-return]


def row_counts(num_rows: int, device: torch.device | str = "cpu") -> list[int]:
    """How many rows each rank holds, in rank order; asks them, which makes the host wait for the device."""
    if world() == 1:
        return [num_rows]
    counts = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world())]
    torch_dist.all_gather(counts, torch.full((1,), num_rows, dtype=torch.int64, device=device))
    return [int(count) for count in torch.cat(counts).tolist()]


def own_rows(rows: Tensor) -> Tensor:
    """Places, int64 [B], of this rank's rows in `all_gather(rows)`; raises what that raises."""
    first = sum(_counts_of(rows)[: rank()])
    return torch.arange(first, first + len(rows), device=rows.device)


def all_sum(value: Tensor, group: "Group | None" = None) -> Tensor:
    """Element-wise sum over ranks of tensors of one shape, never below fp32 on the way; gradients are summed too.

    Args:
        value: of the same shape on every rank.
        group: the ranks, see `group_of`; default: all.
    """
    return value if world() == 1 else _AllSum.apply(value, group)


def all_mean(value: Tensor) -> Tensor:
    """Element-wise mean over ranks of tensors of one shape; gradients are summed in backward, and divided likewise."""
    return all_sum(value) / world()


def all_true(flag: bool, device: torch.device | str = "cpu") -> bool:
    """Whether `flag` holds on every rank."""
    if world() == 1:
        return flag
    return bool(all_least(torch.full((), float(flag), device=device)).item())


@torch.no_grad()
def all_least(values: Tensor) -> Tensor:
    """Element-wise minimum over ranks of tensors of one shape, still on the device: nobody waits for it."""
    if world() == 1:
        return values
    least = values.contiguous().clone()
    torch_dist.all_reduce(least, op=torch_dist.ReduceOp.MIN)
    return least


def gather_objects(value: T) -> list[T]:
    """The picklable object of every rank, in rank order."""
    if world() == 1:
        return [value]
    found: list[T] = [value] * world()
    torch_dist.all_gather_object(found, value)
    return found


def broadcast(tensors: Sequence[Tensor]) -> None:
    """Overwrite tensors by those of rank 0, in place."""
    if world() > 1:
        for tensor in tensors:
            torch_dist.broadcast(tensor, src=0)


def group_of(names: Sequence[Any]) -> Group | None:
    """The ranks that have this one's name, such as its node; every rank calls it.

    Args:
        names: [W], of all ranks, the same list on each.

    Returns:
        None on one process, or where all have one name.
    """
    if world() == 1 or len(set(names)) == 1:
        return None
    groups: dict[Any, Any] = {
        name: torch_dist.new_group([other for other, its in enumerate(names) if its == name])
        for name in dict.fromkeys(names)
    }
    own: Group = groups[names[rank()]]
    return own


def barrier() -> None:
    """Wait until every rank is here."""
    if world() > 1:
        torch_dist.barrier()


@torch.no_grad()
def average_(tensors: Sequence[Tensor]) -> None:
    """Replace floating-point tensors by their mean over ranks, in place, in one exchange.

    The mean is taken in float64, where a sum of equal float32 numbers is exact: what is equal on all ranks keeps its
    bits, so that averaging twice is averaging once.
    """
    if world() == 1 or not tensors:
        return
    flat = torch.cat([tensor.double().flatten() for tensor in tensors])
    torch_dist.all_reduce(flat)
    parts = torch.split(flat / world(), [tensor.numel() for tensor in tensors])
    for tensor, mean in zip(tensors, parts, strict=True):
        tensor.copy_(mean.view_as(tensor))


_planned: list[int] | None = None
"""Rows of the current step's batch on each rank, inside `planned_rows`."""


def _counts_of(rows: Tensor) -> list[int]:
    """How many rows each rank holds: planned, or asked for."""
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
        return torch.split(_summed(grads[0]), ctx.counts)[rank()], None


class _AllSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group | None) -> Tensor:
        ctx.group = group
        return _summed(value, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _summed(grads[0], ctx.group), None


def _summed(value: Tensor, group: Group | None = None) -> Tensor:
    """Sum over ranks, of half types in float32; a new tensor of the same type."""
    wide = torch.promote_types(value.dtype, torch.float32) if value.is_floating_point() else value.dtype
    total = value.to(wide, copy=True, memory_format=torch.contiguous_format)
    torch_dist.all_reduce(total, group=group)
    return total.to(value.dtype)
