"""AdamW: Decoupled Weight Decay Regularization (Loshchilov and Hutter 2019, arXiv 1711.05101)."""

from dataclasses import dataclass
from typing import Annotated

from raysl.config.ranges import Within
from raysl.optim.adam import Adam


class AdamW(Adam):
    """torch's AdamW, set up by a config; fused on a GPU, else one kernel per operation for all parameters of a group.

    >>> import torch
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
