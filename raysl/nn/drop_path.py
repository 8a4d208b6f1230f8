"""Stochastic depth whose draws belong to a sample, so that they are the same on any number of ranks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from raysl.data.batch import Batch
from raysl.transforms.random import SampleRandom


class DropPath(nn.Module):
    """Stochastic depth (Huang et al. 2016, arXiv 1603.09382): in training, a sample is left out at this rate.

    Others are scaled by 1 / (1 - rate), so that the mean stays. Inside `draws_of`, which a method's forward opens, what
    is drawn is a function of (seed, epoch, sample index, place) and of how often the place was passed in the step.
    Elsewhere torch's generator draws.

    Args:
        rate: at which a sample is left out, in [0, 1).
        place: of this module in its network, no two have the same.
    """

    def __init__(self, rate: float, place: int) -> None:
        super().__init__()
        self.rate = rate
        self.place = place

    def forward(self, x: Tensor) -> Tensor:
        """The input [B, ...] with whole samples set to 0; of V views of a sample, in rows [B * V], each for itself."""
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        is_kept = _draw(x, self.place) < keep
        return x * (is_kept.view(-1, *[1] * (x.dim() - 1)) / keep).to(x.dtype)

    def extra_repr(self) -> str:
        """The rate, where the module is printed."""
        return f"rate={self.rate:g}"


class _Draws:
    """The numbers of a step's batch, by place."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.streams: dict[int, SampleRandom] = {}

    def uniform(self, place: int, num_views: int) -> Tensor:
        """Fresh numbers [B * V] in [0, 1), views of a sample side by side."""
        if place not in self.streams:
            self.streams[place] = self.batch.random("drop path").at(place)
        return torch.from_numpy(self.streams[place].uniforms(num_views)).flatten()


_draws: _Draws | None = None


@contextmanager
def draws_of(batch: Batch) -> Iterator[None]:
    """While it is open, what a network draws belongs to the samples of this batch."""
    global _draws
    before, _draws = _draws, _Draws(batch)
    try:
        yield
    finally:
        _draws = before


@contextmanager
def drawn_by(draw: Callable[[Tensor, int], Tensor]) -> Iterator[None]:
    """While it is open, `draw` gives the numbers of a module: [n] in [0, 1) for its input [n, ...] and its place."""
    global _draw
    before, _draw = _draw, draw
    try:
        yield
    finally:
        _draw = before


def drawn(x: Tensor, place: int) -> Tensor:
    """Fresh numbers: those of the batch's samples, where the rows are theirs."""
    num_rows = 0 if _draws is None else len(_draws.batch)
    if _draws is None or num_rows == 0 or len(x) % num_rows:
        return torch.rand(len(x), device=x.device)
    return _draws.uniform(place, len(x) // num_rows).to(x.device, non_blocking=True)


_draw: Callable[[Tensor, int], Tensor] = drawn
