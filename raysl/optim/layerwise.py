"""What LARS and LARC share: SGD with momentum, the updates of which are scaled tensor by tensor."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class LayerwiseSGD(Optimizer, ABC):
    """SGD with momentum over updates that a subclass makes of gradients: m = momentum * m + d; w -= lr * m.

    With `nesterov` in a group, w -= lr * (d + momentum * m). All parameters of a group are worked on together.
    """

    @abstractmethod
    def updates(self, params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """The update d of each parameter; gradients are left as they are."""

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
        grads = [parameter.grad for parameter in params if parameter.grad is not None]
        updates = self.updates(params, grads, group)
        momenta = [self._momentum(parameter) for parameter in params]
        torch._foreach_mul_(momenta, group["momentum"])
        torch._foreach_add_(momenta, updates)
        if group["nesterov"]:
            momenta = list(torch._foreach_add(updates, momenta, alpha=group["momentum"]))
        torch._foreach_add_(params, momenta, alpha=-group["lr"])

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum"]
        return momentum


def norms(tensors: list[Tensor]) -> Tensor:
    """Length of each tensor [number of tensors]."""
    return torch.stack(torch._foreach_norm(tensors))
