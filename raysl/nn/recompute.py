"""Activations that are computed again in the backward pass and not kept (Chen et al. 2016, arXiv 1604.06174)."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from raysl.nn.drop_path import drawn, drawn_by


def recompute(modules: Iterable[nn.Module]) -> None:
    """Have each module keep its inputs alone in a forward pass with gradients, and run again for the backward pass.

    The second run gives what the first one gave: random numbers are drawn alike, drop path leaves out the same samples,
    and running statistics count a batch once. Parameters, buffers and their names stay as they are.
    """
    for module in modules:
        if not isinstance(module, _Recomputed):
            module.__class__ = type(f"Recomputed{type(module).__name__}", (_Recomputed, type(module)), {})


class _Recomputed(nn.Module):
    """First base of a module that keeps no inner activations."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return super().__call__(*args, **kwargs)
        draws: list[Tensor] = []

        def kept(x: Tensor, place: int) -> Tensor:
            draws.append(drawn(x, place))
            return draws[-1]

        return checkpoint(
            super().__call__,
            *args,
            use_reentrant=False,
            context_fn=lambda: (drawn_by(kept), _second_run(self, draws)),
            **kwargs,
        )


@contextmanager
def _second_run(module: nn.Module, draws: list[Tensor]) -> Iterator[None]:
    """Running statistics are copies while it is open; without any, fewer tensors would be kept than the first time."""
    layers = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
    kept = [dict(layer.named_buffers(recurse=False)) for layer in layers]
    for layer, buffers in zip(layers, kept, strict=True):
        for name, buffer in buffers.items():
            setattr(layer, name, buffer.clone())
    again = iter(draws)
    try:
        with drawn_by(lambda x, place: next(again)):
            yield
    finally:
        for layer, buffers in zip(layers, kept, strict=True):
            for name, buffer in buffers.items():
                setattr(layer, name, buffer)
