"""Stochastic gradient descent with momentum."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from raysl.config.ranges import Momentum
from raysl.config.schema import OptimConfig
from raysl.optim.plain import Plain, can_fuse


class SGD(Plain, torch.optim.SGD):
    """torch's SGD, set up by a config, for all parameters of a group at once; fused on a GPU, where a step in fp16 that
    overflows is left out without the host having to wait. Shards are updated by other kernels, see `can_fuse`.

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
        groups = [{**group, "params": list(group["params"])} for group in params]
        is_fused = can_fuse(parameter for group in groups for parameter in group["params"])
        super().__init__(
            groups,
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            nesterov=config.nesterov,
            fused=is_fused,
            foreach=not is_fused,
        )
        if is_fused:
            self.register_step_pre_hook(lambda optimizer, args, options: self._fill_momenta())

    def _fill_momenta(self) -> None:
        """Start the momenta at 0: torch would leave them without numbers if the first step is left out."""
        for group in self.param_groups:
            for parameter in group["params"] if group["momentum"] else []:
                if parameter.grad is not None and self.state[parameter].get("momentum_buffer") is None:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
