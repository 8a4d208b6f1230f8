"""LAMB: Large Batch Optimization for Deep Learning (You, Li, Reddi et al. 2019, arXiv 1904.00962)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from typing_extensions import override

from raysl.config.ranges import Within
from raysl.optim.adam import Adam
from raysl.optim.layerwise import Layerwise, norms, trust_ratios


class LAMB(Layerwise):
    """AdamW in which every weight tensor moves by a share of its norm, the learning rate.

    For a parameter w with gradient g at update t: m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
    d = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * w; where the group has `layer_scaling`,
    d *= |w| / |d|, unless either norm is 0; w -= lr * d (algorithm 2). timm's clips gradients itself, raysl by
    `train.clip_grad`.

    >>> weights = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> weights.grad = torch.tensor([0.0, 2.0])
    >>> LAMB([{"params": [weights]}], LAMB.Config(lr=0.1, weight_decay=0.0)).step()
    >>> weights.data  # moved by a tenth of its norm 5
    tensor([3.0000, 3.5000])
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Adam.Config):
        """Settings of LAMB."""

        name: str = "lamb"
        eps: Annotated[float, Within(0, 1)] = 1e-6
        """Added to the root of the mean square, against division by 0."""
        weight_decay: Annotated[float, Within(0, 1000)] = 0.01
        """Share of the weights that is added to each update before its norm is taken."""

    def __init__(self, params: Iterable[dict[str, Any]], config: Config) -> None:
        held = {name: getattr(config, name) for name in ("lr", "betas", "eps", "weight_decay")}
        super().__init__(params, {"layer_scaling": True} | held)

    @override
    def move(self, params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        means, squares, steps = ([self._held(each)[name] for each in params] for name in ("mean", "square", "step"))
        beta1, beta2 = group["betas"]
        torch._foreach_add_(steps, 1)
        counts = [int(step) for step in steps]  # on the CPU, as those of torch's Adam
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        divisors = torch._foreach_sqrt(torch._foreach_div(squares, [1 - beta2**count for count in counts]))
        torch._foreach_add_(divisors, group["eps"])
        updates = list(torch._foreach_div(means, [1 - beta1**count for count in counts]))
        torch._foreach_div_(updates, divisors)
        if group["weight_decay"] != 0:
            torch._foreach_add_(updates, params, alpha=group["weight_decay"])
        if group["layer_scaling"]:
            torch._foreach_mul_(updates, trust_ratios(norms(params), norms(updates)))
        torch._foreach_add_(params, updates, alpha=-group["lr"])

    def _held(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return the running means of a parameter's gradient and of its square, and its number of updates."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            # torch moves a state of another name to the parameter's device when it is loaded
            state["step"] = torch.zeros((), device="cpu")
        return state
