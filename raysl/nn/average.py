"""Exponential moving average (EMA) of all weights of a run, beside those that are trained (Polyak, Juditsky 1992)."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.schedule import Duration, Step


class WeightAverage:
    """Averages of a network's parameters, frozen ones among them, and perhaps of its buffers.

    It begins as a copy. After every `every`th update, average = decay * average + (1 - decay) * weights; during the
    warm-up it is a copy again each time, so that the first weights leave no trace (VISSL's EMA hook).
    """

    def __init__(
        self,
        network: nn.Module,
        decay: float,
        every: int = 1,
        warmup: Duration | None = None,
        with_buffers: bool = True,
    ) -> None:
        """Start as a copy of the network.

        Args:
            network: what is trained; its parameters and buffers keep their names and shapes.
            decay: share of the average that stays at an update of it, in [0, 1).
            every: updates of the network between two of the average.
            warmup: how long it stays a copy; default: not at all.
            with_buffers: whether buffers of floating point that are saved, such as running statistics, are averaged
                like parameters. Others, and all without it, are the network's own.
        """
        self.decay, self.every, self.with_buffers = decay, every, with_buffers
        self.warmup = warmup or Duration(0, "st")
        self.values = {name: value.detach().clone() for name, value in self._tensors(network).items()}

    @torch.no_grad()
    def update(self, network: nn.Module, step: Step) -> None:
        """Follow the network, after the update that began at `step`; nothing is read back from the device."""
        if (step.index + 1) % self.every:
            return
        present = self._tensors(network)
        own = [dist.local(value) for value in self.values.values()]
        theirs = [dist.local(present[name].detach()) for name in self.values]
        if self.warmup.is_over(step):
            torch._foreach_lerp_(own, theirs, 1 - self.decay)
        else:
            torch._foreach_copy_(own, theirs)

    def state_of(self, network: nn.Module, part: nn.Module) -> dict[str, Tensor]:
        """State dict of a part of the network with averages in place of what is averaged."""
        names = {id(tensor): name for name, tensor in self._tensors(network).items()}
        own = part.state_dict(keep_vars=True)
        return {
            name: self.values[names[id(tensor)]] if id(tensor) in names else tensor.detach()
            for name, tensor in own.items()
        }

    @torch.no_grad()
    def load_into(self, network: nn.Module) -> None:
        """Give the network the averages in place of its weights."""
        for name, tensor in self._tensors(network).items():
            dist.local(tensor).copy_(dist.local(self.values[name]))

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by name."""
        return dict(self.values)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state_dict` gave.

        Raises:
            ValueError: if it is of another network.
        """
        for name in dict.fromkeys([*self.values, *state]):
            here, there = (list(side[name].shape) if name in side else None for side in (self.values, state))
            if here != there:
                raise ValueError(f"the average of {name} is {there or 'not there'}, and {here or 'none'} is expected")
        for name, value in self.values.items():
            dist.local(value).copy_(dist.local(state[name]))

    def _tensors(self, network: nn.Module) -> dict[str, Tensor]:
        found: dict[str, Tensor] = dict(network.named_parameters())
        if self.with_buffers:
            saved = network.state_dict(keep_vars=True)
            buffers = network.named_buffers()
            found |= {name: value for name, value in buffers if name in saved and value.is_floating_point()}
        return found
