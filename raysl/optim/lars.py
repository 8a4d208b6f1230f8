"""LARS: Large Batch Training of Convolutional Networks (You, Gitman and Ginsburg 2017, arXiv 1708.03888)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from raysl.config.ranges import Momentum, Positive
from raysl.config.schema import OptimConfig


class LARS(Optimizer):
    """SGD with momentum in which every weight tensor moves by a fixed share of its own norm.

    For a parameter w with gradient g: d = g + weight_decay * w; where the group has `layer_scaling`,
    d *= trust_coefficient * |w| / |d|, left alone where either norm is 0; m = momentum * m + d; w -= lr * m.
    The paper divides by |g| + weight_decay * |w| instead (algorithm 1); self-supervised methods are trained with the
    norm of the sum.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(OptimConfig):
        """Settings of LARS."""

        name: str = "lars"
        momentum: Momentum = 0.9
        """Share of the last update that goes on."""
        trust_coefficient: Positive = 0.001
        """Length of a layer's update as a share of its weights' norm, at learning rate 1 (eta in the paper)."""

    def __init__(self, params: Iterable[dict[str, Any]], config: Config) -> None:
        defaults = {
            "lr": config.lr,
            "momentum": config.momentum,
            "weight_decay": config.weight_decay,
            "trust_coefficient": config.trust_coefficient,
            "layer_scaling": True,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the parameters that have a gradient; returns what `closure`, if any, gives."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [parameter for parameter in group["params"] if parameter.grad is not None]
            if params:
                self._move(params, group)
        return loss

    def _move(self, params: list[Tensor], group: dict[str, Any]) -> None:
        updates = [parameter.grad for parameter in params if parameter.grad is not None]
        if group["weight_decay"] != 0:
            updates = list(torch._foreach_add(updates, params, alpha=group["weight_decay"]))
        if group["layer_scaling"]:
            updates = _scaled(params, updates, group["trust_coefficient"])
        momenta = [self._momentum(parameter) for parameter in params]
        torch._foreach_mul_(momenta, group["momentum"])
        torch._foreach_add_(momenta, updates)
        torch._foreach_add_(params, momenta, alpha=-group["lr"])

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum"]
        return momentum


def _scaled(params: list[Tensor], updates: list[Tensor], trust_coefficient: float) -> list[Tensor]:
    """Updates brought to the length trust_coefficient * |w|, unless the update or the weight is 0."""
    weight_norms = torch.stack(torch._foreach_norm(params))  # [number of tensors]
    update_norms = torch.stack(torch._foreach_norm(updates))
    is_scaled = (weight_norms > 0) & (update_norms > 0)
    ratios = torch.where(is_scaled, trust_coefficient * weight_norms / update_norms, 1.0)
    return list(torch._foreach_mul(updates, ratios.unbind()))
