"""Base classes of LARS, LARC and LAMB, whose updates are scaled tensor by tensor."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from raysl.config.schema import OptimConfig
from raysl.optim.plain import Plain, can_fuse


class Layerwise(Plain, ABC):
    """An optimizer that updates all parameters of a group together."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient, and return the result of `closure`, if any."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [parameter for parameter in group["params"] if parameter.grad is not None]
            if params:
                self.move(params, [parameter.grad for parameter in params if parameter.grad is not None], group)
        return loss

    @abstractmethod
    def move(self, params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        """Update parameters of a group by their gradients, which are not written to."""


class LayerwiseSGD(Layerwise, ABC):
    """SGD with momentum over updates d that a subclass computes from gradients: m = momentum * m + d; w -= lr * m.

    With `nesterov` in a group, w -= lr * (d + momentum * m). All parameters of a group are updated together. On a GPU a
    step in fp16 that overflows is left out there, so that the host does not wait to know.
    """

    found_inf: Tensor | None = None
    """1 if a gradient overflowed, else 0: `torch.amp.GradScaler` sets it for a step."""

    group_settings: ClassVar[tuple[str, ...]]
    """Settings that groups hold beside learning rate, momentum and weight decay."""

    def __init__(self, params: Iterable[dict[str, Any]], config: OptimConfig) -> None:
        held = {name: getattr(config, name) for name in ("lr", "momentum", "weight_decay", *self.group_settings)}
        super().__init__(params, {"nesterov": False, "layer_scaling": True} | held)
        every = (parameter for group in self.param_groups for parameter in group["params"])
        self._step_supports_amp_scaling = can_fuse(every)

    @abstractmethod
    def updates(self, params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Return the update d of each parameter; gradients are not written to."""

    @override
    def move(self, params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        updates = self.updates(params, grads, group)
        momenta = [self._momentum(parameter) for parameter in params]
        if self.found_inf is not None:
            _move_unless(self.found_inf, params, updates, momenta, group)
            return
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


def _move_unless(
    found_inf: Tensor, params: list[Tensor], updates: list[Tensor], momenta: list[Tensor], group: dict[str, Any]
) -> None:
    """Update parameters and momenta by torch's fused SGD, which changes nothing where `found_inf` is 1."""
    torch._fused_sgd_(
        params,
        updates,
        momenta,
        weight_decay=0.0,
        momentum=group["momentum"],
        lr=group["lr"],
        dampening=0.0,
        nesterov=group["nesterov"],
        maximize=False,
        is_first_step=False,
        found_inf=found_inf,
    )


def norms(tensors: list[Tensor]) -> Tensor:
    """Return the norm of each tensor [number of tensors].

    >>> norms([torch.tensor([3.0, 4.0]), torch.zeros(2)])
    tensor([5., 0.])
    """
    return torch.stack(torch._foreach_norm(tensors))


def trust_ratios(weight_norms: Tensor, lengths: Tensor, coefficient: float = 1.0) -> list[Tensor]:
    """Return the factors that bring updates to `coefficient` times their weights' norm, 1 where either norm is 0.

    >>> trust_ratios(torch.tensor([5.0, 0.0]), torch.tensor([2.0, 2.0]))
    [tensor(2.5000), tensor(1.)]

    Args:
        weight_norms: norms of weights [number of tensors].
        lengths: norms of their updates [number of tensors].
        coefficient: wanted norm of an update as a share of that of its weights.
    """
    is_scaled = (weight_norms > 0) & (lengths > 0)
    return list(torch.where(is_scaled, coefficient * weight_norms / lengths, 1.0).unbind())
