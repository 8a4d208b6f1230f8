"""LARC: layer-wise adaptive rate control, LARS as NVIDIA's apex has it (apex.parallel.LARC)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from raysl.config.ranges import Momentum, Positive, Within
from raysl.config.schema import OptimConfig
from raysl.optim.layerwise import LayerwiseSGD, norms


class LARC(LayerwiseSGD):
    """SGD with momentum in which every tensor has a rate of its own, from the norms of its weights and its gradient.

    For a parameter w with gradient g: a = trust_coefficient * |w| / (|g| + weight_decay * |w| + eps), with `clip`
    min(a / lr, 1) in place of a; d = a * (g + weight_decay * w), but d = g, without decay, where |w| or |g| is 0;
    m = momentum * m + d; w -= lr * m. Groups without `layer_scaling` are those of SGD: d = g + weight_decay * w.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(OptimConfig):
        """Settings of LARC."""

        name: str = "larc"
        exclude_norm_and_bias: bool = False
        """Leave one-dimensional parameters (biases, normalisation) out of weight decay and of layer-wise scaling."""
        momentum: Momentum = 0.9
        """Share of the last update that goes on."""
        nesterov: bool = False
        """Take the gradient where the momentum leads."""
        trust_coefficient: Positive = 0.001
        """Length of a layer's update as a share of its weights' norm, at learning rate 1 (eta in the paper)."""
        clip: bool = False
        """Take the layer's own rate only where it is below the learning rate, which is then the rate of all others."""
        eps: Annotated[float, Within(0, 1)] = 1e-8
        """Added to the norms that the layer's rate is divided by."""

        def __post_init__(self) -> None:
            if self.nesterov and self.momentum == 0:
                raise ValueError("nesterov needs a momentum; set optim.momentum=0.9, or optim.nesterov=false")

    def __init__(self, params: Iterable[dict[str, Any]], config: Config) -> None:
        defaults = {
            "lr": config.lr,
            "momentum": config.momentum,
            "nesterov": config.nesterov,
            "weight_decay": config.weight_decay,
            "trust_coefficient": config.trust_coefficient,
            "clip": config.clip,
            "eps": config.eps,
            "layer_scaling": True,
        }
        super().__init__(params, defaults)

    def updates(self, params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Decayed gradients times the rate of their tensor; the decay is inside what the rate adapts."""
        decay = group["weight_decay"]
        if not group["layer_scaling"]:
            return list(torch._foreach_add(grads, params, alpha=decay)) if decay != 0 else grads
        weight_norms, grad_norms = norms(params), norms(grads)  # [number of tensors]
        rates = group["trust_coefficient"] * weight_norms / (grad_norms + decay * weight_norms + group["eps"])
        if group["clip"]:
            rates = (rates / group["lr"]).clamp(max=1.0)
        is_scaled = (weight_norms > 0) & (grad_norms > 0)
        decays = torch.where(is_scaled, decay * rates, 0.0)
        updates = list(torch._foreach_mul(grads, torch.where(is_scaled, rates, 1.0).unbind()))
        torch._foreach_add_(updates, torch._foreach_mul(params, decays.unbind()))
        return updates
