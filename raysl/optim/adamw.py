"""AdamW: Decoupled Weight Decay Regularization (Loshchilov and Hutter 2019, arXiv 1711.05101)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from raysl.config.ranges import Momentum, Rising, Within
from raysl.config.schema import OptimConfig
from raysl.optim.plain import Plain


class AdamW(Plain, torch.optim.AdamW):
    """torch's AdamW, set up by a config; fused on a GPU, else one kernel per operation for all parameters of a group.

    >>> optimizer = AdamW([{"params": [torch.nn.Parameter(torch.zeros(2))]}], AdamW.Config(lr=0.1))
    >>> optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]
    (0.1, (0.9, 0.999))
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(OptimConfig):
        """Settings of AdamW."""

        name: str = "adamw"
        lr: Annotated[float, Within(0, 1e6)] = 1e-3
        """Peak learning rate for `lr_batch_size` images."""
        weight_decay: Annotated[float, Within(0, 1000)] = 0.01
        """Share of the weights that each update subtracts at learning rate 1."""
        betas: Annotated[tuple[Momentum, Momentum], Rising()] = (0.9, 0.999)
        """Decay rates of the running means of the gradient and of its square."""
        eps: Annotated[float, Within(0, 1)] = 1e-8
        """Added to the root of the mean square, against division by 0."""

    def __init__(self, params: Iterable[dict[str, Any]], config: Config) -> None:
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
        )
