"""Recipes: all views that the data pipeline makes of an image, for a method and for evaluation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from raysl.transforms.crop import CenterCrop, CropParams, RandomResizedCrop
from raysl.transforms.cutting import Cuts, boxes_of, cut_each
from raysl.transforms.functional import Interpolation
from raysl.transforms.random import Floats, Ints, SampleRandom
from raysl.transforms.resized_boxes import stack_small
from raysl.transforms.transform import Transform
from raysl.transforms.view import View, augment

_CROP = crc32(b"crop")  # slot of a view's random numbers


@dataclass(frozen=True)
class ViewRecipe:
    """All views of an image, by group; the views of a group share one output size.

    Views are numbered through all groups, and the number is part of the key of their randomness. A sample's views
    are a function of (image, seed, epoch, index): its batch, the number of threads and the process change no pixel on
    one kind of device.

    >>> recipe = evaluation_recipe(image_size=32)
    >>> recipe([torch.zeros(3, 60, 80, dtype=torch.uint8)], index=np.array([0]), seed=0, epoch=0)["image"].shape
    torch.Size([1, 1, 3, 32, 32])

    Args:
        groups: the views.
        cycle: number of epochs after which an image's views come again. Default: they never do.

    Raises:
        ValueError: if there is no group, an empty one, or one with two sizes; or if a view lies inside one that is not
            an earlier one with a box.
    """

    groups: dict[str, tuple[View, ...]]
    cycle: int | None = None

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
                extras = " and ".join(", ".join(names) or "nothing" for names in sorted(kinds))
                raise ValueError(f"group {name!r} has views with extras {extras}; give each kind a group of its own")
        self._check_inside()

    @property
    def size(self) -> int:
        """Side of the views of the first group, in pixels."""
        return next(iter(self.groups.values()))[0].size

    @property
    def crop_names(self) -> tuple[str, ...]:
        """Names of what `crop` returns: the groups, and `GROUP.box` of those with boxes."""
        return (*self.groups, *(f"{name}.box" for name, views in self.groups.items() if views[0].box))

    def with_boxes(self) -> "ViewRecipe":
        """Return the same views, whose boxes the method gets as `batch.extras["GROUP.box"]`, see `View.box`.

        Raises:
            ValueError: if a view cannot have one.
        """
        groups = {name: tuple(replace(view, box=True) for view in views) for name, views in self.groups.items()}
        return replace(self, groups=groups)

    def with_transforms(self, transforms: tuple[Transform, ...]) -> "ViewRecipe":
        """Return the same views with further transforms behind those of each view."""
        groups = {
            name: tuple(replace(view, transforms=(*view.transforms, *transforms)) for view in views)
            for name, views in self.groups.items()
        }
        return replace(self, groups=groups)

    def of_whole_images(self) -> "ViewRecipe":
        """Return one view of each group: the middle of the image without transforms; tiles and masks stay."""
        groups: dict[str, tuple[View, ...]] = {}
        for name, (view, *_) in self.groups.items():
            crop = CenterCrop(size=view.crop.size, resize=view.crop.size)
            groups[name] = (View(crop, tiles=view.tiles, mask=view.mask),)
        return replace(self, groups=groups)

    def resized(self, interpolation: Interpolation) -> "ViewRecipe":
        """Return the same views for evaluation (see `evaluation_recipe`), resized with another interpolation."""
        (view,) = self.groups["image"]
        assert isinstance(view.crop, CenterCrop)
        return replace(self, groups={"image": (replace(view, crop=replace(view.crop, interpolation=interpolation)),)})

    @property
    def num_views(self) -> int:
        """Number of views of one image, over all groups."""
        return sum(view.num_images for views in self.groups.values() for view in views)

    def __call__(self, images: Sequence[Tensor], index: Ints, seed: int, epoch: int) -> dict[str, Tensor]:
        """Crop and augment: uint8 [B, V, C, H, W] by group."""
        return self.augment(self.crop(images, index, seed, epoch), index, seed, epoch).views

    def crop(
        self,
        images: Sequence[Tensor],
        index: Ints,
        seed: int,
        epoch: int,
        sizes: Sequence[tuple[int, int]] | None = None,
    ) -> dict[str, Tensor]:
        """Cut every view from every image, on the CPU.

        Args:
            images: B uint8 images [C, H, W], of any sizes, with the same number of channels.
            index: int64 [B], the samples' indices in the dataset.
            seed: seed of the run.
            epoch: pass over the dataset.
            sizes: heights and widths to draw the crops for, where images were decoded at a reduced scale;
                default: the sizes of `images`.

        Returns:
            uint8 [B, V, C, size, size] by group; and as "GROUP.box", float32 [B, V, 6], where the crops lie if views
            ask for it (`View.box`). A reduced scale is undone: a box is in pixels of the whole image.

        Raises:
            ValueError: if an image is not uint8 [C, H, W] with as many channels as the first.
        """
        _check_images(images, index)
        sizes = [(image.shape[1], image.shape[2]) for image in images] if sizes is None else sizes
        heights, widths = np.array(sizes, dtype=np.int64).reshape(-1, 2).T
        num_channels = images[0].shape[0] if images else 3
        small = stack_small(images)
        out: dict[str, Tensor] = {}
        cuts: list[Cuts] = []
        drawn = self._drawn_crops(heights, widths, index, seed, epoch)
        for name, views in self.groups.items():
            side = views[0].crop.size
            group = torch.empty(len(images), len(views), num_channels, side, side, dtype=torch.uint8)
            boxes = torch.empty(len(images), len(views), 6)
            for number, view in enumerate(views):
                params = next(drawn)
                if small is None or not view.crop.cut_small(small, params, group[:, number]):
                    cuts.append(Cuts(view.crop, params, group[:, number]))
                if view.box:
                    boxes[:, number] = boxes_of(view.crop, images, params, sizes)
            out[name] = group
            if views[0].box:
                out[f"{name}.box"] = boxes
        cut_each(images, sizes, cuts)
        return out

    def room(self, sizes: Ints, index: Ints, seed: int, epoch: int) -> Floats:
        """Return how many times smaller images could be before a view had to enlarge its crop, float64 [B].

        Args:
            sizes: heights and widths in pixels, int64 [B, 2].
            index: int64 [B], the samples' indices in the dataset.
            seed: seed of the run.
            epoch: pass over the dataset.
        """
        heights, widths = sizes.T
        drawn = self._drawn_crops(heights, widths, index, seed, epoch)
        rooms = [view.crop.room(params, heights, widths) for view, params in zip(self._all_views, drawn, strict=True)]
        return np.min(rooms, axis=0)  # type: ignore[no-any-return]

    def blank(self, num: int, num_channels: int = 3) -> dict[str, Tensor]:
        """Return black crops of `num` images for `augment`, each of a whole image of its size."""
        out = {}
        for name, views in self.groups.items():
            side = views[0].crop.size
            out[name] = torch.zeros(num, len(views), num_channels, side, side, dtype=torch.uint8)
            if views[0].box:
                out[f"{name}.box"] = torch.tensor([0.0, 0.0, *[side] * 4]).expand(num, len(views), 6).clone()
        return out

    def augment(self, crops: dict[str, Tensor], index: Ints, seed: int, epoch: int) -> "Augmented":
        """Run every view's transforms, on the device of the crops.

        Args:
            crops: the result of `crop`, uint8 [B, V, C, H, W] by group and boxes; views are overwritten, since the
                result reuses their memory where possible.
            index: int64 [B], the samples' indices in the dataset.
            seed: seed of the run.
            epoch: pass over the dataset.
        """
        out, extras = {}, {}
        for name, views, randoms in self._with_randoms(seed, epoch, index):
            group = crops[name].contiguous()
            results = augment(views, randoms, group, crops[f"{name}.box"] if views[0].box else None)
            cut = [tiles for tiles, _ in results if tiles is not None]
            out[name] = torch.cat(cut, dim=1) if cut else group
            for extra in results[0][1]:
                extras[f"{name}.{extra}"] = torch.stack([values[extra] for _, values in results], dim=1)
        return Augmented(out, extras)

    @property
    def _all_views(self) -> list[View]:
        """Views of all groups in the order of their numbers."""
        return [view for views in self.groups.values() for view in views]

    def _drawn_crops(self, heights: Ints, widths: Ints, index: Ints, seed: int, epoch: int) -> Iterator[CropParams]:
        """Yield the parameters of each view's crop for images of these sizes, int64 [B] each."""
        drawn: list[CropParams] = []
        for _, views, randoms in self._with_randoms(seed, epoch, index):
            for view, random in zip(views, randoms, strict=True):
                if view.inside is None:
                    params = view.crop.draw(random.at(_CROP), heights, widths)
                else:
                    outer = drawn[view.inside]
                    params = view.crop.draw(random.at(_CROP), outer["height"], outer["width"])
                    params |= {side: params[side] + outer[side] for side in ("top", "left")}
                drawn.append(params)
                yield params

    def _check_inside(self) -> None:
        """Refuse a view that lies in a later one, and crops that are not boxes."""
        views = self._all_views
        for number, view in enumerate(views):
            if view.inside is None:
                continue
            if not 0 <= view.inside < number:
                raise ValueError(f"view {number} lies inside view {view.inside}; give the number of an earlier view")
            if {type(view.crop), type(views[view.inside].crop)} != {RandomResizedCrop}:
                raise ValueError(f"view {number} lies inside view {view.inside}; both need a RandomResizedCrop")

    def _with_randoms(
        self, seed: int, epoch: int, index: Ints
    ) -> Iterator[tuple[str, tuple[View, ...], list[SampleRandom]]]:
        """Yield the name and the views of each group, with the random numbers of each view in an epoch."""
        epoch = epoch if self.cycle is None else epoch % self.cycle
        first = 0
        for name, views in self.groups.items():
            keys = [n if view.repeats is None else view.repeats for n, view in enumerate(views, first)]
            yield name, views, [SampleRandom(seed, epoch, index, key) for key in keys]
            first += len(views)


@dataclass(frozen=True)
class Augmented:
    """Views of some samples, and the extras that the method needs.

    Args:
        views: uint8 [B, V, C, H, W] by group; each tile counts as a view.
        extras: [B, V, ...] by group and name, such as "global.mask"; V views of the group; on the CPU, but for boxes,
            which are where the crops' are.
    """

    views: dict[str, Tensor]
    extras: dict[str, Tensor]


def evaluation_recipe(
    image_size: int, eval_resize: int | None = None, interpolation: Interpolation = "bilinear"
) -> ViewRecipe:
    """Return the recipe for evaluation: one group "image" with one centre crop, nothing random.

    >>> recipe = evaluation_recipe(image_size=224)
    >>> recipe.size, recipe.groups["image"][0].crop.resize
    (224, 256)

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
        raise ValueError(f"{len(images)} images were given with {len(index)} indices; give one index for each image")
    for image, number in zip(images, index, strict=True):
        if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != images[0].shape[0]:
            shape = f"[{images[0].shape[0]}, H, W]"
            raise ValueError(f"image {number} is {image.dtype} {list(image.shape)}; decode it to uint8 {shape}")
