"""The base classes of batched transforms."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from raysl.config.ranges import Share, check_ranges
from raysl.transforms.programs import Program
from raysl.transforms.random import SampleRandom as SampleRandom


@dataclass(frozen=True, kw_only=True)
class Transform(ABC):
    """A random change of a batch of images, in two steps: draw parameters for each image, apply them to all at once.

    >>> from raysl.transforms.geometric import HorizontalFlip
    >>> flip, random = HorizontalFlip(p=0.5), SampleRandom(seed=0, epoch=0, index=torch.arange(4).numpy(), view=0)
    >>> flip.apply(torch.rand(4, 3, 32, 32), flip.draw(random, size=(32, 32))).shape
    torch.Size([4, 3, 32, 32])

    A subclass is a frozen dataclass of settings. `apply` must treat each image alone, to the last bit: the same image
    with the same parameters gives the same pixels in any batch.
    """

    def __post_init__(self) -> None:
        check_ranges(self)

    @abstractmethod
    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        """Draw the parameters of `len(random)` images.

        Args:
            random: the random numbers of this transform's slot.
            size: height and width of the images, in pixels.

        Returns:
            CPU tensors whose first dimension is the batch, [B, ...].
        """

    @abstractmethod
    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        """Change the images.

        Args:
            images: float [B, C, H, W] in [0, 1], on any device; not written to.
            params: the result of `draw`, still on the CPU.

        Returns:
            Float images of the same shape.
        """

    def program(self, params: dict[str, Tensor], size: tuple[int, int]) -> Program | None:
        """Return the same change as compiled operations for a CPU, or None to use `apply` there too.

        Args:
            params: the result of `draw`.
            size: height and width of the images, in pixels.
        """
        return None

    def channels_problem(self, num: int) -> str | None:
        """Return the problem with images of this number of channels, and the setting to change; None if they fit."""
        return None

    def extras(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the drawn parameters that the method needs, [B, ...] by name, such as the rotation."""
        return {}

    def moved(self, box: Tensor, params: dict[str, Tensor]) -> Tensor:
        """Return where the views lie in their images after this transform, which by default moves no pixel.

        Args:
            box: float [B, 6] on any device, see `View.box`.
            params: the result of `draw`.

        Raises:
            ValueError: if a box cannot say where the views lie; also for no samples, so that it is known beforehand.
        """
        return box


@dataclass(frozen=True, kw_only=True)
class Masked(Transform):
    """A transform whose only parameter is which images it changes, `mask`."""

    p: Share = 0.5
    """Probability for each image."""

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        return {"mask": torch.from_numpy(random.bernoulli(self.p))}


def no_box(name: str) -> ValueError:
    """Return the error of a transform that moves pixels in another way than a flip."""
    return ValueError(
        f"{name} turns, shifts or stretches views, and the method has to know which box of the image each of them "
        "shows; leave it out: affine_p=0 and policy=null, where the settings have them"
    )
