"""LARC: layer-wise adaptive rate control, the LARS of NVIDIA's apex (apex.parallel.LARC)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from raysl.config.ranges import Momentum, Positive, Within
from raysl.config.schema import OptimConfig
from raysl.optim.layerwise import LayerwiseSGD, norms


class LARC(LayerwiseSGD):
    """SGD with momentum and a learning rate per tensor, computed from the norms of its weights and its gradient.

    For a parameter w with gradient g: a = trust_coefficient * |w| / (|g| + weight_decay * |w| + eps), with `clip`
    min(a / lr, 1) in place of a; d = a * (g + weight_decay * w), but d = g, without decay, where |w| or |g| is 0;
    m = momentum * m + d; w -= lr * m. Groups without `layer_scaling` follow SGD: d = g + weight_decay * w.

    >>> weights = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> weights.grad = torch.tensor([0.0, 2.0])
    >>> LARC([{"params": [weights]}], LARC.Config(lr=1.0, weight_decay=0.0, trust_coefficient=0.1, eps=0.0)).step()
    >>> weights.data  # moved by a tenth of its norm 5
    tensor([3.0000, 3.5000])
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(OptimConfig):
        """Settings of LARC."""

        name: str = "larc"
        exclude_norm_and_bias: bool = False
        """Exclude one-dimensional parameters (biases, normalisation) from weight decay and layer-wise scaling."""
        momentum: Momentum = 0.9
        """Share of the last update that the next one keeps."""
        nesterov: bool = False
        """Use Nesterov's momentum."""
        trust_coefficient: Positive = 0.001
        """Norm of a layer's update as a share of its weights' norm at learning rate 1 (eta in the paper)."""
        clip: bool = False
        """Use the layer's rate only if it is below the learning rate; other layers use the learning rate."""
        eps: Annotated[float, Within(0, 1)] = 1e-8
        """Added to the norms in the denominator of the layer's rate."""

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
        """Return decayed gradients times the rate of their tensor; the rate applies to the decay too."""
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
