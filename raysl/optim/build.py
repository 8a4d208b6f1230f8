"""From settings to an optimizer, and its learning rate as a function of the step."""

import math
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from raysl.components import resolve
from raysl.config.schema import OptimConfig
from raysl.schedule import Step, cosine, progress_after, warmup

if TYPE_CHECKING:
    from raysl.methods.method import Method


def build_optimizer(method: "Method", optim: OptimConfig, optimizer_class: type[Any] | None = None) -> Optimizer:
    """The optimizer that `optim.name` picks, over `method.param_groups`; `set_lr` before every step.

    Args:
        method: what to optimise.
        optim: its settings.
        optimizer_class: resolved already, for a name that is not known here.

    Raises:
        ConfigError: if there is no such optimizer.
    """
    optimizer_class = optimizer_class or resolve("optimizer", optim.name)
    optimizer: Optimizer = optimizer_class(method.param_groups(optim), optim)
    return optimizer


def peak_lr(optim: OptimConfig, batch_size: int) -> float:
    """Learning rate at the top of the schedule for a global batch of `batch_size` images."""
    share = batch_size / optim.lr_batch_size
    return optim.lr * {"none": 1.0, "linear": share, "sqrt": math.sqrt(share)}[optim.lr_scaling]


def lr_at(optim: OptimConfig, step: Step, batch_size: int) -> float:
    """Learning rate of the update that starts at `step`: a linear warm-up, then the schedule."""
    peak = peak_lr(optim, batch_size)
    num_warmup = optim.warmup.steps(step.total, step.epoch_len)
    if step.index < num_warmup:
        return peak * warmup(step, num_warmup)
    if optim.schedule == "constant":
        return peak
    return cosine(progress_after(step, num_warmup), peak, peak * optim.final_lr)


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Give every group of parameters this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr
