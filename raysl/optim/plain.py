"""Optimizers of torch without torch's compiler, which they import at their first use though nothing is compiled.

torch wraps some methods of its optimizers so that its compiler leaves them alone, and the wrappers import the compiler:
more than a second of a start. The methods themselves, inside the wrappers, do not need it.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from raysl import distributed as dist


class Plain(Optimizer):
    """A base class that comes before an optimizer of torch, and calls its methods without their wrappers.

    >>> class SGD(Plain, torch.optim.SGD):
    ...     pass
    >>> optimizer = SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    >>> optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    >>> optimizer.step()
    >>> optimizer.param_groups[0]["params"][0].tolist()
    [0.8999999761581421, 0.8999999761581421]
    """

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        _ADD_GROUP(self, param_group)

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        _ZERO_GRAD(self, set_to_none)

    @override
    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = _STATE_DICT(self)
        return state

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        _LOAD_STATE_DICT(self, state_dict)

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        step: Any = super().step
        if torch.compiler.is_compiling():
            return step(closure)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return inspect.unwrap(step.__func__)(self, closure)


def can_fuse(params: Iterable[Tensor]) -> bool:
    """Return whether torch's fused SGD takes these parameters: on a GPU, but not shards, which it has no rule for."""
    return all(parameter.is_cuda and not dist.is_shard(parameter) for parameter in params)


_ADD_GROUP: Callable[..., None] = inspect.unwrap(Optimizer.add_param_group)
_ZERO_GRAD: Callable[..., None] = inspect.unwrap(Optimizer.zero_grad)
_STATE_DICT: Callable[..., dict[str, Any]] = inspect.unwrap(Optimizer.state_dict)
_LOAD_STATE_DICT: Callable[..., None] = inspect.unwrap(Optimizer.load_state_dict)
