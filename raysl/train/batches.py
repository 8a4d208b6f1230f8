"""What `fit` trains on: a stream of batches, or a list of them, looked at before the first step."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.data.batch import Batch
from raysl.data.order import Order, rank_share
from raysl.data.source import Split
from raysl.data.sources.subset import Subset, even_share
from raysl.data.stream.loader import Loader, LocalBatches
from raysl.errors import ConfigError
from raysl.plan.plan import TrainPlan
from raysl.train.state import TrainState
from raysl.transforms.view_recipe import ViewRecipe

log = logging.getLogger("raysl")

WAY = "raysl.views(config, images) makes batches of your images"


@runtime_checkable
class BatchStream(Protocol):
    """This rank's batches, by step."""

    def from_step(self, step: int) -> Iterator[Batch]:
        """Rows of the global batches from `step` on."""

    def plain(self) -> Iterator[Batch]:
        """This rank's share of the training images without augmentation, in dataset order, as the group "image" of one
        view; where ranks share the work of making them, all ranks call it, and go through it to its end."""


class ListBatches:
    """A list of batches as a stream that goes through it again and again."""

    def __init__(self, batches: Sequence[Batch], plan: TrainPlan) -> None:
        self.batches = batches
        self.plan = plan

    def from_step(self, step: int) -> Iterator[Batch]:
        """See `BatchStream.from_step`."""
        while True:
            batch = self.batches[step % len(self.batches)]
            yield replace(batch, seed=self.plan.seed, epoch=self.plan.step(step).epoch, step=step)
            step += 1

    def plain(self) -> Iterator[Batch]:
        """The first view of each image, once: a list holds no other form of its images."""
        for batch in self.batches:
            yield replace(batch, views={"image": next(iter(batch.views.values()))[:, :1]}, extras={})


def some_images(stream: BatchStream, most: int, device: torch.device) -> Iterator[Batch]:
    """This rank's part of an even share of the training images, without augmentation, as `BatchStream.plain` has them.

    Args:
        stream: of the run; one without a loader is gone through from its beginning.
        most: images of all ranks together.
        device: where batches go.
    """
    if isinstance(stream, _Loading):
        whole = stream.loader.split
        split = even_share(whole, most)
        own = rank_share(split.num_samples, dist.rank(), dist.world())
        for batch in stream.loader.plain_batches(split, own.start, own.stop, device):
            yield batch if split is whole else _as_of(split, batch)
        return
    left = most // dist.world() + (dist.rank() < most % dist.world())
    for batch in stream.plain():  # to its end, as the protocol asks
        if left > 0:
            rows = min(left, len(batch))
            left -= rows
            yield batch.map(partial(_first, rows, device))


def _as_of(part: Split, batch: Batch) -> Batch:
    """A batch of a part of a dataset with the places of its images in the whole."""
    assert isinstance(part, Subset)
    places = part.rows[batch.index.cpu().numpy()]
    return replace(batch, index=torch.from_numpy(places).to(batch.index.device), host_index=places)


def _first(num: int, device: torch.device, values: Tensor) -> Tensor:
    return values[:num].to(device)


@runtime_checkable
class _Loading(Protocol):
    """A stream whose loader reads any image."""

    loader: Loader


def stream_of(batches: BatchStream | Sequence[Batch], state: TrainState, plan: TrainPlan) -> BatchStream:
    """What `fit` was given, as a stream.

    Args:
        batches: a stream, or a list.
        state: what is to be trained.
        plan: how.

    Raises:
        ConfigError: if it is neither, or the list's batches are not those that the plan and the method need.
    """
    if state.step >= plan.total_steps:
        log.warning(
            "nothing is left to train: the state is at step %d of %d; make a new one with TrainState.create, "
            "or a plan with more train.epochs",
            state.step,
            plan.total_steps,
        )
    if isinstance(batches, LocalBatches):
        _check_order(batches.loader.order, plan)
    if isinstance(batches, BatchStream):
        return batches
    if not isinstance(batches, list | tuple):
        raise ConfigError(
            f"batches: a {type(batches).__name__} cannot be read from any step on; give a list of Batch; {WAY}"
        )
    if not batches:
        raise ConfigError(f"batches: the list is empty; {WAY}")
    recipe = type(state.method).views(state.setup)
    for place, batch in enumerate(batches):
        _check(batch, f"batches[{place}]", recipe, state.config.method.name)
    _check_rows(batches, plan)
    return ListBatches(batches, plan)


def _check_order(order: Order, plan: TrainPlan) -> None:
    """Refuse a stream of other images than those of the plan."""
    if (order.batch_size, order.epoch_len) != (plan.batch_size, plan.epoch_len):
        raise ConfigError(
            f"batches: a stream with {order.epoch_len} batches of {order.batch_size} in an epoch, and the plan has "
            f"{plan.epoch_len} of {plan.batch_size}; make both from the same settings, the plan with "
            f"num_samples={order.num_samples}"
        )


def _check_rows(batches: Sequence[Batch], plan: TrainPlan) -> None:
    """Refuse batches of another size than the plan's; say so where there are more or fewer than in an epoch."""
    for place, batch in enumerate(batches):
        wanted = plan.shares(plan.step(place % plan.epoch_len))[dist.rank()]
        if len(batch) != wanted:
            raise ConfigError(
                f"batches[{place}] has {len(batch)} images, and the plan has batches of {wanted}; "
                f"set train.batch_size={len(batch) * plan.world}, or cut the images into batches of {wanted}"
            )
    if len(batches) != plan.epoch_len:
        log.warning(
            "the list has %d batches and an epoch of the plan %d: it is gone through all the same, but epochs are not "
            "passes over your images; make the plan with num_samples=%d",
            len(batches),
            plan.epoch_len,
            len(batches) * plan.batch_size,
        )


def _check(batch: object, name: str, recipe: ViewRecipe, method: str) -> None:
    """Refuse a batch that the method could not train on."""
    if not isinstance(batch, Batch):
        raise ConfigError(f"{name} is a {type(batch).__name__}, no Batch; {WAY}")
    for group, views in recipe.groups.items():
        num = sum(view.num_images for view in views)
        if group not in batch.views:
            raise ConfigError(
                f"{name} has the views {', '.join(map(repr, batch.views)) or 'of no group'}; the method "
                f"{method!r} needs {num} of the group {group!r} of each image; {WAY}"
            )
        _check_views(batch.views[group], num, len(batch), f"{name}.views[{group!r}]")
        for extra in views[0].extra_names:
            if f"{group}.{extra}" not in batch.extras:
                raise ConfigError(f"{name} has no extras[{f'{group}.{extra}'!r}], which {method!r} needs; {WAY}")


def _check_views(views: Tensor, num: int, num_rows: int, name: str) -> None:
    if not views.is_floating_point():
        raise ConfigError(
            f"{name} is {views.dtype}; give normalised floats: "
            "raysl.transforms.normalize(views, config.data.mean, config.data.std) makes them of uint8"
        )
    if views.ndim != 5 or views.shape[:2] != (num_rows, num):
        shape = f"[{num_rows}, {num}, channels, height, width]"
        raise ConfigError(f"{name} has the shape {list(views.shape)}; the method needs {shape}, by the batch's index")
