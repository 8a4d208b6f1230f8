"""Views of a user's own images for `fit` in a notebook, made as a run makes them of a dataset."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.components import Classes
from raysl.config.arguments import run_config
from raysl.config.background import parse_color
from raysl.config.schema import RunConfig
from raysl.data.batch import Batch
from raysl.data.given import GivenImage, GivenImages, parse_device, to_stored
from raysl.data.split import with_background
from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError
from raysl.hashing import Int64s
from raysl.plan.setup import Setup
from raysl.runs.prepare import check_views, make_loader

if TYPE_CHECKING:
    from PIL.Image import Image

    Picture = Tensor | np.ndarray | Image


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
    """Return batches of views of images, made by the recipe of a run's method, as `raysl.train.fit` takes them.

    Views and their order are a function of the images, their order, the run's seed and the epoch, as in a run on a
    dataset.

    >>> import raysl
    >>> config = raysl.load_config("quickstart", ["train.batch_size=2"])
    >>> (batch,) = raysl.views(config, [torch.zeros(3, 20, 20, dtype=torch.uint8)] * 2, epoch=0)
    >>> list(batch.views["global"].shape)
    [2, 2, 3, 16, 16]

    Args:
        config: the run's settings; its method, seed, batch size, normalisation and sizes count.
        images: uint8 tensors [3, H, W] or [1, H, W] of any sizes, arrays [H, W, 3] or [H, W], or Pillow's images.
        epoch: the number of one pass over the images; default: a stream of all epochs.
        labels: an integer for each image; default: no labels.
        device: of the batches.

    Returns:
        The batches of one epoch as a list, or of all epochs as a stream.

    Raises:
        ConfigError: if an image, a label or a setting is wrong.
    """
    run_config(config)
    given = _check_images(images)
    split = with_background(GivenImages(given, _check_labels(labels, len(given))), parse_color(config.data.background))
    setup, classes = Setup.of(config, split.num_samples, len(split.classes)), Classes.of(config)
    loader = make_loader(setup, split, check_views(setup, classes), augment_in_task=True)
    stream = LocalBatches(loader, dist.rank(), dist.world(), parse_device(device))
    if epoch is None:
        return stream
    if type(epoch) is not int or epoch < 0:
        raise ConfigError(
            f"epoch: {epoch!r} is not a pass over the images; give a whole number from 0 on, or None for all"
        )
    batches = stream.from_step(epoch * setup.plan.epoch_len)
    return [next(batches) for _ in range(setup.plan.epoch_len)]


def _check_images(images: Any) -> list[GivenImage]:
    """Return images as a split stores them."""
    try:
        given = list(images)
    except TypeError as error:
        raise ConfigError(f"images: a {type(images).__name__} is not a list of images; give one") from error
    if not given:
        raise ConfigError("images: the list is empty; give at least as many as train.batch_size")
    return [to_stored(image, f"images[{number}]") for number, image in enumerate(given)]


def _check_labels(labels: Sequence[int] | None, num: int) -> Int64s:
    if labels is None:
        return np.full(num, -1, np.int64)
    try:
        given = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"labels: {error}; give a whole number for each image") from error
    if given.shape != (num,) or given.is_floating_point():
        raise ConfigError(
            f"labels: {list(given.shape)} of {given.dtype} for {num} images; give a whole number for each"
        )
    return given.cpu().numpy().astype(np.int64)
