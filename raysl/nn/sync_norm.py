"""Batch normalisation over ranks on a GPU, by the kernels of torch's SyncBatchNorm."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raysl import distributed as dist


class NormalisedOverRanks(torch.autograd.Function):
    """Normalises each channel over the rows of all ranks, with one exchange in each pass, which the host starts and
    does not wait for.

    torch's own function leaves out ranks without values, and the host has to read their counts for that; here every
    rank must have values.

    Args:
        input: [B, C, ...] on a GPU.
        weight, bias: [C], scale and shift; None for none.
        running_mean, running_var: [C], updated in place; None if they are not tracked.
        share: weight of this pass in the running statistics.
        eps: added to the variance.
        group: the ranks whose rows count; None for all.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        share: float,
        eps: float,
        group: dist.Group | None,
    ) -> Tensor:
        input, weight = _dense(input), None if weight is None else weight.contiguous()
        mean, invstd = torch.batch_norm_stats(input, eps)  # [C] each, at least float32
        count = mean.new_full((1,), input.numel() // input.shape[1])
        stacked = dist.all_stacked(torch.cat([mean, invstd, count]), group)  # [W, 2C + 1]
        means, invstds, counts = torch.split(stacked, [len(mean), len(mean), 1], dim=1)
        counts = counts.flatten()
        mean, invstd = torch.batch_norm_gather_stats_with_counts(
            input,
            means,
            invstds,
            running_mean,
            running_var,
            share,
            eps,
            counts if running_mean is None else counts.to(running_mean.dtype),
        )
        ctx.save_for_backward(input, weight, mean, invstd, counts.to(torch.int32))
        ctx.group = group
        return torch.batch_norm_elemt(input, weight, bias, mean, invstd, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, mean, invstd, counts = ctx.saved_tensors
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad = _dense(grads[0])
        sum_grad, sum_product, grad_weight, grad_bias = torch.batch_norm_backward_reduce(
            grad, input, mean, invstd, weight, needs_input, needs_weight, needs_bias
        )
        grad_input = None
        if needs_input:
            sum_grad, sum_product = dist.all_sum(torch.stack([sum_grad, sum_product]), ctx.group)  # [C] each
            weight = None if weight is None else weight.to(mean.dtype)
            grad_input = torch.batch_norm_backward_elemt(
                grad, input, mean, invstd, weight, sum_grad, sum_product, counts
            )
        return grad_input, grad_weight if needs_weight else None, grad_bias if needs_bias else None, *[None] * 5


def _dense(values: Tensor) -> Tensor:
    """Return values in an order of memory that the kernels take: channels last, or the usual one."""
    is_last = values.dim() in (4, 5) and values.is_contiguous(
        memory_format=torch.channels_last if values.dim() == 4 else torch.channels_last_3d
    )
    return values if is_last else values.contiguous()
