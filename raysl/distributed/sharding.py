"""Weights, gradients and the state of an optimizer of which each rank holds a share.

By torch's FSDP2 (`fully_shard`; Zhao et al. 2023, arXiv 2304.11277) and ZeroRedundancyOptimizer (stage 1 of ZeRO,
Rajbhandari et al. 2020, arXiv 1910.02054). `whole` puts tensors together for a checkpoint, which knows of no shares,
and `shared_as` takes them apart again, at any number of ranks.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from raysl.distributed.collectives import is_main, world


class _Kind:
    """A class of torch's whose import takes half a second: nothing is one before somebody has imported it."""

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def kind(self) -> Any:
        return getattr(sys.modules[self.module], self.name) if self.module in sys.modules else ()


_SHARE = _Kind("torch.distributed.tensor", "DTensor")
_FSDP = _Kind("torch.distributed.fsdp", "FSDPModule")
_ZERO = _Kind("torch.distributed.optim", "ZeroRedundancyOptimizer")


def shard(module: nn.Module, units: Iterable[nn.Module], device: torch.device) -> None:
    """Leave each rank a share of every parameter, in place; backward averages gradients over ranks.

    A unit's parameters are put together while it computes; those of no unit, while the module does. A parameter may be
    on the CPU before: one unit at a time moves to the device.

    Args:
        module: with the same parameters on every rank.
        units: modules inside it that it calls.
        device: to compute on.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world(),))
    for unit in units:
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)
    fully_shard(module, mesh=mesh, reshard_after_forward=True)


def is_sharded(module: nn.Module) -> bool:
    """Whether ranks hold shares of the module's parameters."""
    return isinstance(module, _FSDP.kind())


@contextmanager
def without_exchange(module: nn.Module) -> Iterator[None]:
    """While it is open, backward passes add up gradients of this rank alone; the next one after it exchanges them."""
    if isinstance(module, DistributedDataParallel):
        with module.no_sync():
            yield
    elif isinstance(module, _FSDP.kind()):
        module.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            module.set_requires_gradient_sync(True)
    else:
        yield


def shared_optimizer(make: type[Any], groups: list[dict[str, Any]], config: Any) -> Optimizer:
    """An optimizer that keeps state for a share of the parameters on each rank, and tells the others what it made.

    Args:
        make: a class, which takes groups and a config.
        groups: of all parameters.
        config: of the optimizer.
    """
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(groups, make, config=config)


def local(tensor: Tensor) -> Tensor:
    """This rank's share of a tensor; the tensor where it has none."""
    return tensor.to_local() if isinstance(tensor, _SHARE.kind()) else tensor


def whole(tree: Any, on_all: bool = False) -> Any:
    """Dicts and lists with their tensors put together on the CPU, where ranks hold shares of them.

    Every rank calls it, the main one gets them, or all do. Others get nothing in their place; what is not shared stays
    as it is.
    """
    return _whole(tree, on_all) if any(isinstance(leaf, _SHARE.kind()) for leaf in tree_leaves(tree)) else tree


def _whole(tree: Any, on_all: bool) -> Any:
    if isinstance(tree, _SHARE.kind()):
        full = tree.full_tensor()
        return full.cpu() if on_all or is_main() else None
    if isinstance(tree, Mapping):
        return {key: _whole(value, on_all) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_whole(value, on_all) for value in tree)
    return tree


def shared_as(module: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """A whole state dict with this rank's share of each tensor, cut as those of the module are."""
    if not is_sharded(module):
        return state
    own = module.state_dict()
    return {name: _shared_like(tensor, own.get(name, tensor)) for name, tensor in state.items()}


def _shared_like(tensor: Tensor, model: Tensor) -> Tensor:
    if not isinstance(model, _SHARE.kind()) or tensor.shape != model.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(model.device), model.device_mesh, model.placements, src_data_rank=None)


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """The state of an optimizer, whole, on the main rank; every rank calls it."""
    if isinstance(optimizer, _ZERO.kind()):
        optimizer.consolidate_state_dict(to=0)
        return optimizer.state_dict() if is_main() else {}
    found: dict[str, Any] = whole(optimizer.state_dict())
    return found


def load_optimizer_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Take back what `optimizer_state` gave, at any number of ranks and with or without shares.

    Raises:
        ValueError: if it is of other parameters.
    """
    params: Sequence[Tensor] = [param for group in optimizer.param_groups for param in group["params"]]
    shared = {
        place: {
            key: _shared_like(value, params[place]) if isinstance(value, Tensor) and place < len(params) else value
            for key, value in values.items()
        }
        for place, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": shared})
