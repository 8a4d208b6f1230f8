"""Gradients averaged over ranks, and weights, gradients and optimizer states that are sharded over them.

By torch's DistributedDataParallel (DDP), FSDP2 (`fully_shard`; Zhao et al. 2023, arXiv 2304.11277) and
ZeroRedundancyOptimizer (stage 1 of ZeRO, Rajbhandari et al. 2020, arXiv 1910.02054). `whole` assembles tensors for a
checkpoint, which has no shards, and `shard_like` shards them again, over any number of ranks.
"""

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from raysl.distributed.ranks import is_main, world

Compression = Literal["fp16", "bf16"]


def data_parallel(
    module: nn.Module, bucket_mb: float | None = None, is_static: bool = False, compression: Compression | None = None
) -> nn.Module:
    """Wrap a module so that backward averages its gradients over ranks; return the module itself on one process.

    DDP rearranges its buckets after the first backward pass. With three or more ranks that changes the order of sums,
    so a resumed run would differ from an uninterrupted one in the last bits. A backward pass through a sum of all
    parameters, whose result is discarded, settles the buckets before the first real step.

    DDP gets no `device_ids`, as batches are on the module's device already: with `device_ids` it would move its inputs,
    and fail where it is called without any.

    Args:
        bucket_mb: size of the parts in which gradients are exchanged, in MiB; default: torch's, 25.
        is_static: whether every step uses the same parameters in the same way, which lets DDP plan ahead.
        compression: type in which gradients are exchanged, with loss of precision; default: their own.
    """
    if world() == 1 or is_sharded(module):
        return module
    options: dict[str, Any] = {} if bucket_mb is None else {"bucket_cap_mb": bucket_mb}
    wrapped = DistributedDataParallel(
        _WarmedUp(module),
        static_graph=is_static,
        gradient_as_bucket_view=True,  # gradients are held once, in the buckets that are exchanged
        **_no_buffer_broadcast(),
        **options,
    )
    if compression is not None:
        hook = default_hooks.fp16_compress_hook if compression == "fp16" else default_hooks.bf16_compress_hook
        wrapped.register_comm_hook(None, hook)
    for _ in range(2):  # the buckets of the first pass are rebuilt at the start of the second
        wrapped().backward()
    module.zero_grad(set_to_none=True)
    return wrapped


def _no_buffer_broadcast() -> dict[str, Any]:
    names = inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers": False} if "forward_sync_buffers" in names else {"broadcast_buffers": False}


class _WarmedUp(nn.Module):
    """Calls the module; without arguments it sums the parameters, so that each gets a gradient."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        if args:
            return self.module(*args)
        return torch.stack([p.sum() * 0 for p in self.module.parameters() if p.requires_grad]).sum()


def _is_of(value: Any, module: str, name: str) -> TypeGuard[Any]:
    """Whether a value is of a class of torch whose import takes half a second; without the import it has no instances.

    A module that another thread is importing may not have the class yet.
    """
    return isinstance(value, getattr(sys.modules.get(f"torch.distributed.{module}"), name, ()))


def shard(module: nn.Module, units: Iterable[nn.Module], device: torch.device) -> None:
    """Shard every parameter over ranks, in place; backward averages gradients over ranks.

    A unit's parameters are assembled while it computes; parameters outside of units, while the module does. Parameters
    may be on the CPU before: one unit at a time moves to the device.

    Args:
        units: submodules that are assembled one at a time.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world(),))
    # units first: the module then takes the parameters that no unit holds
    for unit in units:
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)
    fully_shard(module, mesh=mesh, reshard_after_forward=True)


def is_sharded(module: nn.Module) -> TypeGuard[Any]:
    """Return whether the module's parameters are sharded."""
    return _is_of(module, "fsdp", "FSDPModule")


def is_shard(tensor: Tensor) -> TypeGuard[Any]:
    """Return whether a tensor is this rank's shard of a larger one."""
    return _is_of(tensor, "tensor", "DTensor")


@contextmanager
def without_exchange(module: nn.Module) -> Iterator[None]:
    """Let backward passes accumulate this rank's gradients only, while inside; the next one exchanges them."""
    if isinstance(module, DistributedDataParallel):
        with module.no_sync():
            yield
    elif is_sharded(module):
        module.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            module.set_requires_gradient_sync(True)
    else:
        yield


def shared_optimizer(make: type[Any], groups: list[dict[str, Any]], config: Any) -> Optimizer:
    """Build an optimizer that updates a share of the parameters on each rank and sends the results to the others."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(groups, make, config=config)


def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor itself if it is not sharded."""
    return tensor.to_local() if is_shard(tensor) else tensor


def whole(tree: Any, on_all: bool = False) -> Any:
    """Return dicts and lists with their sharded tensors assembled on the CPU; other values stay as they are.

    Every rank must call it. The main rank gets the tensors, or all ranks do; others get None in their place.
    """
    return _whole(tree, on_all) if any(is_shard(leaf) for leaf in tree_leaves(tree)) else tree


def _whole(tree: Any, on_all: bool) -> Any:
    if is_shard(tree):
        full = tree.full_tensor()
        return full.cpu() if on_all or is_main() else None
    if isinstance(tree, Mapping):
        return {key: _whole(value, on_all) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_whole(value, on_all) for value in tree)
    return tree


def shard_like(module: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """Shard the tensors of a whole state dict as those of the module are, and return this rank's shards."""
    if not is_sharded(module):
        return state
    sharded = module.state_dict()
    return {name: _shared_like(tensor, sharded.get(name, tensor)) for name, tensor in state.items()}


def _shared_like(tensor: Tensor, model: Tensor) -> Tensor:
    if not is_shard(model) or tensor.shape != model.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(model.device), model.device_mesh, model.placements, src_data_rank=None)


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """Return the whole state of an optimizer on the main rank; every rank must call it."""
    if _is_of(optimizer, "optim", "ZeroRedundancyOptimizer"):
        optimizer.consolidate_state_dict(to=0)
        return optimizer.state_dict() if is_main() else {}
    state: dict[str, Any] = whole(optimizer.state_dict())
    return state


def load_optimizer_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load a copy of a state from `optimizer_state`, at any number of ranks, sharded or not.

    Raises:
        ValueError: if the state belongs to other parameters.
    """
    params: Sequence[Tensor] = [param for group in optimizer.param_groups for param in group["params"]]
    shared = {
        index: {
            key: _state_like(value, params[index]) if isinstance(value, Tensor) and index < len(params) else value
            for key, value in values.items()
        }
        for index, values in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": shared})


def own_state(optimizer: Optimizer) -> MutableMapping[Tensor, dict[str, Any]]:
    """Return the state of the parameters that this rank updates, to be changed in place."""
    # a shared optimizer has one of its own for this rank's share; itself, it holds None for the shares of others
    local: Optimizer = optimizer.optim if _is_of(optimizer, "optim", "ZeroRedundancyOptimizer") else optimizer
    return local.state


def _state_like(value: Tensor, param: Tensor) -> Tensor:
    """Return a tensor of an optimizer's state as that of a parameter; never one that the optimizer would keep and that
    a file holds."""
    shared = _shared_like(value, param)
    # To another device the optimizer copies tensors, except single numbers, which stay on the CPU.
    is_kept = shared is value and (value.device == param.device or value.dim() == 0)
    return value.clone() if is_kept else shared
