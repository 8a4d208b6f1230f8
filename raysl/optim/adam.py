"""Adam: A Method for Stochastic Optimization (Kingma and Ba 2015, arXiv 1412.6980), and AdamW."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch

from raysl.config.ranges import Momentum, Rising, Within
from raysl.config.schema import OptimConfig
from raysl.optim.plain import Plain


class Adam(Plain, torch.optim.Adam):
    """torch's Adam, set up by a config; weight decay is added to the gradient, unlike in AdamW. Fused on a GPU.

    >>> optimizer = Adam([{"params": [torch.nn.Parameter(torch.zeros(2))]}], Adam.Config(lr=0.1))
    >>> optimizer.param_groups[0]["lr"]
    0.1
    """

    is_decoupled: ClassVar[bool] = False
    """Whether weight decay is subtracted from the weights, not added to the gradient."""

    @dataclass(frozen=True, kw_only=True)
    class Config(OptimConfig):
        """Settings of Adam."""

        name: str = "adam"
        lr: Annotated[float, Within(0, 1e6)] = 1e-3
        """Peak learning rate for `lr_batch_size` images."""
        betas: Annotated[tuple[Momentum, Momentum], Rising()] = (0.9, 0.999)
        """Decay rates of the running means of the gradient and of its square."""
        eps: Annotated[float, Within(0, 1)] = 1e-8
        """Added to the root of the mean square, against division by 0."""

    def __init__(self, params: Iterable[dict[str, Any]], config: Config) -> None:
        # copies, because torch writes its own keys into the groups that it is given
        groups = [{**group, "params": list(group["params"])} for group in params]
        is_on_gpu = all(parameter.is_cuda for group in groups for parameter in group["params"])
        super().__init__(
            groups,
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=is_on_gpu,
            foreach=not is_on_gpu,
            decoupled_weight_decay=self.is_decoupled,
        )


class AdamW(Adam):
    """AdamW of Loshchilov and Hutter 2019 (arXiv 1711.05101): torch's, set up by a config.

    Fused on a GPU, else one kernel per operation for all parameters of a group.

    >>> optimizer = AdamW([{"params": [torch.nn.Parameter(torch.zeros(2))]}], AdamW.Config(lr=0.1))
    >>> optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]
    (0.1, (0.9, 0.999))
    """

    is_decoupled = True

    @dataclass(frozen=True, kw_only=True)
    class Config(Adam.Config):
        """Settings of AdamW."""

        name: str = "adamw"
        weight_decay: Annotated[float, Within(0, 1000)] = 0.01
        """Share of the weights that each update subtracts at learning rate 1."""
