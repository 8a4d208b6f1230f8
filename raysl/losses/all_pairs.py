"""Sums over all pairs of embeddings for contrastive losses, with memory linear in the number of embeddings."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

AT_ONCE = 2**22
"""Number of products held at a time: 16 MB in float32. A GPU of more than 16 GB holds more, a 1,024th of its memory."""
MOST_STORED = 2**24
"""Largest number of products stored for the backward pass; more than that are computed again. A GPU stores up to a 64th
of its memory."""


def log_sum_exp(anchors: Tensor, keys: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each anchor the log of the sum of exp(anchor . key) over the keys that count, and the other products.

    Beyond inputs and outputs at most 64 MB are held in float32, on a GPU a 64th of its memory: if the products do not
    fit, a few rows are computed at a time, and again in the backward pass. Gradients can be taken once, for anchors and
    keys.

    >>> log_sum_exp(torch.zeros(1, 2), torch.zeros(3, 2), left_out=torch.tensor([[0]]))  # log 2
    (tensor([0.6931]), tensor([[0.]]))

    Args:
        anchors: [A, D], already divided by the temperature, if any.
        keys: [M, D], of the same type.
        left_out: int64 [A, E], indices of the keys that do not count for each anchor, all different; at least one key
            must count.

    Returns:
        The logarithms [A], and anchor . key for the keys left out [A, E].
    """
    return _LogSumExp.apply(anchors, keys, left_out)  # type: ignore[no-any-return]


@torch.no_grad()
def is_nearer(anchors: Tensor, keys: Tensor, left_out: Tensor) -> Tensor:
    """Return whether each left-out key has a larger product with its anchor than every key that counts, bool [A, E].

    Arguments and memory are those of `log_sum_exp`.
    """
    is_near = torch.empty(left_out.shape, dtype=torch.bool, device=anchors.device)
    for part, products in _products(anchors, keys):
        near = products.gather(1, left_out[part])  # [a, E], bit for bit among those it is compared with
        is_near[part] = near > _masked(products, left_out[part]).amax(dim=1, keepdim=True)
    return is_near


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchors: Tensor, keys: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
        most, total, excluded = anchors.new_empty(len(anchors), 1), anchors.new_empty(len(anchors), 1), []
        most_stored = _share_of_memory(anchors.device, 64, MOST_STORED)
        is_stored = len(anchors) * len(keys) <= most_stored and any(ctx.needs_input_grad)
        stored: list[Tensor] = []
        for part, products in _products(anchors, keys):
            # read first: the next line overwrites these products in place
            excluded.append(products.gather(1, left_out[part]))
            most[part] = _masked(products, left_out[part]).amax(dim=1, keepdim=True)
            weights = products.sub_(most[part]).exp_()  # [a, M], shares of the sum before its normalisation
            total[part] = weights.sum(dim=1, keepdim=True)
            if is_stored:
                stored.append(weights)
        ctx.save_for_backward(anchors, keys, left_out, most, total, *stored)
        return (most + total.log())[:, 0], torch.cat(excluded) if excluded else anchors.new_empty(left_out.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_sums: Tensor, grad_left: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        anchors, keys, left_out, most, total, *stored = ctx.saved_tensors
        needs_anchors, needs_keys, _ = ctx.needs_input_grad
        grad_anchors = torch.empty_like(anchors) if needs_anchors else None
        grad_keys = torch.zeros_like(keys) if needs_keys else None
        scale = grad_sums[:, None] / total  # [A, 1]
        with torch.autocast(anchors.device.type, enabled=False):
            for part, weights in _stored_weights(stored) if stored else _recomputed(anchors, keys, left_out, most):
                # gradient by the products: shares of the sum, and for a left-out key that of its own product
                grad = (weights * scale[part]).scatter_(1, left_out[part], grad_left[part])  # [a, M]
                if grad_anchors is not None:
                    torch.mm(grad, keys, out=grad_anchors[part])
                if grad_keys is not None:
                    grad_keys.addmm_(grad.T, anchors[part])
        return grad_anchors, grad_keys, None


def _products(anchors: Tensor, keys: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of the anchors and their products with all keys [a, M], each in fresh memory."""
    for part in _parts(anchors, keys):
        yield part, anchors[part] @ keys.T


def _parts(anchors: Tensor, keys: Tensor) -> Iterator[slice]:
    num = max(_share_of_memory(anchors.device, 1024, AT_ONCE) // len(keys), 1)
    for first in range(0, len(anchors), num):
        yield slice(first, first + num)


def _share_of_memory(device: torch.device, parts: int, least: int) -> int:
    """Return how many float32 numbers fit into one of `parts` equal parts of a GPU's memory, at least `least`."""
    if device.type != "cuda":
        return least
    num_bytes: int = torch.cuda.get_device_properties(device).total_memory
    return max(num_bytes // parts // 4, least)


def _masked(products: Tensor, left_out: Tensor) -> Tensor:
    return products.scatter_(1, left_out, -torch.inf)


def _stored_weights(parts: list[Tensor]) -> Iterator[tuple[slice, Tensor]]:
    first = 0
    for weights in parts:
        yield slice(first, first + len(weights)), weights
        first += len(weights)


def _recomputed(anchors: Tensor, keys: Tensor, left_out: Tensor, most: Tensor) -> Iterator[tuple[slice, Tensor]]:
    for part, products in _products(anchors, keys):
        yield part, _masked(products, left_out[part]).sub_(most[part]).exp_()
