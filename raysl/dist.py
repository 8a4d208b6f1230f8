"""Collectives: the identity on one process, differentiable where a loss needs it, exact for uneven rows.

The only module that touches `torch.distributed`. Contract for losses: a rank's loss is the mean over its rows, the loop
weighs it by rows * W / batch, DDP averages gradients, and every collective here sums gradients in its backward pass.
Then any number of ranks gives the gradient of one process with the whole batch.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")


def rank() -> int:
    """Number of this process, from 0."""
    return torch_dist.get_rank() if _is_on() else 0


def world() -> int:
    """Number of processes."""
    return torch_dist.get_world_size() if _is_on() else 1


def is_main() -> bool:
    """Whether this process is the one that logs."""
    return rank() == 0


def all_gather(rows: Tensor) -> Tensor:
    """Rows of all ranks in rank order: [B_r, ...] on each rank to [sum of B_r, ...] on every rank.

    Ranks may hold different numbers of rows, also none. Gradients flow back to the rank that owns a row, summed over
    ranks.
    """
    if world() == 1:
        return rows
    return _AllGather.apply(rows, row_counts(len(rows), rows.device))  # type: ignore[no-any-return]


def row_counts(num_rows: int, device: torch.device | str = "cpu") -> list[int]:
    """How many rows each rank holds, in rank order."""
    if world() == 1:
        return [num_rows]
    counts = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world())]
    torch_dist.all_gather(counts, torch.tensor([num_rows], dtype=torch.int64, device=device))
    return [int(count) for count in torch.cat(counts).tolist()]


def own_rows(rows: Tensor) -> Tensor:
    """Places, int64 [B], of this rank's rows in `all_gather(rows)`."""
    first = sum(row_counts(len(rows), rows.device)[: rank()])
    return torch.arange(first, first + len(rows), device=rows.device)


def all_sum(value: Tensor) -> Tensor:
    """Element-wise sum over ranks of tensors of one shape; gradients are summed in backward."""
    return value if world() == 1 else _AllSum.apply(value)


def all_mean(value: Tensor) -> Tensor:
    """Element-wise mean over ranks of tensors of one shape; gradients are summed in backward."""
    return all_sum(value) / world()


def all_true(flag: bool, device: torch.device | str = "cpu") -> bool:
    """Whether `flag` holds on every rank."""
    if world() == 1:
        return flag
    value = torch.tensor(int(flag), device=device)
    torch_dist.all_reduce(value, op=torch_dist.ReduceOp.MIN)
    return bool(value.item())


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


def barrier() -> None:
    """Wait until every rank is here."""
    if world() > 1:
        torch_dist.barrier()


def average_(tensors: Sequence[Tensor]) -> None:
    """Replace floating-point tensors by their mean over ranks, in place."""
    if world() > 1:
        for tensor in tensors:
            torch_dist.all_reduce(tensor)
            tensor.div_(world())


def data_parallel(module: nn.Module) -> nn.Module:
    """Wrap a module so that backward averages its gradients over ranks; the module itself on one process.

    DDP arranges its buckets anew after the first backward pass. With three or more ranks that changes the order of
    sums, so a run that was resumed would differ in the last bits from one that was not: a backward pass through a sum
    of all parameters, thrown away, settles the buckets before the first real step.
    """
    if world() == 1:
        return module
    device = next(module.parameters()).device
    wrapped = DistributedDataParallel(
        _WarmedUp(module), device_ids=[device] if device.type == "cuda" else None, **_no_buffer_broadcast()
    )
    for _ in range(2):  # the buckets of the first pass are rebuilt at the start of the second
        wrapped().backward()
    module.zero_grad(set_to_none=True)
    return wrapped


def _is_on() -> bool:
    return torch_dist.is_available() and torch_dist.is_initialized()


def _no_buffer_broadcast() -> dict[str, Any]:
    import inspect

    names = inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers": False} if "forward_sync_buffers" in names else {"broadcast_buffers": False}


class _WarmedUp(nn.Module):
    """Calls the module, or without arguments sums its parameters, so that each gets a gradient."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        if args:
            return self.module(*args)
        return torch.stack([p.sum() * 0 for p in self.module.parameters() if p.requires_grad]).sum()


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        most = max(counts)
        padded = rows.new_zeros((most, *rows.shape[1:]))
        padded[: len(rows)] = rows
        gathered = [torch.empty_like(padded) for _ in counts]
        torch_dist.all_gather(gathered, padded)
        return torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].contiguous().clone()
        torch_dist.all_reduce(total)
        return torch.split(total, ctx.counts)[rank()], None


class _AllSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.contiguous().clone()
        torch_dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        torch_dist.all_reduce(total)
        return total
