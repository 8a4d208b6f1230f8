"""The batches that `fit` trains on: a stream, or a list that is checked before the first step."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from typing_extensions import override

from raysl import distributed as dist
from raysl.config.ranges import Interpolation
from raysl.data.batch import Batch
from raysl.data.order import Order
from raysl.data.source import Split
from raysl.data.sources.sample import sample_rows, unit_parts, unit_share
from raysl.data.sources.subset import Subset, sample_of
from raysl.data.stream.blocks import PlainRows
from raysl.data.stream.loader import Loader, LocalBatches
from raysl.errors import ConfigError, log
from raysl.plan.plan import TrainPlan
from raysl.train.state import TrainState
from raysl.transforms.view_recipe import ViewRecipe

MOST_READ = 1024
"""Images of a block of a sample, unless their storage has smaller units."""
WAY = "raysl.views(config, images) makes batches of your images"


@runtime_checkable
class BatchStream(Protocol):
    """This rank's batches by step."""

    def from_step(self, step: int) -> Iterator[Batch]:
        """Yield this rank's rows of the global batches from `step` on."""

    def plain(self) -> Iterator[Batch]:
        """Yield this rank's share of the training images without augmentation, in dataset order, as one view "image".

        Ranks may share the work of making them: all ranks call it and iterate to its end."""


def plain_blocks(
    split: Split, most: int, rows: int, is_held_out: bool, interpolation: Interpolation | None = None
) -> Iterator[PlainRows]:
    """Yield this rank's blocks of a sample of a split: at even distances, or of a few whole units of a dataset that is
    read in units.

    Args:
        most: number of images over all ranks.
        rows: images of a block, unless their storage has larger units.
        interpolation: how images are resized; default: as `data.eval_interpolation` has it.
    """
    chosen = sample_rows(split, most)
    images = Subset(split, chosen)
    for part in unit_parts(images, unit_share(images, dist.rank(), dist.world()), rows, MOST_READ):
        yield PlainRows(chosen[part.start : part.stop].tolist(), is_held_out, interpolation)


class ListBatches(BatchStream):
    """A list of batches as a stream that repeats it without end."""

    def __init__(self, batches: Sequence[Batch], plan: TrainPlan) -> None:
        self.batches = batches
        self.plan = plan

    @override
    def from_step(self, step: int) -> Iterator[Batch]:
        while True:
            batch = self.batches[step % len(self.batches)]
            yield replace(batch, seed=self.plan.seed, epoch=self.plan.step(step).epoch, step=step)
            step += 1

    @override
    def plain(self) -> Iterator[Batch]:
        """Yield the first view of each image: a list does not hold the images themselves."""
        for batch in self.batches:
            yield replace(batch, views={"image": next(iter(batch.views.values()))[:, :1]}, extras={})


def some_images(stream: BatchStream, most: int, device: torch.device) -> Iterator[Batch]:
    """Yield this rank's part of a sample of the training images, in the form of `BatchStream.plain`.

    The sample is that of `raysl.data.sources.sample.sample_rows`.

    Args:
        stream: stream of the run; one without a loader is read from its beginning.
    """
    if isinstance(stream, _Loading):
        whole = stream.loader.split
        split = sample_of(whole, most)
        rows = unit_share(split, dist.rank(), dist.world())
        for batch in stream.loader.plain_batches(split, rows.start, rows.stop, device):
            yield batch if split is whole else _with_whole_index(split, batch)
        return
    num_missing = most // dist.world() + (dist.rank() < most % dist.world())
    for batch in stream.plain():  # all of it, because other ranks may wait for this one
        if num_missing > 0:
            num_rows = min(num_missing, len(batch))
            num_missing -= num_rows
            yield batch.map(partial(_take_rows, num_rows, device))


def _with_whole_index(part: Split, batch: Batch) -> Batch:
    """Return a batch of a part of a dataset with the indices of its images in the whole dataset."""
    assert isinstance(part, Subset)
    index = part.rows[batch.index.cpu().numpy()]
    return replace(batch, index=torch.from_numpy(index).to(batch.index.device), host_key=index)


def _take_rows(num: int, device: torch.device, values: Tensor) -> Tensor:
    return values[:num].to(device)


@runtime_checkable
class _Loading(Protocol):
    """A stream with a loader, which can read any image."""

    loader: Loader


def as_stream(batches: BatchStream | Sequence[Batch], state: TrainState, plan: TrainPlan) -> BatchStream:
    """Return the batches that `fit` was given as a stream."""
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
    recipe = type(state.method).all_views(state.setup)
    for number, batch in enumerate(batches):
        _check(batch, f"batches[{number}]", recipe, state.config.method.name)
    _check_rows(batches, plan)
    return ListBatches(batches, plan)


def _check_order(order: Order, plan: TrainPlan) -> None:
    """Refuse a stream whose order is not the plan's."""
    if (order.batch_size, order.epoch_len) != (plan.batch_size, plan.epoch_len):
        raise ConfigError(
            f"batches: a stream with {order.epoch_len} batches of {order.batch_size} in an epoch, and the plan has "
            f"{plan.epoch_len} of {plan.batch_size}; make both from the same settings, the plan with "
            f"num_samples={order.num_samples}"
        )


def _check_rows(batches: Sequence[Batch], plan: TrainPlan) -> None:
    """Refuse batches of another size than the plan's; warn if their number is not that of an epoch."""
    for number, batch in enumerate(batches):
        wanted = plan.shares(plan.step(number % plan.epoch_len))[dist.rank()]
        if len(batch) != wanted:
            raise ConfigError(
                f"batches[{number}] has {len(batch)} images, and the plan has batches of {wanted}; "
                f"set train.batch_size={len(batch) * plan.world}, or cut the images into batches of {wanted}"
            )
    if len(batches) != plan.epoch_len:
        log.warning(
            "the list has %d batches and an epoch of the plan %d: it is used nevertheless, but epochs are not passes "
            "over your images; make the plan with num_samples=%d",
            len(batches),
            plan.epoch_len,
            len(batches) * plan.batch_size,
        )


def _check(batch: object, name: str, recipe: ViewRecipe, method: str) -> None:
    """Refuse a batch that the method cannot train on."""
    if not isinstance(batch, Batch):
        raise ConfigError(f"{name} is a {type(batch).__name__}, not a Batch; {WAY}")
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
