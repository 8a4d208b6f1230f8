"""Pixel shift: squares at nearby places of one resized box."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor
from typing_extensions import override

from raysl.transforms.crop import CropParams, RandomResizedCrop
from raysl.transforms.random import Floats, Ints, SampleRandom
from raysl.transforms.resized_boxes import Pixels


@dataclass(frozen=True, kw_only=True)
class ShiftedCrop(RandomResizedCrop):
    """A square of fixed size out of a `RandomResizedCrop`, the master image: its upper left corner, moved by some
    pixels down and to the right (CMAE, Huang et al. 2022, arXiv 2207.13532, "pixel shift").

    Views of one master image have the same `master`, `scale` and `ratio`, and the random numbers of one of them
    (`View.repeats`); a view with `shift=0` is its corner.

    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(100), view=0)
    >>> params = ShiftedCrop(size=28, master=32, shift=3).draw(random, np.full(100, 60), np.full(100, 80))
    >>> sorted(params), np.unique(params["down"])
    (['down', 'height', 'left', 'right', 'top', 'width'], array([0, 1, 2, 3]))
    """

    master: int
    """Side of the master image in pixels, at least `size` and `shift` together."""
    shift: int = 0
    """Largest move along each axis in pixels; all from 0 to this number are as likely."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shift < 0 or self.size + self.shift > self.master:
            raise ValueError(
                f"shift={self.shift} moves a square of size={self.size} out of master={self.master}; give 0 to "
                f"{max(self.master - self.size, 0)}, or a larger master"
            )

    def draw(self, random: SampleRandom, heights: Ints, widths: Ints) -> CropParams:
        """Draw boxes as `RandomResizedCrop` does, then the moves "down" and "right"."""
        box = super().draw(random, heights, widths)
        down, right = (random.integers(0, np.full(len(heights), self.shift + 1)) for _ in range(2))
        return {**box, "down": down, "right": right}

    def apply(self, image: Tensor, params: dict[str, int]) -> Tensor:
        out = image.new_empty(image.shape[0], self.size, self.size)
        self.cut(image, params, out)
        return out

    @override
    def cut(self, image: Tensor, params: dict[str, int], out: Tensor) -> None:
        master = out.new_empty(out.shape[0], self.master, self.master)
        box = {name: value for name, value in params.items() if name not in ("down", "right")}
        self._box.cut(image, box, master)
        out.copy_(self._cut(master, params["down"], params["right"]))

    def cut_small(self, images: Pixels, params: CropParams, out: Tensor) -> bool:
        masters = out.new_empty(*out.shape[:2], self.master, self.master)
        if not self._box.cut_small(images, params, masters):
            return False
        for row, moves in enumerate(zip(params["down"].tolist(), params["right"].tolist(), strict=True)):
            out[row] = self._cut(masters[row], *moves)
        return True

    def room(self, params: CropParams, heights: Ints, widths: Ints) -> Floats:
        return self._box.room(params, heights, widths)

    def shrunk(self, params: dict[str, int], size: Sequence[int], reduced: Sequence[int]) -> dict[str, int]:
        return {**super().shrunk(params, size, reduced), "down": params["down"], "right": params["right"]}

    @property
    def _box(self) -> RandomResizedCrop:
        """The crop that makes the master image."""
        return RandomResizedCrop(size=self.master, interpolation=self.interpolation)

    def _cut(self, master: Tensor, down: int, right: int) -> Tensor:
        return master[:, down : down + self.size, right : right + self.size]
