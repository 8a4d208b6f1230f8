"""Build an optimizer from settings, and set its learning rate and weight decay before every step."""

from typing import Any

from torch.optim import Optimizer

from raysl import distributed as dist
from raysl.components import resolve
from raysl.config.schema import OptimConfig
from raysl.optim.course import lr_at as lr_at
from raysl.optim.course import peak_lr as peak_lr
from raysl.optim.course import weight_decay_at
from raysl.optim.groups import complete_groups, split_by_layer
from raysl.schedule import Step

_SETTINGS = (
    "lr_scale",
    "is_lr_constant",
    "weight_decay_scale",
    "weight_decay",
    "layer_scaling",
    "foreach",
    "fused",
    "decoupled_weight_decay",
)
"""Keys of a group that raysl sets before each step or at the start; all others may be state of the optimizer."""


def build_optimizer(
    method: Any, optim: OptimConfig, optimizer_class: type[Any] | None = None, is_shared: bool = False
) -> Optimizer:
    """Build the optimizer `optim.name` over `method.param_groups`; call `set_schedules` before every step.

    Loading a state keeps the groups' scales of the present settings, and keys of a group that a newer torch has added.

    Args:
        optimizer_class: the resolved class, for a name that is not known in this process.
        is_shared: whether each of several ranks keeps a share of the state.

    Raises:
        ConfigError: if there is no such optimizer, or the backbone lacks the layers that `optim.layer_decay` needs.
        ValueError: if the method's groups contradict themselves.
    """
    optimizer_class = optimizer_class or resolve("optimizer", optim.name)
    groups = complete_groups(split_by_layer(method.param_groups(optim), method.backbone, optim), optim)
    if is_shared and dist.world() > 1:
        optimizer = dist.shared_optimizer(optimizer_class, groups, optim)
    else:
        optimizer = optimizer_class(groups, optim)
    optimizer.register_load_state_dict_pre_hook(_keep_scales)
    return optimizer


def set_schedules(optimizer: Optimizer, optim: OptimConfig, step: Step, batch_size: int) -> None:
    """Set the learning rate and weight decay of every group for the update that starts at `step`.

    Each is the schedule's value, or the peak for groups with `is_lr_constant`, times the group's `lr_scale` or
    `weight_decay_scale`.
    """
    lr, weight_decay = lr_at(optim, step, batch_size), weight_decay_at(optim, step)
    peak = peak_lr(optim, batch_size)
    for group in optimizer.param_groups:
        group["lr"] = (peak if group["is_lr_constant"] else lr) * group["lr_scale"]
        if group["weight_decay_scale"] is not None:
            group["weight_decay"] = weight_decay * group["weight_decay_scale"]


def _keep_scales(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return a state whose groups have all keys of the optimizer's; torch would keep only the saved keys."""
    if len(state["param_groups"]) != len(optimizer.param_groups):
        return state  # torch refuses it with a message
    groups = [
        {**group, **saved, **{key: group[key] for key in _SETTINGS if key in group}}
        for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True)
    ]
    return {**state, "param_groups": groups}
