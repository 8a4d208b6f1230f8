"""The shape of a batched transform."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from raysl.transforms.random import SampleRandom


@dataclass(frozen=True, kw_only=True)
class Transform(ABC):
    """A random change of a batch of images, in two steps: draw parameters for each image, apply them to all at once.

    A subclass is a frozen dataclass of settings. `apply` must treat each image alone, to the last bit: the same image
    with the same parameters gives the same pixels in any batch.
    """

    @abstractmethod
    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        """Draw the parameters of `len(random)` images.

        Args:
            random: the numbers of this transform, from its own slot.
            size: height and width of the images, in pixels.

        Returns:
            CPU tensors whose first dimension is the batch, [B, ...].
        """

    @abstractmethod
    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        """Change the images.

        Args:
            images: float [B, C, H, W] in [0, 1], on any device; not written to.
            params: what `draw` gave, still on the CPU.

        Returns:
            Float images of the same shape.
        """


def check_probability(p: float) -> None:
    """Raise ValueError unless `p` lies in [0, 1]."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p={p} is no probability; give a number in [0, 1]")
