"""Views of a user's own images for `fit` in a notebook, made as a run makes them of a dataset."""

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.components import Classes
from raysl.config.arguments import run_config
from raysl.config.background import parse_color
from raysl.config.load import apply_overrides
from raysl.config.places import data_setting
from raysl.config.schema import RunConfig
from raysl.data.batch import Batch
from raysl.data.decode.bands import Bands, bands_of
from raysl.data.given import GivenImage, GivenImages, parse_device, to_stored
from raysl.data.source import make_source
from raysl.data.split import Int64s, Split, with_facts
from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError, log
from raysl.plan.adapt import describe_adapted
from raysl.plan.setup import Setup
from raysl.train.prepare import check_views, make_loader

if TYPE_CHECKING:
    from PIL.Image import Image

    Picture = Tensor | np.ndarray | Image | bytes | str | os.PathLike[str]
    Pictures = Sequence[Picture] | Tensor | np.ndarray | str | os.PathLike[str]


@overload
def views(
    config: RunConfig,
    images: "Pictures",
    epoch: None = None,
    *,
    labels: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
) -> "Views": ...


@overload
def views(
    config: RunConfig,
    images: "Pictures",
    epoch: int,
    *,
    labels: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
) -> list[Batch]: ...


def views(
    config: RunConfig,
    images: "Pictures",
    epoch: int | None = None,
    *,
    labels: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
) -> "Views | list[Batch]":
    """Return batches of views of images, made by the recipe of a run's method, as `raysl.train.fit` takes them.

    A stream can be looped over: each loop is another pass, the first one epoch 0.

    Views and their order are a function of the images, their order, the run's seed and the epoch, as in a run on a
    dataset.

    >>> import raysl
    >>> config = raysl.load_config("quickstart", ["train.batch_size=2"])
    >>> (batch,) = raysl.views(config, [torch.zeros(3, 20, 20, dtype=torch.uint8)] * 2, epoch=0)
    >>> list(batch.views["global"].shape)
    [2, 2, 3, 16, 16]

    Args:
        config: the run's settings; its method, seed, batch size, normalisation and sizes count.
        images: a list of paths, URIs, encoded bytes, uint8 tensors [3, H, W] or [1, H, W] of any sizes, arrays
            [H, W, 3] or [H, W], or Pillow's images; a batch of uint8 tensors [N, 3, H, W] or arrays [N, H, W, 3]; or
            the path or URI of a folder of images, with its labels.
        epoch: the number of one pass over the images; default: a stream of all epochs.
        labels: an integer for each image; default: no labels, or those of a folder.

    Returns:
        The batches of one epoch as a list, or of all epochs as a stream.

    Raises:
        ConfigError: if an image, a label or a setting is wrong.
    """
    run_config(config)
    background, bands = parse_color(config.data.background), bands_of(config.data)
    split = with_facts(_make_split(config, images, labels), background=background, bands=bands)
    setup, classes = Setup.of(config, split.num_samples, len(split.classes)), Classes.of(config)
    if line := describe_adapted(config, setup.as_written, split.num_samples):
        log.info(line)
    loader = make_loader(setup, classes, split, check_views(setup, classes), augment_in_task=True)
    stream = Views(loader, dist.rank(), dist.world(), parse_device(device))
    if epoch is None:
        return stream
    if type(epoch) is not int or epoch < 0:
        raise ConfigError(
            f"epoch: {epoch!r} is not a pass over the images; give a whole number from 0 on, or None for all"
        )
    batches = stream.from_step(epoch * setup.plan.epoch_len)
    return [next(batches) for _ in range(setup.plan.epoch_len)]


@dataclass(frozen=True, repr=False)
class Views(LocalBatches):
    """Batches of views of all epochs; a loop over them is one pass, and the next loop the next one."""

    passes: Iterator[int] = field(default_factory=itertools.count, init=False)

    def __len__(self) -> int:
        """Number of batches of a pass."""
        return self.loader.order.epoch_len

    def __iter__(self) -> Iterator[Batch]:
        """Return the batches of the next pass."""
        return itertools.islice(self.from_step(next(self.passes) * len(self)), len(self))

    def __repr__(self) -> str:
        """The numbers of images and batches, and where these are."""
        num, size = self.loader.split.num_samples, self.loader.order.batch_size
        return f"Views({num:,} images; {len(self):,} batches of {size:,} in a pass; on {self.device})"


def _make_split(config: RunConfig, images: Any, labels: Sequence[int] | None) -> Split:
    """Return images as a split: those of a folder, or those of a list."""
    if isinstance(images, str | os.PathLike):
        if labels is not None:
            raise ConfigError(
                "labels: images in a folder have those of their sub-folders; give a list of paths instead"
            )
        return make_source(apply_overrides(config, [data_setting(os.fspath(images))]).data).required("train")
    bands = bands_of(config.data)
    if _is_one_image(images, bands):
        raise ConfigError("images: this is one image; give a list of images, [image, ...], or a batch [N, 3, H, W]")
    try:
        pictures = list(images)
    except TypeError as error:
        raise ConfigError(f"images: a {type(images).__name__} is not a list of images; give one") from error
    if not pictures:
        raise ConfigError("images: the list is empty; give at least as many as train.batch_size")
    stored = [_stored(image, f"images[{number}]", bands) for number, image in enumerate(pictures)]
    names = [image if isinstance(image, str) else f"image {number}" for number, image in enumerate(stored)]
    return GivenImages(stored, _check_labels(labels, len(pictures)), names)


def _is_one_image(images: Any, bands: Bands | None) -> bool:
    """Whether these are the pixels or the file of a single image; [N, H, W] with another N is a batch of grey ones."""
    if isinstance(images, Tensor | np.ndarray):
        channels = images.shape[0 if isinstance(images, Tensor) else -1] if images.ndim == 3 else 1
        return images.ndim in (2, 3) and channels in ((1, 3, 4) if bands is None else (bands.num,))
    from PIL import Image

    return isinstance(images, bytes | Image.Image)


def _stored(image: Any, name: str, bands: Bands | None) -> GivenImage:
    """Return an image as a split stores it; a path is made absolute, and read when it is needed."""
    if isinstance(image, bytes):
        return image
    if not isinstance(image, str | os.PathLike):
        return to_stored(image, name, bands)
    path = os.fspath(image)
    if "://" not in path and not os.path.isfile(os.path.expanduser(path)):
        raise ConfigError(f"{name}: nothing is at {path!r}; give paths of files, or a list of tensors or Pillow images")
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))


def _check_labels(labels: Sequence[int] | None, num: int) -> Int64s:
    if labels is None:
        return np.full(num, -1, np.int64)
    try:
        numbers = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"labels: {error}; give a whole number for each image") from error
    if numbers.shape != (num,) or numbers.is_floating_point():
        raise ConfigError(
            f"labels: {list(numbers.shape)} of {numbers.dtype} for {num} images; give a whole number for each"
        )
    return numbers.cpu().numpy().astype(np.int64)
