"""Stochastic depth, dropout, and random numbers of networks per sample, the same on any number of ranks."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from raysl.data.batch import Batch
from raysl.transforms import device_hash
from raysl.transforms.device import to_device


class Drawing(nn.Module):
    """A module that draws random numbers in training, each slot of them keyed by its own number."""

    @property
    def slots(self) -> tuple[int, ...]:
        """Slots whose numbers training draws; they differ from those of all other modules of a network."""
        raise NotImplementedError

    def settle(self) -> None:
        """Draw no more numbers, as in a teacher."""
        raise NotImplementedError


class _Dropping(Drawing):
    """Drops at a rate, by the numbers of one slot."""

    def __init__(self, rate: float, slot: int) -> None:
        super().__init__()
        self.rate = rate
        self.slot = slot

    @property
    def slots(self) -> tuple[int, ...]:
        """The slot, unless nothing is dropped."""
        return (self.slot,) if self.rate > 0 else ()

    def settle(self) -> None:
        """Drop nothing."""
        self.rate = 0.0

    def extra_repr(self) -> str:
        """Return the rate, for printing."""
        return f"rate={self.rate:g}"


class DropPath(_Dropping):
    """Stochastic depth (Huang et al. 2016, arXiv 1603.09382): in training, a sample is dropped at this rate.

    The others are scaled by 1 / (1 - rate), which preserves the mean. Inside `keyed_draws`, which a method's forward
    opens, the numbers are a function of (seed, epoch, sample index, slot) and of how often the module ran in the step.
    Elsewhere they come from torch's generator.

    >>> DropPath(0.5, slot=0).eval()(torch.ones(2, 3)).mean()  # nothing is dropped outside training
    tensor(1.)

    Args:
        rate: probability that a sample is dropped, in [0, 1).
        slot: number of this module in its network, different for each.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Set whole samples of the input [B, ...] to 0; views of a sample, in rows [B * V], are drawn separately."""
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        is_kept = draw(x, self.slot) < keep
        return x * (is_kept.view(-1, *[1] * (x.dim() - 1)) / keep).to(x.dtype)


class Dropout(_Dropping):
    """Dropout (Srivastava et al. 2014, JMLR 15, section 4): in training, each value is dropped at this rate.

    The others are scaled by 1 / (1 - rate), which preserves the mean. The numbers of a row are computed on its device
    from one number that is drawn for it as by `DropPath`: they belong to the sample, on any number of ranks.

    >>> Dropout(0.5, slot=0).eval()(torch.ones(2, 3)).mean()  # nothing is dropped outside training
    tensor(1.)

    Args:
        rate: probability that a value is dropped, in [0, 1).
        slot: number of this module in its network, different for each.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Set values of the input [B, ...] to 0, each by itself; views of a sample, in rows [B * V], are drawn
        separately."""
        if not self.training or self.rate == 0:
            return x
        keys = (draw(x, self.slot).double() * 2.0**53).long()  # [B], whole numbers
        numbers = device_hash.drawn(keys, 0, math.prod(x.shape[1:]))  # [B, n]
        is_kept = numbers.view_as(x) >= self.rate
        return x * (is_kept.to(x.dtype) / (1 - self.rate))


class _Draws:
    """Random numbers for a step's batch, by slot: drawn and copied to the device once for all slots.

    In a compiled step they are computed by the program, from keys of the batch's samples.
    """

    def __init__(self, batch: Batch, slots: Sequence[int], is_compiled: bool) -> None:
        self.batch = batch
        self.keys = batch.random(_SLOT).keys_on(batch.index.device) if is_compiled and slots else None  # [B]
        self.slots = {slot: number for number, slot in enumerate(slots)}
        self.calls: Counter[int] = Counter()
        self.tables: dict[tuple[int, int], Tensor] = {}

    def uniform(self, slot: int, num_views: int, device: torch.device) -> Tensor:
        """Draw fresh numbers [B * V] in [0, 1), views of a sample side by side."""
        calls = self.calls[slot]
        self.calls[slot] += 1
        if self.keys is not None:
            return device_hash.uniforms(self.keys, slot, calls, num_views).flatten()
        if slot not in self.slots:
            return self._draw([slot], calls, num_views, device)[0]
        if (calls, num_views) not in self.tables:
            self.tables[calls, num_views] = self._draw(list(self.slots), calls, num_views, device)
        return self.tables[calls, num_views][self.slots[slot]]

    def _draw(self, slots: list[int], calls: int, num_views: int, device: torch.device) -> Tensor:
        """Return the numbers of some slots [S, B * V], each after `calls` draws."""
        numbers = self.batch.random(_SLOT).at_each(slots, calls).uniforms(num_views)  # [S * B, V]
        return to_device(torch.from_numpy(numbers), device).view(len(slots), -1)


_SLOT = "drop path"
_draws: _Draws | None = None


def drop_slots(network: nn.Module) -> list[int]:
    """Return the slots of a network's modules that draw random numbers in training."""
    layers = (module for module in network.modules() if isinstance(module, Drawing) and module.training)
    return list(dict.fromkeys(slot for layer in layers for slot in layer.slots))


@contextmanager
def keyed_draws(batch: Batch, slots: Sequence[int] = (), is_compiled: bool = False) -> Iterator[None]:
    """Key the networks' random numbers by the samples of this batch while it is open.

    Args:
        slots: those that will draw, see `drop_slots`; numbers of others are drawn one by one.
        is_compiled: whether torch's compiler computes the step; the numbers are the same.
    """
    global _draws
    before, _draws = _draws, _Draws(batch, slots, is_compiled)
    try:
        yield
    finally:
        _draws = before


@contextmanager
def numbers_from(draw: Callable[[Tensor, int], Tensor]) -> Iterator[None]:
    """Take a module's random numbers from `draw` while it is open: [n] in [0, 1) for its input [n, ...] and slot."""
    global _draw
    before, _draw = _draw, draw
    try:
        yield
    finally:
        _draw = before


def draw(x: Tensor, slot: int) -> Tensor:
    """Draw fresh numbers [n] in [0, 1) for the rows of `x` [n, ...], or those that `numbers_from` gives."""
    return _draw(x, slot)


def draw_numbers(x: Tensor, slot: int) -> Tensor:
    """Draw fresh numbers, keyed by the batch's samples if the rows belong to them."""
    num_rows = 0 if _draws is None else len(_draws.batch)
    if _draws is None or num_rows == 0 or len(x) % num_rows:
        return torch.rand(len(x), device=x.device)
    return _draws.uniform(slot, len(x) // num_rows, x.device)


_draw: Callable[[Tensor, int], Tensor] = draw_numbers
