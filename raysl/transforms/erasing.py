"""Random erasing, and which pixels lie in a box."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raysl.config.ranges import Positives, Share, Shares
from raysl.hashing import hash_rows
from raysl.transforms.device import to_device, to_type_of
from raysl.transforms.transform import SampleRandom, Transform


@dataclass(frozen=True, kw_only=True)
class RandomErasing(Transform):
    """Fill a random box, with torchvision's rule for the box (Zhong et al. 2020).

    An image where none of ten boxes fits stays as it is.

    >>> params = {"box": torch.tensor([[0, 0, 1, 2]]), "noise": torch.tensor([0])}
    >>> RandomErasing().apply(torch.ones(1, 1, 2, 2), params)[0, 0]
    tensor([[0., 0.],
            [1., 1.]])
    """

    p: Share = 0.25
    """Probability for each image."""
    scale: Shares = (0.02, 0.33)
    """Range of the box's area, as a share of the image's area, in [0, 1]."""
    ratio: Positives = (0.3, 3.3)
    """Range of height / width, above 0, its logarithm drawn uniformly."""
    value: float | tuple[float, ...] | str = 0.0
    """What fills the box, in [0, 1]: a number, a number for each channel, or `random` for uniform noise in every pixel
    and channel. torchvision's 0, which it applies after normalisation, is the dataset's mean here."""

    def __post_init__(self) -> None:
        super().__post_init__()
        levels = self.value if isinstance(self.value, tuple) else (self.value,)
        if self.value != "random" and not all(isinstance(x, int | float) and 0.0 <= x <= 1.0 for x in levels):
            raise ValueError(f"value={self.value!r} must be 'random' or in [0, 1]; 128 of 255 is 0.5")

    def draw(self, random: SampleRandom, size: tuple[int, int]) -> dict[str, Tensor]:
        height, width = size
        mask = random.bernoulli(self.p)
        area = height * width * random.uniforms(10, *self.scale)  # [B, 10]
        logs = random.uniforms(10, math.log(self.ratio[0]), math.log(self.ratio[1]))
        # one by one: vectorised exponentials may differ in the last bit with the position in an array
        aspect = np.array([[math.exp(log) for log in row] for row in logs.tolist()]).reshape(logs.shape)
        tall, wide = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
        fits = (tall < height) & (wide < width)

        first = fits.argmax(axis=1)
        rows = np.arange(len(first))
        is_erased = mask & fits[rows, first]
        tall = np.where(is_erased, tall[rows, first], 0.0).astype(np.int64)
        wide = np.where(is_erased, wide[rows, first], 0.0).astype(np.int64)
        y, x = random.integers(0, height - tall + 1), random.integers(0, width - wide + 1)
        box = np.stack([y, x, tall, wide], axis=1) * is_erased[:, None]
        return {
            "box": torch.from_numpy(box),
            "noise": torch.from_numpy(random.integers(0, 2**53)),
        }

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        """Fill the boxes.

        Raises:
            ValueError: if `value` has not one number for each channel.
        """
        if self.value == "random":
            return fill_with_noise(images, params["box"], params["noise"])
        value = to_type_of(torch.tensor(self.value, dtype=torch.float64), images).view(-1, 1, 1)
        if len(value) not in (1, images.shape[1]):
            raise ValueError(f"value={self.value} has {len(value)} numbers for {images.shape[1]} channels")
        height, width = images.shape[-2:]
        return torch.where(inside_boxes(params["box"], (height, width), images.device), value, images)


def fill_with_noise(images: Tensor, boxes: Tensor, keys: Tensor) -> Tensor:
    """Fill the box of each image with uniform noise in [0, 1), a function of its key alone.

    Args:
        images: float [B, C, H, W].
        boxes: int64 [B, 4]: top, left, height and width; empty ones change nothing.
        keys: int64 [B].
    """
    out = images.clone()
    for row, ((y, x, height, width), key) in enumerate(zip(boxes.tolist(), keys.tolist(), strict=True)):
        shape = (images.shape[1], height, width)
        # 24 bits, which float32 holds exactly
        bits = hash_rows(key, np.arange(math.prod(shape))) >> np.uint64(40)
        noise = torch.from_numpy(bits.astype(np.float32) * np.float32(2.0**-24)).view(shape)
        out[row, :, y : y + height, x : x + width] = to_type_of(noise, out)
    return out


def inside_boxes(boxes: Tensor, size: tuple[int, int], device: torch.device) -> Tensor:
    """Return which pixels lie in each image's box.

    >>> inside_boxes(torch.tensor([[0, 1, 1, 2]]), (2, 3), torch.device("cpu"))[0, 0].int()
    tensor([[0, 1, 1],
            [0, 0, 0]], dtype=torch.int32)

    Args:
        boxes: int64 [B, 4]: top, left, height and width; a height or width of 0 is an empty box.
        size: height and width of the images.

    Returns:
        bool [B, 1, H, W].
    """
    y, x, height, width = to_device(boxes, device)[:, :, None].unbind(1)  # [B, 1] each
    rows = torch.arange(size[0], device=device)
    columns = torch.arange(size[1], device=device)
    in_rows = (rows >= y) & (rows < y + height)
    in_columns = (columns >= x) & (columns < x + width)
    return (in_rows[:, :, None] & in_columns[:, None, :])[:, None]
