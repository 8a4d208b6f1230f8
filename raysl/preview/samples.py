"""Some samples of a dataset and all views that a method would get of them, as pictures."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image
from torch import Tensor

from raysl.data.decode.images import Pictures, read_images
from raysl.data.source import Split
from raysl.data.stream.loader import pair_name, pair_seed
from raysl.errors import ConfigError
from raysl.hashing import Int64s, hash_rows
from raysl.preview.pictures import ViewPicture, view_picture
from raysl.transforms.view_recipe import ViewRecipe

log = logging.getLogger("raysl")

CHOICE = 0x76696577  # what the key of the shown samples is for


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
    """An image before anything is done to it."""

    picture: Image.Image
    height: int
    """In pixels, as it is stored."""
    width: int


@dataclass(frozen=True)
class SampleViews:
    """A sample and what becomes of it."""

    index: int
    label: str
    stored: list[StoredImage]
    """One of each paired source."""
    epochs: list[list[GroupPictures]]
    """The groups of each epoch, from the first on."""


def sample_views(split: Split, recipe: ViewRecipe, seed: int, num: int, num_epochs: int) -> list[SampleViews]:
    """The views of some samples, those that a run of this seed trains with.

    Args:
        split: where the images are.
        recipe: how views are made of them.
        seed: of the run.
        num: samples; all where there are fewer.
        num_epochs: epochs, from the first on.

    Raises:
        ConfigError: if the recipe cannot make its views.
    """
    index = spread_samples(split.num_samples, num)
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
            label=_label(read.labels[place], split.classes),
            stored=[_stored(pictures, place) for pictures in read.pictures],
            epochs=[samples[place] for samples in epochs],
        )
        for place, number in enumerate(index)
    ]


def spread_samples(num_samples: int, num: int) -> Int64s:
    """Places of `num` samples, at a hashed place in each of `num` equal parts of the dataset."""
    num = min(num, num_samples)
    bounds = np.arange(num + 1) * num_samples // num
    widths = np.diff(bounds).astype(np.uint64)
    return bounds[:-1] + (hash_rows(CHOICE, np.arange(num)) % widths).astype(np.int64)


def _epoch(
    sources: Sequence[Pictures], recipe: ViewRecipe, index: Int64s, seed: int, epoch: int
) -> list[list[GroupPictures]]:
    """The groups of each sample in one epoch."""
    samples: list[list[GroupPictures]] = [[] for _ in index]
    for source, pictures in enumerate(sources):
        own_seed = pair_seed(seed, source)
        done = recipe.augment(recipe.crop(pictures.images, index, own_seed, epoch), index, own_seed, epoch)
        for name, group in recipe.groups.items():
            extras = {key: done.extras[f"{name}.{key}"] for key in group[0].extra_names}  # [B, V, ...]
            for place, sample in enumerate(samples):
                images = done.views[name][place].chunk(len(group))  # V of [T, 3, S, S]
                told = [{key: values[place, view] for key, values in extras.items()} for view in range(len(group))]
                shown = [view_picture(*one) for one in zip(group, images, told, strict=True)]
                first = group[0]
                sample.append(GroupPictures(pair_name(name, source), first.size, first.tiles is not None, shown))
    return samples


def _stored(pictures: Pictures, place: int) -> StoredImage:
    return StoredImage(_picture(pictures.images[place]), *pictures.sizes[place])


def _picture(image: Tensor) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))


def _label(label: np.int64 | Int64s, classes: tuple[str, ...]) -> str:
    """What a sample is: the names of its classes, or their numbers where classes have no names."""
    present = np.flatnonzero(label == 1) if np.ndim(label) else np.atleast_1d(label)
    known = [one for one in present.tolist() if one >= 0]
    if not known:
        return "none of the classes" if np.ndim(label) else "unlabelled"
    return "label " + ", ".join(classes[one] if one < len(classes) else str(one) for one in known)
