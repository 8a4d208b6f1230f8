"""Collectives: the identity on one process, differentiable where a loss needs it.

Contract for losses: a rank's loss is the mean over its rows, the loop weighs it by rows * W / batch, DDP averages
gradients, and the backward pass of every collective sums gradients over ranks. Then any number of ranks gives the
gradient of one process with the whole batch. Half types are summed in float32.

Functions that a step calls (`all_sum`, `all_mean`, `all_least`, and those of `rows`) do not make the host wait for a
GPU; those that return Python values (`row_counts`, `all_true`, `gather_objects`) do.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as torch_dist
from torch import Tensor

from raysl.distributed.ranks import Group, world
from raysl.distributed.rows import _gather, loss_factor

T = TypeVar("T")


def all_sum(value: Tensor, group: Group | None = None, same_loss: bool = False) -> Tensor:
    """Return the element-wise sum over ranks, computed in float32 or wider; gradients are summed too.

    Args:
        value: tensor of the same shape on every rank.
        group: ranks, from `group_of`; default: all.
        same_loss: flag as in `all_gather`, for a sum over all ranks.
    """
    return value if world() == 1 else _AllSum.apply(value, group, loss_factor() if same_loss else None)


@torch.no_grad()
def all_stacked(value: Tensor, group: Group | None = None) -> Tensor:
    """Return the tensors of all ranks, of the same shape, as [W, ...] on every rank; without gradients.

    Args:
        value: tensor of the same shape on every rank.
        group: ranks, from `group_of`; default: all.
    """
    if world(group) == 1:
        return value[None]
    stacked = value.new_empty(world(group), *value.shape)
    _gather(stacked.view(-1), value.reshape(-1), group)
    return stacked


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


@torch.no_grad()
def average_(tensors: Sequence[Tensor]) -> None:
    """Replace floating-point tensors by their mean over ranks, in place, in one exchange.

    The mean is taken in float64, where a sum of equal float32 numbers is exact: numbers that are equal on all ranks
    keep their bits, so averaging again changes nothing.
    """
    if world() == 1 or not tensors:
        return
    sizes = [tensor.numel() for tensor in tensors]
    flat = torch.empty(sum(sizes), dtype=torch.float64, device=tensors[0].device)
    parts = [part.view(tensor.shape) for part, tensor in zip(torch.split(flat, sizes), tensors, strict=True)]
    # A few kernels for all tensors together in place of three for each.
    torch._foreach_copy_(parts, list(tensors))
    torch_dist.all_reduce(flat)
    flat.div_(world())
    torch._foreach_copy_(list(tensors), parts)


class _AllSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group | None, factor: float | None) -> Tensor:
        ctx.group, ctx.factor = group, factor
        return _sum_over_ranks(value, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        total = _sum_over_ranks(grads[0], ctx.group) if ctx.factor is None else grads[0] * ctx.factor
        return total, None, None


def _sum_over_ranks(value: Tensor, group: Group | None = None) -> Tensor:
    """Return the sum over ranks as a new tensor of the same type; half types are summed in float32."""
    wide = torch.promote_types(value.dtype, torch.float32) if value.is_floating_point() else value.dtype
    total = value.to(wide, copy=True, memory_format=torch.contiguous_format)
    torch_dist.all_reduce(total, group=group)
    return total.to(value.dtype)
