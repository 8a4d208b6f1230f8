"""Exponential moving average (EMA) of all weights of a run, kept beside the trained ones (Polyak, Juditsky 1992)."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.schedule import Duration, Step


class WeightAverage:
    """Averages of all parameters of a network, including frozen ones, and optionally of its buffers.

    They start as a copy. After every `every`th update, average = decay * average + (1 - decay) * weights; during the
    warm-up the average is copied each time, so that the first weights leave no trace (VISSL's EMA hook).

    >>> network = nn.Linear(1, 1, bias=False)
    >>> average = WeightAverage(network, decay=0.9)
    >>> with torch.no_grad():
    ...     before, _ = network.weight.item(), network.weight.add_(1.0)
    >>> average.update(network, Step(index=0, total=10, epoch_len=10))
    >>> round(average.values["weight"].item() - before, 4)
    0.1
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
            network: the trained network; its parameters and buffers keep their names and shapes.
            decay: share of the average that an update keeps, in [0, 1).
            every: updates of the network per update of the average.
            warmup: how long the average stays a copy; default: no warm-up.
            with_buffers: whether saved floating-point buffers, such as running statistics, are averaged like
                parameters. All other buffers are the network's own.
        """
        self.decay, self.every, self.with_buffers = decay, every, with_buffers
        self.warmup = warmup or Duration(0, "st")
        self.values = {name: value.detach().clone() for name, value in self._tensors(network).items()}

    @torch.no_grad()
    def update(self, network: nn.Module, step: Step) -> None:
        """Follow the network after the update that began at `step`; nothing is read back from the device."""
        if (step.index + 1) % self.every:
            return
        present = self._tensors(network)
        averages = [dist.local(value) for value in self.values.values()]
        weights = [dist.local(present[name].detach()) for name in self.values]
        if self.warmup.is_over(step):
            torch._foreach_lerp_(averages, weights, 1 - self.decay)
        else:
            torch._foreach_copy_(averages, weights)

    def averaged_state(self, network: nn.Module, part: nn.Module) -> dict[str, Tensor]:
        """Return the state dict of a part of the network, with averages in place of averaged tensors."""
        names = {id(tensor): name for name, tensor in self._tensors(network).items()}
        return {
            name: self.values[names[id(tensor)]] if id(tensor) in names else tensor.detach()
            for name, tensor in part.state_dict(keep_vars=True).items()
        }

    @torch.no_grad()
    def load_into(self, network: nn.Module) -> None:
        """Copy the averages into the network."""
        for name, tensor in self._tensors(network).items():
            dist.local(tensor).copy_(dist.local(self.values[name]))

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by name."""
        return dict(self.values)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the result of `state_dict`."""
        for name in dict.fromkeys([*self.values, *state]):
            expected, stored = (list(side[name].shape) if name in side else None for side in (self.values, state))
            if expected != stored:
                raise ValueError(
                    f"the average of {name} is {stored or 'missing'}, and {expected or 'no average'} is expected"
                )
        for name, value in self.values.items():
            dist.local(value).copy_(dist.local(state[name]))

    def _tensors(self, network: nn.Module) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = dict(network.named_parameters())
        if self.with_buffers:
            saved = network.state_dict(keep_vars=True)
            buffers = network.named_buffers()
            tensors |= {name: value for name, value in buffers if name in saved and value.is_floating_point()}
        return tensors
