"""Gradients averaged over ranks during the backward pass, by torch's DistributedDataParallel (DDP)."""

import inspect
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from raysl.distributed.ranks import world
from raysl.distributed.sharding import is_sharded

Compression = Literal["fp16", "bf16"]


def data_parallel(
    module: nn.Module,
    bucket_mb: float | None = None,
    is_static: bool = False,
    compression: Compression | None = None,
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
