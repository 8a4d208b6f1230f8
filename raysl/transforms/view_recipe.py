"""Recipes: all views that the data pipeline makes of an image for a method, and for evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from raysl.transforms.crop import CenterCrop, Crop
from raysl.transforms.functional import Interpolation
from raysl.transforms.random import Floats, Ints, SampleRandom
from raysl.transforms.view import View

_CROP = crc32(b"crop")  # slot of a view's random numbers


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
            for what, sizes in (("", {view.size for view in views}), ("crops of ", {view.crop.size for view in views})):
                if len(sizes) != 1:
                    rule = "give each size a group of its own"
                    raise ValueError(f"group {name!r} has {what or 'views of '}sizes {sorted(sizes)}; {rule}")
            if len({view.tiles is None for view in views}) != 1:
                raise ValueError(f"group {name!r} has views with tiles and without; give each kind a group of its own")
            if len(kinds := {view.extra_names for view in views}) != 1:
                told = " and ".join(", ".join(names) or "nothing" for names in sorted(kinds))
                raise ValueError(f"group {name!r} has views that tell {told}; give each kind a group of its own")

    @property
    def size(self) -> int:
        """Side of the views of the first group, in pixels."""
        return next(iter(self.groups.values()))[0].size

    @property
    def num_views(self) -> int:
        """Views of one image, over all groups."""
        return sum(view.num_images for views in self.groups.values() for view in views)

    def __call__(self, images: Sequence[Tensor], index: Ints, seed: int, epoch: int) -> dict[str, Tensor]:
        """`crop`, then `augment`: uint8 [B, V, C, H, W] by group."""
        return self.augment(self.crop(images, index, seed, epoch), index, seed, epoch).views

    def crop(
        self,
        images: Sequence[Tensor],
        index: Ints,
        seed: int,
        epoch: int,
        sizes: Sequence[tuple[int, int]] | None = None,
    ) -> dict[str, Tensor]:
        """Cut every view out of every image, on the CPU.

        Args:
            images: B uint8 images [C, H, W], of any sizes, with the same number of channels.
            index: int64 [B], the samples' places in the dataset.
            seed: seed of the run.
            epoch: pass over the dataset.
            sizes: heights and widths that the crops are drawn for, where images were decoded at a reduced scale;
                default: their own.

        Returns:
            uint8 [B, V, C, size, size] by group.

        Raises:
            ValueError: if an image is not uint8 [C, H, W] with as many channels as the first.
        """
        _check_images(images, index)
        own = [(image.shape[1], image.shape[2]) for image in images]
        sizes = own if sizes is None else sizes
        heights, widths = np.array(sizes, dtype=np.int64).reshape(-1, 2).T
        num_channels = images[0].shape[0] if images else 3
        out = {}
        first = 0
        for name, views in self.groups.items():
            side = views[0].crop.size
            group = torch.empty(len(images), len(views), num_channels, side, side, dtype=torch.uint8)
            for place, view in enumerate(views):
                random = SampleRandom(seed, epoch, index, first + place).at(_CROP)
                params = view.crop.draw(random, heights, widths)
                _crop_each(view.crop, images, params, sizes, group[:, place])
            out[name] = group
            first += len(views)
        return out

    def room(self, sizes: Ints, index: Ints, seed: int, epoch: int) -> Floats:
        """How many times smaller images could be before a view had to enlarge what it would have shrunk.

        Args:
            sizes: heights and widths in pixels, int64 [B, 2].
            index: int64 [B], the samples' places in the dataset.
            seed: seed of the run.
            epoch: pass over the dataset.

        Returns:
            float64 [B].
        """
        heights, widths = sizes.T
        rooms = []
        views = [view for group in self.groups.values() for view in group]
        for number, view in enumerate(views):
            params = view.crop.draw(SampleRandom(seed, epoch, index, number).at(_CROP), heights, widths)
            rooms.append(view.crop.room(params, heights, widths))
        return np.min(rooms, axis=0)  # type: ignore[no-any-return]

    def augment(self, crops: dict[str, Tensor], index: Ints, seed: int, epoch: int) -> "Augmented":
        """Run every view's transforms, on the device that the crops are on.

        Args:
            crops: uint8 [B, V, C, H, W] by group; used up, their memory is that of the result where that is possible.
            index: int64 [B], the samples' places in the dataset.
            seed: seed of the run.
            epoch: pass over the dataset.
        """
        out, extras = {}, {}
        first = 0
        for name, views in self.groups.items():
            group = crops[name].contiguous()
            randoms = [SampleRandom(seed, epoch, index, first + place) for place in range(len(views))]
            done = [view.augment(randoms[place], group, place) for place, view in enumerate(views)]
            cut = [tiles for tiles, _ in done if tiles is not None]
            out[name] = torch.cat(cut, dim=1) if cut else group
            for extra in done[0][1]:
                extras[f"{name}.{extra}"] = torch.stack([told[extra] for _, told in done], dim=1)
            first += len(views)
        return Augmented(out, extras)


@dataclass(frozen=True)
class Augmented:
    """Views of some samples, and what the method has to know of what was drawn for them.

    Args:
        views: uint8 [B, V, C, H, W] by group; a view that is cut into tiles counts as many times as it has tiles.
        extras: [B, V, ...] on the CPU by group and name, such as "global.mask"; V views of the group.
    """

    views: dict[str, Tensor]
    extras: dict[str, Tensor]


def evaluation_recipe(
    image_size: int, eval_resize: int | None = None, interpolation: Interpolation = "bilinear"
) -> ViewRecipe:
    """One group "image" with one centre crop of `image_size`, nothing random.

    Args:
        image_size: side of the result, in pixels.
        eval_resize: short side before the crop; default: image_size * 256 / 224 from 64 px on, else image_size.
        interpolation: how the image is resized.
    """
    if eval_resize is None:
        eval_resize = round(image_size * 256 / 224) if image_size >= 64 else image_size
    return ViewRecipe({"image": (View(CenterCrop(size=image_size, resize=eval_resize, interpolation=interpolation)),)})


def _check_images(images: Sequence[Tensor], index: Ints) -> None:
    if len(images) != len(index):
        raise ValueError(f"{len(images)} images came with {len(index)} indices; give one index for each image")
    for image, place in zip(images, index, strict=True):
        if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != images[0].shape[0]:
            shape = f"[{images[0].shape[0]}, H, W]"
            raise ValueError(f"image {place} is {image.dtype} {list(image.shape)}; decode it to uint8 {shape}")


def _crop_each(
    crop: Crop, images: Sequence[Tensor], params: dict[str, Ints], sizes: Sequence[tuple[int, int]], out: Tensor
) -> None:
    """Fill `out` [B, C, size, size]."""
    columns = [values.tolist() for values in params.values()]
    rows = zip(*columns, strict=True) if columns else [()] * len(images)
    for image, row, size, place in zip(images, rows, sizes, out.unbind(0), strict=True):
        values = dict(zip(params, row, strict=True))
        is_reduced = image.shape[1:] != size
        place.copy_(crop.apply(image, crop.shrunk(values, size, image.shape[1:]) if is_reduced else values))
