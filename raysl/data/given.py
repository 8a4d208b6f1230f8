"""Images that a caller passes, in memory or as paths and URIs, as a split."""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from raysl.data.decode.bands import Bands
from raysl.data.decode.pixels import CorruptImage
from raysl.data.sources.image_files import read_if_there
from raysl.data.sources.versions import read_versions, versions_digest
from raysl.data.split import Encoded, Int64s, LabelledSplit, runs
from raysl.errors import ConfigError
from raysl.hashing import digest_each
from raysl.storage.addresses import open_uri

MODES = ("1", "L", "LA", "P", "RGB", "RGBA")  # Pillow's modes that a PNG file can store
DEEP = ("I", "F")  # modes that a TIFF file can store
WITH_ALPHA = {"RGBa": "RGBA", "PA": "RGBA", "La": "LA"}
"""Pillow's modes with transparency that a PNG file cannot store, and the modes that they are converted to."""

MOST_LISTED = 10  # unusable images that a message lists

GivenImage = bytes | np.ndarray | str
"""An encoded file, pixels as `to_stored` returns them, or the path or URI of a file."""


@dataclass
class GivenImages(LabelledSplit):
    """Images in memory, or files that are read when they are needed.

    Args:
        labels: int64 [N], -1 where unlabelled.
        names: names of the images, for messages; default: their numbers.
    """

    images: Sequence[GivenImage]
    labels: Int64s
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self.unit_sizes = runs(len(self.images))
        self.fingerprint = f"images:{len(self.images)}"
        self.classes = tuple(map(str, range(int(self.labels.max(initial=-1)) + 1)))

    @override
    def content(self) -> Mapping[str, str]:
        return {"pixels": digest_each(chain([self.labels.tobytes()], map(_identify, self.images)))}

    @override
    def written(self, ask: bool = True) -> str:
        files = [open_uri(image) for image in self.images if isinstance(image, str)] if ask else []
        return versions_digest(read_versions(files))

    @override
    def images_of(self, index: Int64s) -> list[Encoded]:
        images = (self.images[row] for row in index.tolist())
        return [read_if_there(*open_uri(image)) if isinstance(image, str) else image for image in images]

    @override
    def name_of(self, row: int) -> str:
        return f"image {row}" if self.names is None else self.names[row]


def _identify(image: GivenImage) -> bytes:
    """Return the bytes that identify an image: pixels with their shape, an encoded file, or its address."""
    if isinstance(image, np.ndarray):
        return f"{image.shape}".encode() + image.tobytes()
    return image if isinstance(image, bytes) else image.encode("utf-8", "surrogateescape")


def list_images(images: Any) -> list[Any]:
    """Return a list of images from a list, from a batch as one tensor or array, or from a single image."""
    is_batch = isinstance(images, Tensor | np.ndarray) and images.ndim == 4
    is_list = isinstance(images, Sequence) and not isinstance(images, str | bytes)
    listed = list(images) if is_batch or is_list else [images]
    if not listed:
        raise ConfigError("images: the list is empty; give at least one")
    return listed


def split_images(images: Sequence[Any], first: int = 0, bands: Bands | None = None) -> GivenImages:
    """Make a split of images without labels.

    Args:
        images: images as `to_stored` takes them, encoded bytes, paths or URIs.
        first: number of the first image, for messages.
        bands: channels that are taken as they are stored, see `decode`.
    """
    stored: list[GivenImage] = []
    names, wrong = [], []
    for number, image in enumerate(images, first):
        name = f"images[{number}]"
        try:
            if isinstance(image, str | os.PathLike):
                stored.append(str(image))
                name = f"{name} ({image})"
            else:
                stored.append(image if isinstance(image, bytes) else to_stored(image, name, bands))
        except ConfigError as error:
            wrong.append(str(error))
        names.append(name)
    if wrong:
        raise ConfigError(describe_unusable(wrong))
    return GivenImages(stored, np.full(len(stored), -1, np.int64), names)


def describe_unusable(problems: Sequence[str]) -> str:
    """Write a message about images that cannot be used, a line each."""
    if len(problems) == 1:
        return f"an image cannot be used: {problems[0]}"
    more = "" if len(problems) <= MOST_LISTED else f"\nand {len(problems) - MOST_LISTED} more"
    return "\n".join([f"{len(problems)} images cannot be used:", *problems[:MOST_LISTED]]) + more


def to_stored(image: Any, name: str, bands: Bands | None = None) -> bytes | np.ndarray:
    """Convert an image in memory to what a split stores: pixels uint8 [H, W] or [H, W, 3], or an encoded file.

    Args:
        image: a uint8 tensor [3, H, W] or [1, H, W], an array [H, W, 3] or [H, W], or a Pillow image.
        bands: how channels are read that are taken as they are stored: then [C, H, W] and [H, W, C] of any numbers.

    >>> to_stored(torch.zeros(3, 4, 5, dtype=torch.uint8), "image").shape
    (4, 5, 3)
    """
    if isinstance(image, Tensor | np.ndarray):
        return _pixels(image, name) if bands is None else _samples(image, name, bands)
    from PIL import Image, ImageOps

    if not isinstance(image, Image.Image):
        raise ConfigError(f"{name} is a {type(image).__name__}; give a uint8 tensor [3, H, W] or a Pillow image")
    file = io.BytesIO()
    try:
        upright = ImageOps.exif_transpose(image)
        if upright.mode in DEEP:
            upright.save(file, "TIFF")
        else:
            is_storable = upright.mode in MODES or upright.mode.startswith("I;16")
            storable = upright if is_storable else upright.convert(WITH_ALPHA.get(upright.mode, "RGB"))
            # As a file, so that transparency and depth are treated as in files.
            storable.save(file, "PNG", compress_level=1)
    except (OSError, ValueError, SyntaxError) as error:
        raise ConfigError(f"{name} cannot be read by Pillow: {error}; leave it out") from error
    return file.getvalue()


def _pixels(image: Tensor | np.ndarray, name: str) -> np.ndarray:
    is_tensor = isinstance(image, Tensor)
    channels = image.shape[0 if is_tensor else 2] if image.ndim == 3 else 1 if image.ndim == 2 else 0
    if image.dtype not in (torch.uint8, np.uint8) or channels not in (1, 3) or 0 in image.shape:
        way = f"{'[3, H, W]' if is_tensor else '[H, W, 3]'}, not normalised, or a Pillow image"
        if channels == 4:
            rgb = "image[:3]" if is_tensor else "image[:, :, :3]"
            way += f"; without its transparency it is {rgb}, and a Pillow image may keep it"
        raise ConfigError(f"{name} is {image.dtype} {list(image.shape)}; give pixels from 0 to 255 as uint8 {way}")
    pixels = image.cpu().numpy() if isinstance(image, Tensor) else image
    pixels = pixels.transpose(1, 2, 0) if is_tensor and pixels.ndim == 3 else pixels
    return pixels[:, :, 0] if pixels.ndim == 3 and channels == 1 else pixels


def _samples(image: Tensor | np.ndarray, name: str, bands: Bands) -> np.ndarray:
    """Return the numbers of an image [H, W] or [H, W, C], after a try to read its channels."""
    samples = image.cpu().numpy() if isinstance(image, Tensor) else image
    if samples.ndim not in (2, 3) or samples.dtype.kind not in "buif" or 0 in samples.shape:
        way = f"[{bands.num}, H, W]" if isinstance(image, Tensor) else f"[H, W, {bands.num}]"
        raise ConfigError(f"{name} is {image.dtype} {list(image.shape)}; give numbers {way}")
    samples = samples.transpose(1, 2, 0) if isinstance(image, Tensor) and samples.ndim == 3 else samples
    try:
        return bands.to_uint8(samples) if bands.value_range is None else samples
    except CorruptImage as error:
        raise ConfigError(f"{name}: {error}") from error


def parse_device(device: torch.device | str) -> torch.device:
    """Return the device of this name."""
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device: torch does not know {device!r}; give 'cpu' or 'cuda'") from error
    if parsed.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device: {device!r}, but torch finds no GPU here; give 'cpu'")
    return parsed
