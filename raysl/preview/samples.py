"""Some samples of a dataset and all views that a method would get of them, as pictures."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from raysl.data.decode.images import Pictures, read_images
from raysl.data.source import Split
from raysl.data.sources.sample import sample_rows
from raysl.data.stream.loader import pair_name, pair_seed
from raysl.errors import ConfigError, log
from raysl.hashing import Int64s, hash_rows
from raysl.report.contents import Pixels
from raysl.transforms import Tiles, View, ViewRecipe
from raysl.transforms.channels import to_shown

CHOICE = 0x76696577  # separates this draw from others with the same indices
STRIPES = (225, 60)
"""Grey levels of the stripes over a masked patch."""
VEIL = 0.82
"""Share of the stripes in a masked pixel."""


@dataclass(frozen=True)
class ViewPicture:
    """One view of one sample."""

    picture: Image.Image
    caption: list[str]
    """Lines that say what was drawn for it."""


@dataclass(frozen=True)
class GroupPictures:
    """The views of one group, of one sample in one epoch."""

    name: str
    size: int
    """Side of a view, or of a tile, in pixels."""
    is_tiled: bool
    views: list[ViewPicture]


@dataclass(frozen=True)
class StoredImage:
    """An image as it is stored."""

    picture: Image.Image
    height: int
    """In pixels, as it is stored."""
    width: int


@dataclass(frozen=True)
class SampleViews:
    """A sample and its views."""

    index: int
    label: str
    stored: list[StoredImage]
    """One of each paired source."""
    epochs: list[list[GroupPictures]]
    """The groups of each epoch, from the first on."""


def sample_views(split: Split, recipe: ViewRecipe, seed: int, num: int, num_epochs: int) -> list[SampleViews]:
    """Return the views of some samples in the first epochs, the same that a run with this seed trains with."""
    # where rows cannot be read one by one, `sample_rows` keeps to a few read units if it can
    index = spread_samples(split.num_samples, num) if split.is_random_access else sample_rows(split, num)
    read = read_images(split, index)
    for reason in read.corrupt:
        log.warning("replaced a corrupt image: %s", reason)
    try:
        epochs = [_epoch(read.pictures, recipe, index, seed, epoch) for epoch in range(num_epochs)]
    except ValueError as error:
        raise ConfigError(f"these views cannot be made: {error}") from error
    return [
        SampleViews(
            index=int(number),
            label=_label(read.labels[row], split.classes),
            stored=[_stored(pictures, row) for pictures in read.pictures],
            epochs=[samples[row] for samples in epochs],
        )
        for row, number in enumerate(index)
    ]


def spread_samples(num_samples: int, num: int) -> Int64s:
    """Return the indices of `num` samples, at a hashed position in each of `num` equal parts of the dataset."""
    num = min(num, num_samples)
    bounds = np.arange(num + 1) * num_samples // num
    widths = np.diff(bounds).astype(np.uint64)
    return bounds[:-1] + (hash_rows(CHOICE, np.arange(num)) % widths).astype(np.int64)


def _epoch(
    sources: Sequence[Pictures], recipe: ViewRecipe, index: Int64s, seed: int, epoch: int
) -> list[list[GroupPictures]]:
    """Return the groups of each sample in one epoch."""
    samples: list[list[GroupPictures]] = [[] for _ in index]
    for source, pictures in enumerate(sources):
        # as in training, each paired source has views of its own
        own_seed = pair_seed(seed, source)
        batch = recipe.augment(recipe.crop(pictures.images, index, own_seed, epoch), index, own_seed, epoch)
        for name, group in recipe.groups.items():
            extras = {key: batch.extras[f"{name}.{key}"] for key in group[0].extra_names}  # [B, V, ...]
            for row, sample in enumerate(samples):
                images = batch.views[name][row].chunk(len(group))  # V of [T, C, S, S]
                described = [{key: values[row, view] for key, values in extras.items()} for view in range(len(group))]
                views = [view_picture(*one) for one in zip(group, images, described, strict=True)]
                first = group[0]
                sample.append(GroupPictures(pair_name(name, source), first.size, first.tiles is not None, views))
    return samples


def _stored(pictures: Pictures, row: int) -> StoredImage:
    return StoredImage(_picture(pictures.images[row]), *pictures.sizes[row])


def _picture(image: Tensor) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(to_shown(image).permute(1, 2, 0).numpy()))


def _label(label: np.int64 | Int64s, classes: tuple[str, ...]) -> str:
    """Return the names of a sample's classes, or their numbers where classes have no names."""
    present = np.flatnonzero(label == 1) if np.ndim(label) else np.atleast_1d(label)
    known = [one for one in present.tolist() if one >= 0]
    if not known:
        return "none of the classes" if np.ndim(label) else "unlabelled"
    return "label " + ", ".join(classes[one] if one < len(classes) else str(one) for one in known)


def view_picture(view: View, images: Tensor, extras: dict[str, Tensor]) -> ViewPicture:
    """Return one view of a sample as the method gets it.

    Args:
        images: uint8 [T, C, S, S], its tiles, or itself alone.
        extras: values that the method gets beside it, [...] by name.
    """
    pixels = to_shown(images).permute(0, 2, 3, 1).numpy()  # [T, S, S, 3]
    if view.tiles is not None:
        return ViewPicture(_laid_out(pixels, view.tiles.grid), _captions(view.tiles, extras))
    picture = masked(pixels[0], extras["mask"].numpy()) if "mask" in extras else pixels[0]
    return ViewPicture(Image.fromarray(np.ascontiguousarray(picture)), _captions(None, extras))


def masked(pixels: Pixels, mask: NDArray[np.bool_]) -> Pixels:
    """Return an image [S, S, 3] with stripes over its masked patches, where `mask` [s, s] is true."""
    side = len(pixels) // len(mask)
    period = max(2, side // 2)
    steps = np.arange(len(pixels))
    is_light = (steps[:, None] + steps) % period < period / 2  # [S, S]
    stripes = np.where(is_light, *STRIPES)[..., None]
    veiled = (pixels * (1 - VEIL) + stripes * VEIL).astype(np.uint8)
    is_masked = mask.repeat(side, axis=0).repeat(side, axis=1)[..., None]
    return np.where(is_masked, veiled, pixels)


def _laid_out(tiles: Pixels, grid: int) -> Image.Image:
    """Lay out tiles [T, S, S, 3] column by column, in the order of the cells of the image."""
    size = tiles.shape[1]
    gap = max(1, size // 16)
    side = grid * (size + gap) - gap
    picture = Image.new("RGBA", (side, side), (0, 0, 0, 0))
    for turn, tile in enumerate(tiles):
        column, row = divmod(turn, grid)
        picture.paste(Image.fromarray(np.ascontiguousarray(tile)), (column * (size + gap), row * (size + gap)))
    return picture


def _captions(tiles: Tiles | None, extras: dict[str, Tensor]) -> list[str]:
    """Return the random draws in words; an unknown extra is written as it is where it is one number."""
    lines = []
    for name, value in extras.items():
        if name == "mask":
            lines.append(f"{int(value.sum())} of {value.numel()} patches masked")
        elif name == "targets":
            lines.append(f"patches to predict: {', '.join(map(str, value.flatten(1).sum(dim=1).tolist()))}")
        elif name == "rotation":
            lines.append(f"rotation {90 * int(value)}°")
        elif name == "box":
            top, first, bottom, right, _, _ = value.tolist()
            lines.append(f"rows {top:g} to {bottom:g}, columns {first:g} to {right:g}")
        elif name == "permutation" and tiles is not None:
            lines.append(_permutation(tiles, int(value)))
        elif value.numel() == 1:
            lines.append(f"{name} {value.item():g}")
    return lines


def _permutation(tiles: Tiles, row: int) -> str:
    cells = " ".join(map(str, np.asarray(tiles.order)[row]))
    return f"permutation {row:,} of {len(tiles.order):,}: cells {cells}"
