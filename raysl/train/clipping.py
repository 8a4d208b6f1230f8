"""Clipping of the gradient by its norm: of all weights together, of each part, or of each tensor by itself."""

import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.plan.plan import ClipOver


def clip_norm(model: nn.Module, largest: float, over: ClipOver = "model") -> None:
    """Scale gradients down, in place, where their norm is above `largest`. Every rank calls it.

    Args:
        model: whose parameters have gradients, or shares of them.
        largest: norm that stays.
        over: "model" clips the norm of all gradients together, "part" that of each child of the model, and of the
            parameters that are of none, "tensor" that of each parameter.
    """
    if over == "tensor":
        _clip_each([parameter.grad for parameter in model.parameters() if parameter.grad is not None], largest)
        return
    of_no_child = list(model.parameters(recurse=False))
    parts = [of_no_child, *(list(child.parameters()) for child in model.children())]
    for part in [list(model.parameters())] if over == "model" else parts:
        nn.utils.clip_grad_norm_(part, largest)


def _clip_each(grads: list[Tensor], largest: float) -> None:
    if not grads:
        return
    shares = [dist.local(grad) for grad in grads]
    norms = torch.stack(torch._foreach_norm(shares))
    if any(share is not grad for share, grad in zip(shares, grads, strict=True)):
        norms = dist.all_sum(norms.square()).sqrt()
    scales = (largest / (norms + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(shares, list(scales.unbind()))
