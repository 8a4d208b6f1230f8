"""What a contrastive loss needs of all pairs of embeddings, with memory linear in their number."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

AT_ONCE = 2**22
"""Products held at a time: 16 MB in float32."""
MOST_KEPT = 2**24
"""Up to so many, all are kept for the backward pass; more are computed anew in it."""


def log_sum_exp(anchors: Tensor, keys: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
    """log of the sum of exp(anchor . key) over the keys that count, for each anchor, and the products with the others.

    No more than 64 MB are held beyond what goes in and out, in float32: with more products than fit, rows of them are
    made a few at a time, and once more in the backward pass. Gradients can be taken once, of anchors and keys.

    Args:
        anchors: [A, D], each already divided by the temperature where there is one.
        keys: [M, D], of the same type.
        left_out: int64 [A, E], the places of the keys that do not count for each anchor, all different; one at least
            must count.

    Returns:
        The logarithms [A], and anchor . key of those left out [A, E].
    """
    return _LogSumExp.apply(anchors, keys, left_out)  # type: ignore[no-any-return]


@torch.no_grad()
def is_nearer(anchors: Tensor, keys: Tensor, left_out: Tensor) -> Tensor:
    """Whether each left-out key has a larger product with its anchor than all keys that count have, bool [A, E].

    Arguments are those of `log_sum_exp`; memory is too.
    """
    found = torch.empty(left_out.shape, dtype=torch.bool, device=anchors.device)
    for part, products in _products(anchors, keys):
        near = products.gather(1, left_out[part])  # [a, E], of the very products that they are compared with
        found[part] = near > _masked(products, left_out[part]).amax(dim=1, keepdim=True)
    return found


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchors: Tensor, keys: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
        most, total, left = anchors.new_empty(len(anchors), 1), anchors.new_empty(len(anchors), 1), []
        is_kept = len(anchors) * len(keys) <= MOST_KEPT and any(ctx.needs_input_grad)
        kept: list[Tensor] = []
        for part, products in _products(anchors, keys):
            left.append(products.gather(1, left_out[part]))
            most[part] = _masked(products, left_out[part]).amax(dim=1, keepdim=True)
            weights = products.sub_(most[part]).exp_()  # [a, M], of the keys in their sum
            total[part] = weights.sum(dim=1, keepdim=True)
            if is_kept:
                kept.append(weights)
        ctx.save_for_backward(anchors, keys, left_out, most, total, *kept)
        return (most + total.log())[:, 0], torch.cat(left) if left else anchors.new_empty(left_out.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_sums: Tensor, grad_left: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        anchors, keys, left_out, most, total, *kept = ctx.saved_tensors
        of_anchors, of_keys, _ = ctx.needs_input_grad
        grad_anchors = torch.empty_like(anchors) if of_anchors else None
        grad_keys = torch.zeros_like(keys) if of_keys else None
        scale = grad_sums[:, None] / total  # [A, 1]
        with torch.autocast(anchors.device.type, enabled=False):
            for part, weights in _kept(kept) if kept else _recomputed(anchors, keys, left_out, most):
                grad = (weights * scale[part]).scatter_(1, left_out[part], grad_left[part])  # [a, M]
                if grad_anchors is not None:
                    torch.mm(grad, keys, out=grad_anchors[part])
                if grad_keys is not None:
                    grad_keys.addmm_(grad.T, anchors[part])
        return grad_anchors, grad_keys, None


def _products(anchors: Tensor, keys: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Anchors a few at a time: which, and their products with all keys [a, M], in memory of their own."""
    for part in _parts(anchors, keys):
        yield part, anchors[part] @ keys.T


def _parts(anchors: Tensor, keys: Tensor) -> Iterator[slice]:
    num = max(AT_ONCE // len(keys), 1)
    for first in range(0, len(anchors), num):
        yield slice(first, first + num)


def _masked(products: Tensor, left_out: Tensor) -> Tensor:
    return products.scatter_(1, left_out, -torch.inf)


def _kept(parts: list[Tensor]) -> Iterator[tuple[slice, Tensor]]:
    first = 0
    for weights in parts:
        yield slice(first, first + len(weights)), weights
        first += len(weights)


def _recomputed(anchors: Tensor, keys: Tensor, left_out: Tensor, most: Tensor) -> Iterator[tuple[slice, Tensor]]:
    for part, products in _products(anchors, keys):
        yield part, _masked(products, left_out[part]).sub_(most[part]).exp_()
