"""Stochastic gradient descent with momentum."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from raysl.config.ranges import Momentum
from raysl.config.schema import OptimConfig


class SGD(torch.optim.SGD):
    """torch's SGD, set up by a config, for all parameters of a group at once.

    >>> optimizer = SGD([{"params": [torch.nn.Parameter(torch.zeros(2))]}], SGD.Config(lr=0.1))
    >>> optimizer.param_groups[0]["momentum"]
    0.9
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(OptimConfig):
        """Settings of SGD."""

        name: str = "sgd"
        momentum: Momentum = 0.9
        """Share of the last update that the next one keeps."""
        nesterov: bool = False
        """Use Nesterov's momentum."""

        def __post_init__(self) -> None:
            if self.nesterov and self.momentum == 0:
                raise ValueError("nesterov needs a momentum; set optim.momentum=0.9, or optim.nesterov=false")

    def __init__(self, params: Iterable[dict[str, Any]], config: Config) -> None:
        super().__init__(
            params,
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            nesterov=config.nesterov,
            foreach=True,
        )
