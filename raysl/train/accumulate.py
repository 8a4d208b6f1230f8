"""Gradient accumulation: a batch that is gone through in parts, one after another, before one update.

A part is made of whole lanes of the global batch, every so-many-th, so that it holds the same images at any number of
ranks, and what a method takes from "the batch" (negatives, statistics, balanced assignments) is that of the part.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.data.batch import Batch
from raysl.methods.method import StepOutput
from raysl.plan.plan import TrainPlan
from raysl.schedule import Step

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def backward_in_parts(
    model: nn.Module, batch: Batch, plan: TrainPlan, step: Step, scaler: torch.amp.GradScaler
) -> StepOutput:
    """Forward and backward of each part; the gradients add up in the parameters, over ranks with the last part.

    Args:
        model: the method, or what `dist.data_parallel` made of it.
        batch: this rank's rows.
        plan: how many parts, and of which rows.
        step: where training is.
        scaler: scales the loss that gradients are of, where it is enabled.

    Returns:
        Loss and metrics as means over the rows of the parts, what is carried in the order of the batch's rows.

    Raises:
        ValueError: if the method carries something that has no row for each image.
    """
    parts = plan.parts(step, dist.rank())
    outs = []
    for number, (rows, shares) in enumerate(zip(parts, plan.part_shares(step), strict=True)):
        is_last = number == len(parts) - 1
        with dist.planned_rows(shares), nullcontext() if is_last else dist.without_exchange(model):
            half = AUTOCAST.get(plan.precision)
            with torch.autocast(batch.index.device.type, half, enabled=half is not None):
                out: StepOutput = model(_rows_of(batch, rows) if len(parts) > 1 else batch, step)
            torch.autograd.backward(scaler.scale(out.loss * plan.weight(len(rows), step)))
        outs.append(replace(out, loss=out.loss.detach()))
    return outs[0] if len(outs) == 1 else _joined(outs, parts)


def _rows_of(batch: Batch, rows: Sequence[int]) -> Batch:
    places = torch.tensor(rows).to(batch.index.device, non_blocking=True)
    host_index = None if batch.host_index is None else batch.host_index[list(rows)]
    return replace(batch.map(lambda values: values[places]), host_index=host_index)


def _joined(outs: Sequence[StepOutput], parts: Sequence[Sequence[int]]) -> StepOutput:
    counts = [len(rows) for rows in parts]

    def mean(value_of: Callable[[StepOutput], Tensor]) -> Tensor:
        return torch.stack([value_of(out) * n for out, n in zip(outs, counts, strict=True)]).sum(dim=0) / sum(counts)

    carry = {}
    order = torch.tensor([row for rows in parts for row in rows]).argsort()
    for name in outs[0].carry:
        values = [out.carry[name] for out in outs]
        if [value.shape[:1] for value in values] != [(count,) for count in counts]:
            raise ValueError(f"the method carries {name!r}, which has no row for each image: set train.accumulate=1")
        carry[name] = torch.cat(values)[order.to(values[0].device)]
    metrics = {name: mean(lambda out, name=name: out.metrics[name]) for name in outs[0].metrics}  # type: ignore[misc]
    return StepOutput(mean(lambda out: out.loss), metrics, carry)
