"""LARS: Large Batch Training of Convolutional Networks (You, Gitman and Ginsburg 2017, arXiv 1708.03888)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raysl.config.ranges import Momentum, Positive
from raysl.config.schema import OptimConfig
from raysl.optim.layerwise import LayerwiseSGD, norms, trust_ratios


class LARS(LayerwiseSGD):
    """SGD with momentum in which every weight tensor moves by a fixed share of its norm.

    For a parameter w with gradient g: d = g + weight_decay * w; where the group has `layer_scaling`,
    d *= trust_coefficient * |w| / |d|, unless either norm is 0; m = momentum * m + d; w -= lr * m.
    With `separate_norms` the divisor is |g| + weight_decay * |w|, as in the paper (algorithm 1); self-supervised
    methods use the norm of the sum.

    >>> weights = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> weights.grad = torch.tensor([0.0, 2.0])
    >>> LARS([{"params": [weights]}], LARS.Config(lr=1.0, weight_decay=0.0, trust_coefficient=0.1)).step()
    >>> weights.data  # moved by a tenth of its norm 5
    tensor([3.0000, 3.5000])
    """

    group_settings = ("trust_coefficient", "separate_norms")

    @dataclass(frozen=True, kw_only=True)
    class Config(OptimConfig):
        """Settings of LARS."""

        name: str = "lars"
        momentum: Momentum = 0.9
        """Share of the last update that the next one keeps."""
        trust_coefficient: Positive = 0.001
        """Norm of a layer's update as a share of its weights' norm at learning rate 1 (eta in the paper)."""
        separate_norms: bool = False
        """Divide by |g| + weight_decay * |w|, as in the paper, lightly and solo-learn, instead of the norm of the
        sum."""

    def updates(self, params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Return decayed gradients, scaled to the norm trust_coefficient * |w|, or at most that with separate norms,
        unless the update or the weight is 0."""
        decay = group["weight_decay"]
        updates = list(torch._foreach_add(grads, params, alpha=decay)) if decay != 0 else grads
        if not group["layer_scaling"]:
            return updates
        weight_norms = norms(params)  # [number of tensors]
        lengths = norms(grads) + decay * weight_norms if group["separate_norms"] else norms(updates)
        return list(torch._foreach_mul(updates, trust_ratios(weight_norms, lengths, group["trust_coefficient"])))
