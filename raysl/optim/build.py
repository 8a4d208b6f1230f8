"""From settings to an optimizer, whose learning rate and weight decay are set before every step."""

from typing import Any

from torch.optim import Optimizer

from raysl import distributed as dist
from raysl.components import resolve
from raysl.config.schema import OptimConfig
from raysl.optim.course import lr_at as lr_at
from raysl.optim.course import peak_lr as peak_lr
from raysl.optim.course import weight_decay_at
from raysl.optim.groups import HasGroups, complete_groups
from raysl.optim.layers import parted_groups
from raysl.schedule import Step

_OF_THE_PROGRAM = (
    "lr_scale",
    "is_lr_constant",
    "weight_decay_scale",
    "weight_decay",
    "layer_scaling",
    "foreach",
    "fused",
)
"""Keys of a group that say what is done with it here; all others may be state of the optimizer."""


def build_optimizer(
    method: HasGroups, optim: OptimConfig, optimizer_class: type[Any] | None = None, is_shared: bool = False
) -> Optimizer:
    """The optimizer that `optim.name` picks, over `method.param_groups`; `set_schedules` before every step.

    A state that is loaded into it leaves the groups' scales as they are here: those of an older checkpoint may have
    none.

    Args:
        method: what to optimise.
        optim: its settings.
        optimizer_class: resolved already, for a name that is not known here.
        is_shared: whether each rank keeps a share of its state, where there are several.

    Raises:
        ConfigError: if there is no such optimizer, or the backbone tells no layers that `optim.layer_decay` needs.
        ValueError: if the method's groups contradict themselves.
    """
    optimizer_class = optimizer_class or resolve("optimizer", optim.name)
    groups = complete_groups(parted_groups(method.param_groups(optim), method.backbone, optim), optim)
    if is_shared and dist.world() > 1:
        optimizer = dist.shared_optimizer(optimizer_class, groups, optim)
    else:
        optimizer = optimizer_class(groups, optim)
    optimizer.register_load_state_dict_pre_hook(_with_own_scales)
    return optimizer


def set_schedules(optimizer: Optimizer, optim: OptimConfig, step: Step, batch_size: int) -> None:
    """Give every group of parameters its learning rate and weight decay of the update that starts at `step`.

    Each is the schedule's value, or the peak where a group has `is_lr_constant`, times the group's `lr_scale` or
    `weight_decay_scale`.
    """
    lr, weight_decay = lr_at(optim, step, batch_size), weight_decay_at(optim, step)
    peak = peak_lr(optim, batch_size)
    for group in optimizer.param_groups:
        group["lr"] = (peak if group["is_lr_constant"] else lr) * group["lr_scale"]
        if group["weight_decay_scale"] is not None:
            group["weight_decay"] = weight_decay * group["weight_decay_scale"]


def _with_own_scales(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """A state whose groups have what those of the optimizer have; torch would take the saved keys alone."""
    if len(state["param_groups"]) != len(optimizer.param_groups):
        return state  # which torch refuses
    groups = [
        {**own, **saved, **{key: own[key] for key in _OF_THE_PROGRAM if key in own}}
        for own, saved in zip(optimizer.param_groups, state["param_groups"], strict=True)
    ]
    return {**state, "param_groups": groups}
