"""Crops: from a decoded image of any size to a square of a fixed size, on the CPU, image by image."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor
from typing_extensions import override

from raysl.config.ranges import Areas, Count, Positives, check_ranges
from raysl.transforms import functional
from raysl.transforms.functional import Interpolation
from raysl.transforms.random import Floats, Ints, SampleRandom
from raysl.transforms.resized_boxes import LARGEST, Pixels, copy_crop, resize_into

CropParams = dict[str, Ints]
"""Parameters of a batch of crops, each int64 [B]."""

Edges = tuple[float, float, float, float]
"""The top, left, bottom and right edge of a crop in pixels of its image; 0 is the outer edge of the first pixel."""


@dataclass(frozen=True, kw_only=True)
class Crop(ABC):
    """Cuts a square view out of an image.

    >>> crop = CenterCrop(size=224, resize=256)
    >>> crop.room({}, heights=np.array([512]), widths=np.array([1024]))  # it could be decoded at half its size
    array([2.])
    """

    size: Count
    """Side of the result, in pixels."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @abstractmethod
    def draw(self, random: SampleRandom, heights: Ints, widths: Ints) -> CropParams:
        """Draw the parameters for images of these sizes, int64 [B] each."""

    @abstractmethod
    def apply(self, image: Tensor, params: dict[str, int]) -> Tensor:
        """Cut one uint8 image [C, H, W] to [C, size, size]; the result may share the image's memory."""

    def cut(self, image: Tensor, params: dict[str, int], out: Tensor) -> None:
        """Fill `out`, uint8 [C, size, size], with the result of `apply`."""
        copy_crop(self.apply(image, params), out)

    def cut_small(self, images: Pixels, params: CropParams, out: Tensor) -> bool:
        """Fill `out` like `apply` from many small images at once, if the crop can.

        Args:
            images: uint8 [B, H, W, 3], from `raysl.transforms.resized_boxes.stack_small`.
            params: parameters of the crops.
            out: uint8 [B, 3, size, size].

        Returns:
            Whether it has filled `out`.
        """
        return False

    @abstractmethod
    def room(self, params: CropParams, heights: Ints, widths: Ints) -> Floats:
        """Return how many times smaller the images could be before the crop had to enlarge them, float64 [B]."""

    def shrunk(self, params: dict[str, int], size: Sequence[int], reduced: Sequence[int]) -> dict[str, int]:
        """Convert parameters drawn for an image of `size` (height, width) to one decoded at the size `reduced`."""
        return params

    def edges(self, params: dict[str, int], height: int, width: int) -> Edges:
        """Return the top, left, bottom and right edge of what `apply` cuts out of an image of this size, in its pixels.

        A crop without it cannot be part of a view with a box (`View.box`).
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop(Crop):
    """A box of random area and aspect ratio, resized: torchvision's rule (Szegedy et al. 2015, section 6).

    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(1), view=0)
    >>> box = RandomResizedCrop(size=32).draw(random, heights=np.array([60]), widths=np.array([80]))
    >>> sorted(box), bool(box["height"][0] <= 60)
    (['height', 'left', 'top', 'width'], True)
    """

    scale: Areas = (0.08, 1.0)
    """Range of the box's share of the image's area, in (0, 1]."""
    ratio: Positives = (3.0 / 4.0, 4.0 / 3.0)
    """Range of width / height, its logarithm drawn uniformly."""
    interpolation: Interpolation = "bilinear"
    """How the box is resized."""

    def draw(self, random: SampleRandom, heights: Ints, widths: Ints) -> CropParams:
        """Draw boxes: the first of 10 attempts that fits the image, else the largest central one."""
        # all ten attempts are drawn at once, so that later draws do not depend on which one fits
        area = (heights * widths)[:, None] * random.uniforms(10, *self.scale)  # [B, 10]
        aspect = np.exp(random.uniforms(10, math.log(self.ratio[0]), math.log(self.ratio[1])))
        width = np.rint(np.sqrt(area * aspect)).astype(np.int64)
        height = np.rint(np.sqrt(area / aspect)).astype(np.int64)
        fits = (width > 0) & (width <= widths[:, None]) & (height > 0) & (height <= heights[:, None])

        first = fits.argmax(axis=1)
        rows = np.arange(len(first))
        is_found = fits[rows, first]
        central_height, central_width = self._central_box(heights, widths)
        height = np.where(is_found, height[rows, first], central_height)
        width = np.where(is_found, width[rows, first], central_width)
        y, x = random.integers(0, heights - height + 1), random.integers(0, widths - width + 1)
        return {
            "top": np.where(is_found, y, (heights - height) // 2),
            "left": np.where(is_found, x, (widths - width) // 2),
            "height": height,
            "width": width,
        }

    def apply(self, image: Tensor, params: dict[str, int]) -> Tensor:
        return functional.resized_crop(image, **params, size=self.size, interpolation=self.interpolation)

    @override
    def cut(self, image: Tensor, params: dict[str, int], out: Tensor) -> None:
        resize_into(image, **params, interpolation=self.interpolation, out=out)

    def cut_small(self, images: Pixels, params: CropParams, out: Tensor) -> bool:
        if self.interpolation != "bilinear" or self.size > LARGEST:
            return False
        boxes = np.stack([params[name] for name in ("top", "left", "height", "width")], axis=1)  # [B, 4]
        # the loop checks no position
        if boxes.min() < 0 or (boxes[:, :2] + boxes[:, 2:] > images.shape[1:3]).any():
            return False
        from raysl.transforms import box_kernels

        box_kernels.resize_boxes(images, boxes, out.numpy())
        return True

    def room(self, params: CropParams, heights: Ints, widths: Ints) -> Floats:
        return np.minimum(params["height"], params["width"]) / self.size

    def shrunk(self, params: dict[str, int], size: Sequence[int], reduced: Sequence[int]) -> dict[str, int]:
        box: dict[str, int] = {}
        for axis, start, side in ((0, "top", "height"), (1, "left", "width")):
            low, high = (round(e * reduced[axis] / size[axis]) for e in (params[start], params[start] + params[side]))
            box |= {start: low, side: max(1, high - low)}
        return box

    def edges(self, params: dict[str, int], height: int, width: int) -> Edges:
        y, x = params["top"], params["left"]
        return y, x, y + params["height"], x + params["width"]

    def _central_box(self, heights: Ints, widths: Ints) -> tuple[Ints, Ints]:
        """Return height and width of the largest box whose ratio is allowed."""
        in_ratio: Floats = widths / heights
        height = np.where(in_ratio < self.ratio[0], np.rint(widths / self.ratio[0]), heights)
        width = np.where(in_ratio > self.ratio[1], np.rint(heights * self.ratio[1]), widths)
        return height.astype(np.int64).clip(1, heights), width.astype(np.int64).clip(1, widths)


@dataclass(frozen=True, kw_only=True)
class ShortSideCrop(Crop):
    """A square of fixed size, cut after the image's short side is resized."""

    resize: int
    """Short side before the crop, in pixels, at least `size`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resize < self.size:
            raise ValueError(f"resize={self.resize} is smaller than the crop's side {self.size}; make it as large")

    def room(self, params: CropParams, heights: Ints, widths: Ints) -> Floats:
        return np.minimum(heights, widths) / self.resize

    def _edges(self, corner: tuple[int, int], resized: tuple[int, int], size: tuple[int, int]) -> Edges:
        """Return the edges of the square with this corner (top, left) of an image resized from `size`."""
        rows, columns = size[0] / resized[0], size[1] / resized[1]
        y, x = corner
        return y * rows, x * columns, (y + self.size) * rows, (x + self.size) * columns


@dataclass(frozen=True, kw_only=True)
class CenterCrop(ShortSideCrop):
    """The middle of the image after its short side is resized, for evaluation; nothing is random.

    >>> import torch
    >>> CenterCrop(size=32, resize=36).apply(torch.zeros(3, 60, 80, dtype=torch.uint8), {}).shape
    torch.Size([3, 32, 32])
    """

    interpolation: Interpolation = "bilinear"
    """How the image is resized."""

    def draw(self, random: SampleRandom, heights: Ints, widths: Ints) -> CropParams:
        return {}

    def apply(self, image: Tensor, params: dict[str, int]) -> Tensor:
        size, (y, x) = self._resized(*image.shape[-2:])
        if size != tuple(image.shape[-2:]):
            image = functional.resize(image, *size, self.interpolation)
        return image[:, y : y + self.size, x : x + self.size]

    def edges(self, params: dict[str, int], height: int, width: int) -> Edges:
        resized, corner = self._resized(height, width)
        return self._edges(corner, resized, (height, width))

    def _resized(self, height: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the resized height and width of an image, and the top and left of its middle."""
        short = min(height, width)
        height, width = height * self.resize // short, width * self.resize // short
        return (height, width), (round((height - self.size) / 2), round((width - self.size) / 2))


@dataclass(frozen=True, kw_only=True)
class RandomCrop(ShortSideCrop):
    """A square of fixed size at a random position, after the short side is resized (Noroozi and Favaro 2016).

    >>> random = SampleRandom(seed=0, epoch=0, index=np.arange(1), view=0)
    >>> params = RandomCrop(size=24, resize=30).draw(random, heights=np.array([60]), widths=np.array([80]))
    >>> params["height"], params["width"]
    (array([30]), array([40]))
    """

    def draw(self, random: SampleRandom, heights: Ints, widths: Ints) -> CropParams:
        short = np.minimum(heights, widths)
        height, width = heights * self.resize // short, widths * self.resize // short  # rounded down as in torchvision
        return {
            "height": height,
            "width": width,
            "top": random.integers(0, height - self.size + 1),
            "left": random.integers(0, width - self.size + 1),
        }

    def apply(self, image: Tensor, params: dict[str, int]) -> Tensor:
        if tuple(image.shape[-2:]) != (params["height"], params["width"]):
            image = functional.resize(image, params["height"], params["width"])
        y, x = params["top"], params["left"]
        return image[:, y : y + self.size, x : x + self.size]

    def edges(self, params: dict[str, int], height: int, width: int) -> Edges:
        return self._edges((params["top"], params["left"]), (params["height"], params["width"]), (height, width))


@dataclass(frozen=True, kw_only=True)
class Canvas(Crop):
    """The unresized image on a black square, as VISSL places MNIST's digits; what exceeds the square is cut off.

    >>> import torch
    >>> Canvas(size=4, top=1, left=1).apply(torch.ones(1, 2, 2, dtype=torch.uint8), {})[0, 1]
    tensor([0, 1, 1, 0], dtype=torch.uint8)
    """

    top: int = 0
    """Row of the canvas where the image begins."""
    left: int = 0
    """Column of the canvas where the image begins."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.top < self.size and 0 <= self.left < self.size):
            raise ValueError(f"top={self.top} and left={self.left} are outside the canvas of {self.size} pixels")

    def draw(self, random: SampleRandom, heights: Ints, widths: Ints) -> CropParams:
        return {}

    def apply(self, image: Tensor, params: dict[str, int]) -> Tensor:
        canvas = image.new_zeros(image.shape[0], self.size, self.size)
        part = image[:, : self.size - self.top, : self.size - self.left]
        canvas[:, self.top : self.top + part.shape[1], self.left : self.left + part.shape[2]] = part
        return canvas

    def edges(self, params: dict[str, int], height: int, width: int) -> Edges:
        return -self.top, -self.left, self.size - self.top, self.size - self.left

    def room(self, params: CropParams, heights: Ints, widths: Ints) -> Floats:
        return np.ones(len(heights))
