"""Gradients of a batch: accumulated over its parts, and clipped by their norm.

A part consists of every n-th lane of the global batch, so that it holds the same images at any number of ranks. For a
method the part is the batch: its negatives, statistics and balanced assignments come from the part.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.method import StepOutput
from raysl.plan.plan import ClipOver, TrainPlan
from raysl.schedule import Step
from raysl.train.callbacks.callback import check_names
from raysl.transforms.device import to_device

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def backward_in_parts(
    model: nn.Module, batch: Batch, plan: TrainPlan, step: Step, scaler: torch.amp.GradScaler
) -> StepOutput:
    """Run forward and backward of each part; gradients add up in the parameters, and over ranks with the last part.

    Args:
        scaler: scales the loss before backward, if enabled.

    Returns:
        Loss and metrics as means over the rows of the parts; `carry` in the order of the batch's rows.

    Raises:
        ConfigError: if the step's result is no `StepOutput` of a scalar loss with a gradient and of scalar metrics.
        ValueError: if a tensor in `carry` has not one row for each image.
    """
    parts = plan.parts(step, dist.rank())
    outs = []
    for number, (rows, shares) in enumerate(zip(parts, plan.part_shares(step), strict=True)):
        is_last = number == len(parts) - 1
        with dist.planned_rows(shares), nullcontext() if is_last else dist.without_exchange(model):
            half = AUTOCAST.get(plan.precision)
            with torch.autocast(batch.index.device.type, half, enabled=half is not None):
                out: StepOutput = model(_select_rows(batch, rows) if len(parts) > 1 else batch, step)
            out = _checked(out, model)
            torch.autograd.backward(scaler.scale(out.loss * plan.weight(len(rows), step)))
        outs.append(replace(out, loss=out.loss.detach()))
    return outs[0] if len(outs) == 1 else _join(outs, parts)


def _checked(out: object, model: nn.Module) -> StepOutput:
    """Return the result of a step, with metrics that are plain numbers as tensors."""
    step = f"{type(getattr(model, 'module', model)).__qualname__}.training_step"
    if not isinstance(out, StepOutput):
        raise ConfigError(f"{step} returned {type(out).__name__}; return StepOutput(loss, metrics)")
    loss, metrics = out.loss, dict(out.metrics)
    if not isinstance(loss, Tensor) or loss.ndim:
        raise ConfigError(f"{step} returned as its loss {_described(loss)}; return a scalar, the mean over the images")
    if not loss.requires_grad:
        raise ConfigError(f"{step} returned a loss without a gradient; return one that depends on weights")
    check_names(step, metrics)
    for name, value in metrics.items():
        if isinstance(value, int | float):
            metrics[name] = loss.new_tensor(float(value))
        elif not isinstance(value, Tensor) or value.ndim:
            raise ConfigError(f"{step} returned as metric {name!r} {_described(value)}; return a scalar")
    return replace(out, metrics=metrics)


def _described(value: object) -> str:
    return f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else repr(value)


def _select_rows(batch: Batch, rows: Sequence[int]) -> Batch:
    index = to_device(torch.tensor(rows), batch.index.device)
    host_key = None if batch.host_key is None else batch.host_key[list(rows)]
    return replace(batch.map(lambda values: values[index]), host_key=host_key)


def _join(outs: Sequence[StepOutput], parts: Sequence[Sequence[int]]) -> StepOutput:
    counts = [len(rows) for rows in parts]

    def mean(value_of: Callable[[StepOutput], Tensor]) -> Tensor:
        return torch.stack([value_of(out) * n for out, n in zip(outs, counts, strict=True)]).sum(dim=0) / sum(counts)

    carry = {}
    # parts hold every n-th lane; this puts their rows back in the order of the batch
    order = torch.tensor([row for rows in parts for row in rows]).argsort()
    for name in outs[0].carry:
        values = [out.carry[name] for out in outs]
        if [value.shape[:1] for value in values] != [(count,) for count in counts]:
            raise ValueError(f"the method carries {name!r}, which has no row for each image: set train.accumulate=1")
        carry[name] = torch.cat(values)[order.to(values[0].device)]
    metrics = {name: mean(lambda out, name=name: out.metrics[name]) for name in outs[0].metrics}  # type: ignore[misc]
    return StepOutput(mean(lambda out: out.loss), metrics, carry)


def clip_norm(model: nn.Module, largest: float, over: ClipOver = "model") -> None:
    """Scale gradients down in place, so that their norm is at most `largest`. Every rank calls it.

    >>> model = nn.Linear(1, 2, bias=False)
    >>> model.weight.grad = torch.tensor([[3.0], [4.0]])
    >>> clip_norm(model, largest=1.0)
    >>> model.weight.grad.norm().round(decimals=4).item()
    1.0

    Args:
        model: module whose parameters have gradients, or this rank's shares of them.
        largest: upper bound of the norm.
        over: "model" clips the norm of all gradients together, "part" that of each child of the model and that of the
            parameters outside its children, "tensor" that of each parameter.
    """
    if over == "tensor":
        _clip_each([parameter.grad for parameter in model.parameters() if parameter.grad is not None], largest)
        return
    parts = [list(model.parameters(recurse=False)), *(list(child.parameters()) for child in model.children())]
    for part in [list(model.parameters())] if over == "model" else parts:
        nn.utils.clip_grad_norm_(part, largest)


def _clip_each(grads: list[Tensor], largest: float) -> None:
    if not grads:
        return
    shares = [dist.local(grad) for grad in grads]
    norms = torch.stack(torch._foreach_norm(shares))
    # where ranks hold shares, the norm of a gradient is the root of the sum of all shares' squares
    if any(share is not grad for share, grad in zip(shares, grads, strict=True)):
        norms = dist.all_sum(norms.square()).sqrt()
    scales = (largest / (norms + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(shares, list(scales.unbind()))
