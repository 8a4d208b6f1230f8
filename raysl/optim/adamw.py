"""AdamW: Decoupled Weight Decay Regularization (Loshchilov and Hutter 2019, arXiv 1711.05101)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from raysl.config.ranges import Within
from raysl.optim.adam import Adam, options
from raysl.optim.plain import Plain


class AdamW(Plain, torch.optim.AdamW):
    """torch's AdamW, set up by a config; fused on a GPU, else one kernel per operation for all parameters of a group.

    >>> optimizer = AdamW([{"params": [torch.nn.Parameter(torch.zeros(2))]}], AdamW.Config(lr=0.1))
    >>> optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]
    (0.1, (0.9, 0.999))
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Adam.Config):
        """Settings of AdamW."""

        name: str = "adamw"
        weight_decay: Annotated[float, Within(0, 1000)] = 0.01
        """Share of the weights that each update subtracts at learning rate 1."""

    def __init__(self, params: Iterable[dict[str, Any]], config: Config) -> None:
        super().__init__(**options(params, config))
