"""LARS: Large Batch Training of Convolutional Networks (You, Gitman and Ginsburg 2017, arXiv 1708.03888)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raysl.config.ranges import Momentum, Positive
from raysl.config.schema import OptimConfig
from raysl.optim.layerwise import LayerwiseSGD, norms


class LARS(LayerwiseSGD):
    """SGD with momentum in which every weight tensor moves by a fixed share of its own norm.

    For a parameter w with gradient g: d = g + weight_decay * w; where the group has `layer_scaling`,
    d *= trust_coefficient * |w| / |d|, left alone where either norm is 0; m = momentum * m + d; w -= lr * m.
    The paper divides by |g| + weight_decay * |w| instead (algorithm 1), which is `separate_norms`; self-supervised
    methods are trained with the norm of the sum.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(OptimConfig):
        """Settings of LARS."""

        name: str = "lars"
        momentum: Momentum = 0.9
        """Share of the last update that goes on."""
        trust_coefficient: Positive = 0.001
        """Length of a layer's update as a share of its weights' norm, at learning rate 1 (eta in the paper)."""
        separate_norms: bool = False
        """Divide by |g| + weight_decay * |w|, as the paper, lightly and solo-learn do, not by the norm of the sum."""

    def __init__(self, params: Iterable[dict[str, Any]], config: Config) -> None:
        defaults = {
            "lr": config.lr,
            "momentum": config.momentum,
            "nesterov": False,
            "weight_decay": config.weight_decay,
            "trust_coefficient": config.trust_coefficient,
            "separate_norms": config.separate_norms,
            "layer_scaling": True,
        }
        super().__init__(params, defaults)

    def updates(self, params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Decayed gradients, brought to the length trust_coefficient * |w| unless the update or the weight is 0; of
        separate norms, to no more than that."""
        decay = group["weight_decay"]
        updates = list(torch._foreach_add(grads, params, alpha=decay)) if decay != 0 else grads
        if not group["layer_scaling"]:
            return updates
        weight_norms = norms(params)  # [number of tensors]
        lengths = norms(grads) + decay * weight_norms if group["separate_norms"] else norms(updates)
        is_scaled = (weight_norms > 0) & (lengths > 0)
        ratios = torch.where(is_scaled, group["trust_coefficient"] * weight_norms / lengths, 1.0)
        return list(torch._foreach_mul(updates, ratios.unbind()))
