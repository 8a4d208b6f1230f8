"""Views: what the data pipeline makes of an image for a method, and for evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from raysl.transforms.crop import CenterCrop, Crop
from raysl.transforms.functional import normalize, to_float, to_uint8
from raysl.transforms.random import Ints, SampleRandom
from raysl.transforms.transform import Transform

__all__ = ["View", "ViewRecipe", "evaluation_recipe", "normalize"]

CPU_CHUNK = 1 << 20
"""Float values that go through a chain at once on a CPU, few enough for its cache; elsewhere all go at once."""


@dataclass(frozen=True)
class View:
    """One view of an image: a crop, then batched transforms in order."""

    crop: Crop
    transforms: tuple[Transform, ...] = ()

    def draw(self, random: SampleRandom) -> list[dict[str, Tensor]]:
        """Parameters of each transform, for every sample of `random`.

        A transform's numbers are keyed by its class and its place among those of the same class, so that another
        transform may join the chain without moving them.
        """
        size = (self.crop.size, self.crop.size)
        names = [type(transform).__name__ for transform in self.transforms]
        streams = [random.at(crc32(name.encode())).at(names[:place].count(name)) for place, name in enumerate(names)]
        return [transform.draw(stream, size) for transform, stream in zip(self.transforms, streams, strict=True)]

    def apply(self, images: Tensor, params: Sequence[dict[str, Tensor]]) -> Tensor:
        """Run the chain: uint8 images [B, C, H, W] in and out, float in between."""
        out = to_float(images)
        for transform, values in zip(self.transforms, params, strict=True):
            out = transform.apply(out, values)
        return to_uint8(out)


@dataclass(frozen=True)
class ViewRecipe:
    """All views of an image, by group; the views of a group share one output size.

    Views are numbered through all groups, and the number is part of the key of their randomness. A sample's views
    are a function of (its image, seed, epoch, its index): the batch it comes in, the number of threads and the place
    where it is worked on change no pixel, as long as that is one kind of device.

    Raises:
        ValueError: if there is no group, an empty one, or one with two sizes.
    """

    groups: dict[str, tuple[View, ...]]

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError("a recipe needs at least one group of views")
        for name, views in self.groups.items():
            sizes = sorted({view.crop.size for view in views})
            if len(sizes) != 1:
                raise ValueError(f"group {name!r} has views of sizes {sizes}; give each size a group of its own")

    @property
    def size(self) -> int:
        """Side of the views of the first group, in pixels."""
        return next(iter(self.groups.values()))[0].crop.size

    @property
    def num_views(self) -> int:
        """Views of one image, over all groups."""
        return sum(len(views) for views in self.groups.values())

    def __call__(self, images: Sequence[Tensor], index: Ints, seed: int, epoch: int) -> dict[str, Tensor]:
        """`crop`, then `augment`: uint8 [B, V, C, H, W] by group."""
        return self.augment(self.crop(images, index, seed, epoch), index, seed, epoch)

    def crop(self, images: Sequence[Tensor], index: Ints, seed: int, epoch: int) -> dict[str, Tensor]:
        """Cut every view out of every image, on the CPU.

        Args:
            images: B uint8 images [C, H, W], of any sizes, with the same number of channels.
            index: int64 [B], the samples' places in the dataset.
            seed: seed of the run.
            epoch: pass over the dataset.

        Returns:
            uint8 [B, V, C, size, size] by group.

        Raises:
            ValueError: if an image is not uint8 [C, H, W] with as many channels as the first.
        """
        _check_images(images, index)
        heights = np.array([image.shape[1] for image in images], dtype=np.int64)
        widths = np.array([image.shape[2] for image in images], dtype=np.int64)
        num_channels = images[0].shape[0] if images else 3
        out = {}
        first = 0
        for name, views in self.groups.items():
            side = views[0].crop.size
            group = torch.empty(len(images), len(views), num_channels, side, side, dtype=torch.uint8)
            for place, view in enumerate(views):
                random = SampleRandom(seed, epoch, index, first + place).at(crc32(b"crop"))
                params = view.crop.draw(random, heights, widths)
                _crop_each(view.crop, images, params, group[:, place])
            out[name] = group
            first += len(views)
        return out

    def augment(self, crops: dict[str, Tensor], index: Ints, seed: int, epoch: int) -> dict[str, Tensor]:
        """Run every view's transforms, on the device that the crops are on.

        Args:
            crops: uint8 [B, V, C, H, W] by group; not written to, but returned where a group has no transforms.
            index: int64 [B], the samples' places in the dataset.
            seed: seed of the run.
            epoch: pass over the dataset.

        Returns:
            uint8 [B, V, C, H, W] by group.
        """
        out = {}
        first = 0
        for name, views in self.groups.items():
            group = crops[name]
            if any(view.transforms for view in views):
                group = group.clone()
            for place, view in enumerate(views):
                if view.transforms:
                    random = SampleRandom(seed, epoch, index, first + place)
                    _augment_chunks(view, random, group[:, place])
            out[name] = group
            first += len(views)
        return out


def evaluation_recipe(image_size: int, eval_resize: int | None = None) -> ViewRecipe:
    """One group "image" with one centre crop of `image_size`, nothing random.

    Args:
        image_size: side of the result, in pixels.
        eval_resize: short side before the crop; default: image_size * 256 / 224 from 64 px on, else image_size.
    """
    if eval_resize is None:
        eval_resize = round(image_size * 256 / 224) if image_size >= 64 else image_size
    return ViewRecipe({"image": (View(CenterCrop(size=image_size, resize=eval_resize)),)})


def _check_images(images: Sequence[Tensor], index: Ints) -> None:
    if len(images) != len(index):
        raise ValueError(f"{len(images)} images came with {len(index)} indices; give one index for each image")
    for image, place in zip(images, index, strict=True):
        if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != images[0].shape[0]:
            shape = f"[{images[0].shape[0]}, H, W]"
            raise ValueError(f"image {place} is {image.dtype} {list(image.shape)}; decode it to uint8 {shape}")


def _crop_each(crop: Crop, images: Sequence[Tensor], params: dict[str, Ints], out: Tensor) -> None:
    """Fill `out` [B, C, size, size]."""
    columns = [values.tolist() for values in params.values()]
    rows = zip(*columns, strict=True) if columns else [()] * len(images)
    for image, row, place in zip(images, rows, out.unbind(0), strict=True):
        place.copy_(crop.apply(image, dict(zip(params, row, strict=True))))


def _augment_chunks(view: View, random: SampleRandom, images: Tensor) -> None:
    """Replace uint8 images [B, C, H, W] by what the view's transforms make of them, some at a time."""
    if len(images) == 0:
        return
    params = view.draw(random)
    step = max(1, CPU_CHUNK // images[0].numel()) if images.device.type == "cpu" else len(images)
    for start in range(0, len(images), step):
        chunk = slice(start, start + step)
        values = [{name: tensor[chunk] for name, tensor in drawn.items()} for drawn in params]
        images[chunk] = view.apply(images[chunk], values)
