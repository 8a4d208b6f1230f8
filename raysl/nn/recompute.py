"""Activations that are recomputed in the backward pass instead of stored (Chen et al. 2016, arXiv 1604.06174)."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from raysl.nn.drop_path import draw_numbers, numbers_from


def recompute(modules: Iterable[nn.Module]) -> None:
    """Have each module store only its inputs in a forward pass with gradients, and run again for the backward pass.

    The second run repeats the first: random numbers are the same, drop path drops the same samples, and running
    statistics count a batch once. Parameters, buffers and their names stay as they are.

    >>> network = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    >>> recompute([network])
    >>> network(torch.zeros(2, 4)).shape
    torch.Size([2, 4])
    """
    for module in modules:
        if not isinstance(module, _Recomputed):
            module.__class__ = type(f"Recomputed{type(module).__name__}", (_Recomputed, type(module)), {})


class _Recomputed(nn.Module):
    """First base class of a module that stores no inner activations."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # without gradients nothing is stored, so there is nothing to compute again
        if not torch.is_grad_enabled():
            return super().__call__(*args, **kwargs)
        draws: list[Tensor] = []

        def record(x: Tensor, slot: int) -> Tensor:
            draws.append(draw_numbers(x, slot))
            return draws[-1]

        return checkpoint(
            super().__call__,
            *args,
            use_reentrant=False,
            context_fn=lambda: (numbers_from(record), _second_run(self, draws)),
            **kwargs,
        )


@contextmanager
def _second_run(module: nn.Module, draws: list[Tensor]) -> Iterator[None]:
    """Replace running statistics by copies while it is open, and repeat the random numbers.

    The copies are needed: without running statistics, autograd would store fewer tensors than in the first run.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
    originals = [dict(layer.named_buffers(recurse=False)) for layer in layers]
    for layer, buffers in zip(layers, originals, strict=True):
        for name, buffer in buffers.items():
            setattr(layer, name, buffer.clone())
    again = iter(draws)
    try:
        with numbers_from(lambda x, slot: next(again)):
            yield
    finally:
        for layer, buffers in zip(layers, originals, strict=True):
            for name, buffer in buffers.items():
                setattr(layer, name, buffer)
