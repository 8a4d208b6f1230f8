"""Views of a user's own images, for `fit` in a notebook: the same that a run makes of a dataset."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from raysl import dist
from raysl.arguments import run_config
from raysl.components import Classes
from raysl.config.schema import RunConfig
from raysl.data.batch import Batch
from raysl.data.decode.background import color_of
from raysl.data.split import Rows, Split, runs, seen_on
from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError
from raysl.hashing import Int64s
from raysl.methods.setup import Setup
from raysl.train.prepare import checked_views, loader_of

if TYPE_CHECKING:
    from PIL.Image import Image

    Picture = Tensor | np.ndarray | Image

MODES = ("1", "L", "LA", "P", "RGB", "RGBA")  # of Pillow's, which a PNG file keeps as they are
DEEP = ("I", "F")  # which a TIFF file does


@overload
def views(
    config: RunConfig,
    images: "Sequence[Picture]",
    epoch: None = None,
    *,
    labels: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
) -> LocalBatches: ...


@overload
def views(
    config: RunConfig,
    images: "Sequence[Picture]",
    epoch: int,
    *,
    labels: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
) -> list[Batch]: ...


def views(
    config: RunConfig,
    images: "Sequence[Picture]",
    epoch: int | None = None,
    *,
    labels: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
) -> LocalBatches | list[Batch]:
    """Batches of views of images, made by the recipe of a run's method: what `raysl.train.fit` takes.

    Views and their order are a function of the images, the run's seed, the epoch and an image's place among them, as in
    a run on a dataset.

    Args:
        config: the run's settings; its method, seed, batch size, normalisation and sizes count.
        images: uint8 tensors [3, H, W] or [1, H, W] of any sizes, arrays [H, W, 3] or [H, W], or Pillow's images.
        epoch: which pass; default: all of them, a stream whose views are drawn anew in each epoch.
        labels: an integer for each image; default: none have one.
        device: where batches go.

    Returns:
        The batches of one epoch as a list, or of all epochs as a stream.

    Raises:
        ConfigError: if an image, a label or a setting is wrong.
    """
    run_config(config)
    found = _checked(images)
    split = seen_on(_Images(found, _labels(labels, len(found))), color_of(config.data.background))
    setup, classes = Setup.of(config, split.num_samples, len(split.classes)), Classes.of(config)
    loader = loader_of(setup, split, checked_views(setup, classes), augment_in_task=True)
    stream = LocalBatches(loader, dist.rank(), dist.world(), _device(device))
    if epoch is None:
        return stream
    if type(epoch) is not int or epoch < 0:
        raise ConfigError(
            f"epoch: {epoch!r} is no pass over the images; give a whole number from 0 on, or None for all"
        )
    batches = stream.from_step(epoch * setup.plan.epoch_len)
    return [next(batches) for _ in range(setup.plan.epoch_len)]


@dataclass
class _Images(Split):
    """Images in memory."""

    images: list[bytes | np.ndarray]
    labels: Int64s

    def __post_init__(self) -> None:
        self.unit_sizes = runs(len(self.images))
        self.fingerprint = f"images:{len(self.images)}"
        self.classes = tuple(map(str, range(int(self.labels.max(initial=-1)) + 1)))
        self.is_random_access = True

    def read(self, index: Int64s) -> Rows:
        """See `Split.read`."""
        places = index.tolist()
        return Rows([self.images[place] for place in places], self.labels[index], [f"image {n}" for n in places])


def _checked(images: Any) -> list[bytes | np.ndarray]:
    """Images as a split has them."""
    try:
        found = list(images)
    except TypeError as error:
        raise ConfigError(f"images: a {type(images).__name__} is no list of images") from error
    if not found:
        raise ConfigError("images: the list is empty; give at least as many as train.batch_size")
    return [_stored(image, f"images[{place}]") for place, image in enumerate(found)]


def _stored(image: Any, name: str) -> bytes | np.ndarray:
    """One image as pixels [H, W] or [H, W, 3], or as an encoded file."""
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


def _device(device: torch.device | str) -> torch.device:
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device: {device!r} is none that torch knows; give 'cpu' or 'cuda'") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device: {device!r}, and torch sees no GPU here; give 'cpu'")
    return found


def _labels(labels: Sequence[int] | None, num: int) -> Int64s:
    if labels is None:
        return np.full(num, -1, np.int64)
    try:
        found = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"labels: {error}; give a whole number for each image") from error
    if found.shape != (num,) or found.is_floating_point():
        raise ConfigError(
            f"labels: {list(found.shape)} of {found.dtype} for {num} images; give a whole number for each"
        )
    return found.cpu().numpy().astype(np.int64)
