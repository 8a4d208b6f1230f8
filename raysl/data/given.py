"""Images that a caller gives, in memory or by their addresses, as a split."""

import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from raysl.data.sources.files import read_if_there
from raysl.data.sources.versions import digest_of, versions_of
from raysl.data.split import Encoded, Rows, Split, runs
from raysl.errors import ConfigError
from raysl.hashing import Int64s
from raysl.storage.addresses import open_uri

MODES = ("1", "L", "LA", "P", "RGB", "RGBA")  # of Pillow's, which a PNG file keeps as they are
DEEP = ("I", "F")  # which a TIFF file does

TOLD = 10  # unusable images that a message lists

GivenImage = bytes | np.ndarray | str
"""An encoded file, pixels as `stored_image` gives them, or the path or URI of a file."""


@dataclass
class GivenImages(Split):
    """Images in memory, or files that are read when they are needed.

    Args:
        images: each of them.
        labels: int64 [N], -1 where unlabelled.
        names: of the images, for messages; default: their places.
    """

    images: Sequence[GivenImage]
    labels: Int64s
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self.unit_sizes = runs(len(self.images))
        self.fingerprint = f"images:{len(self.images)}"
        self.classes = tuple(map(str, range(int(self.labels.max(initial=-1)) + 1)))
        self.is_random_access = True

    @override
    def content(self) -> Mapping[str, str]:
        digest = hashlib.sha256(self.labels.tobytes())
        for image in self.images:
            digest.update(_described(image))
        return {"pixels": digest.hexdigest()[:16]}

    @override
    def written(self, ask: bool = True) -> str:
        files = [open_uri(image) for image in self.images if isinstance(image, str)] if ask else []
        return digest_of(versions_of(files))

    @override
    def read(self, index: Int64s) -> Rows:
        places = index.tolist()
        names = [f"image {place}" if self.names is None else self.names[place] for place in places]
        return Rows([_read(self.images[place]) for place in places], self.labels[index], names)


def _described(image: GivenImage) -> bytes:
    """Pixels with their shape, an encoded file, or the address of one."""
    if isinstance(image, np.ndarray):
        return f"{image.shape}".encode() + image.tobytes()
    return image if isinstance(image, bytes) else image.encode("utf-8", "surrogateescape")


def _read(image: GivenImage) -> Encoded:
    return read_if_there(*open_uri(image)) if isinstance(image, str) else image


def given_list(images: Any) -> list[Any]:
    """Images one by one, of a list, of a batch as one tensor or array, or of one image.

    Raises:
        ConfigError: if there is none.
    """
    is_batch = isinstance(images, Tensor | np.ndarray) and images.ndim == 4
    if is_batch or isinstance(images, list | tuple):
        given = list(images)
    elif isinstance(images, Sequence) and not isinstance(images, str | bytes):
        given = [*images]
    else:
        given = [images]
    if not given:
        raise ConfigError("images: the list is empty; give at least one")
    return given


def given_split(given: Sequence[Any], first: int = 0) -> GivenImages:
    """Images without labels as a split.

    Args:
        given: what `stored_image` takes, encoded bytes, paths and URIs.
        first: place of the first one among all, for messages.

    Raises:
        ConfigError: with all that are none.
    """
    stored: list[GivenImage] = []
    names, wrong = [], []
    for place, image in enumerate(given, first):
        name = f"images[{place}]"
        try:
            if isinstance(image, str | os.PathLike):
                stored.append(str(image))
                name = f"{name} ({image})"
            else:
                stored.append(image if isinstance(image, bytes) else stored_image(image, name))
        except ConfigError as error:
            wrong.append(str(error))
        names.append(name)
    if wrong:
        raise ConfigError(told_unusable(wrong))
    return GivenImages(stored, np.full(len(stored), -1, np.int64), names)


def told_unusable(problems: Sequence[str]) -> str:
    """A message of images that cannot be used, a line each."""
    if len(problems) == 1:
        return f"an image cannot be used: {problems[0]}"
    more = "" if len(problems) <= TOLD else f"\nand {len(problems) - TOLD} more"
    return "\n".join([f"{len(problems)} images cannot be used:", *problems[:TOLD]]) + more


def stored_image(image: Any, name: str) -> bytes | np.ndarray:
    """An image in memory as a split has it: pixels uint8 [H, W] or [H, W, 3], or an encoded file.

    Args:
        image: a uint8 tensor [3, H, W] or [1, H, W], an array [H, W, 3] or [H, W], or an image of Pillow's.
        name: for messages.

    Raises:
        ConfigError: if it is none of these, or Pillow cannot read it.
    """
    if isinstance(image, Tensor | np.ndarray):
        return _pixels(image, name)
    from PIL import Image, ImageOps

    if not isinstance(image, Image.Image):
        raise ConfigError(f"{name} is a {type(image).__name__}; give a uint8 tensor [3, H, W] or an image of Pillow's")
    file = io.BytesIO()
    try:
        upright = ImageOps.exif_transpose(image)
        if upright.mode in DEEP:
            upright.save(file, "TIFF")
        else:
            kept = upright if upright.mode in MODES or upright.mode.startswith("I;16") else upright.convert("RGB")
            kept.save(file, "PNG", compress_level=1)  # so that transparency and depth mean what they do in a file
    except (OSError, ValueError, SyntaxError) as error:
        raise ConfigError(f"{name} cannot be read by Pillow: {error}; leave it out") from error
    return file.getvalue()


def _pixels(image: Tensor | np.ndarray, name: str) -> np.ndarray:
    is_tensor = isinstance(image, Tensor)
    channels = image.shape[0 if is_tensor else 2] if image.ndim == 3 else 1 if image.ndim == 2 else 0
    if image.dtype not in (torch.uint8, np.uint8) or channels not in (1, 3) or 0 in image.shape:
        raise ConfigError(
            f"{name} is {image.dtype} {list(image.shape)}; give pixels from 0 to 255 as uint8 "
            f"{'[3, H, W]' if is_tensor else '[H, W, 3]'}, not normalised, or an image of Pillow's"
        )
    pixels = image.cpu().numpy() if isinstance(image, Tensor) else image
    pixels = pixels.transpose(1, 2, 0) if is_tensor and pixels.ndim == 3 else pixels
    return pixels[:, :, 0] if pixels.ndim == 3 and channels == 1 else pixels


def given_device(device: torch.device | str) -> torch.device:
    """The device of that name.

    Raises:
        ConfigError: if there is none, or it is not on this machine.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device: {device!r} is none that torch knows; give 'cpu' or 'cuda'") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device: {device!r}, and torch sees no GPU here; give 'cpu'")
    return found
