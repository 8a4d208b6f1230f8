"""LARC: layer-wise adaptive rate control, the LARS of NVIDIA's apex (apex.parallel.LARC)."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from raysl.config.ranges import Positive, Within
from raysl.optim.layerwise import LayerwiseSGD, norms
from raysl.optim.sgd import SGD


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

    group_settings = ("nesterov", "trust_coefficient", "clip", "eps")

    @dataclass(frozen=True, kw_only=True)
    class Config(SGD.Config):
        """Settings of LARC."""

        name: str = "larc"
        exclude_norm_and_bias: bool = False
        """Exclude one-dimensional parameters (biases, normalisation) from weight decay and layer-wise scaling."""
        trust_coefficient: Positive = 0.001
        """Norm of a layer's update as a share of its weights' norm at learning rate 1 (eta in the paper)."""
        clip: bool = False
        """Use the layer's rate only if it is below the learning rate; other layers use the learning rate."""
        eps: Annotated[float, Within(0, 1)] = 1e-8
        """Added to the norms in the denominator of the layer's rate."""

    def updates(self, params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Return decayed gradients times the rate of their tensor; the rate applies to the decay too."""
        decay = group["weight_decay"]
        if not group["layer_scaling"]:
            return list(torch._foreach_add(grads, params, alpha=decay)) if decay != 0 else grads
        weight_norms, grad_norms = norms(params), norms(grads)  # [number of tensors]
        rates = group["trust_coefficient"] * weight_norms / (grad_norms + decay * weight_norms + group["eps"])
        if group["clip"]:
            # updates are multiplied by lr later, so that the smaller one of rate and lr acts in the end
            rates = (rates / group["lr"]).clamp(max=1.0)
        is_scaled = (weight_norms > 0) & (grad_norms > 0)
        decays = torch.where(is_scaled, decay * rates, 0.0)
        updates = list(torch._foreach_mul(grads, torch.where(is_scaled, rates, 1.0).unbind()))
        torch._foreach_add_(updates, torch._foreach_mul(params, decays.unbind()))
        return updates
