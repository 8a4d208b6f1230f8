"""Stochastic gradient descent with momentum."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from raysl.config.schema import OptimConfig


class SGD(torch.optim.SGD):
    """torch's SGD, set up by a config, all parameters of a group in one go."""

    @dataclass(frozen=True, kw_only=True)
    class Config(OptimConfig):
        """Settings of SGD."""

        name: str = "sgd"
        momentum: float = 0.9
        """Share of the last update that goes on, in [0, 1)."""
        nesterov: bool = False
        """Take the gradient where the momentum leads."""

    def __init__(self, params: Iterable[dict[str, Any]], config: Config) -> None:
        super().__init__(
            params,
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            nesterov=config.nesterov,
            foreach=True,
        )
