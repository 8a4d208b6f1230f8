"""Batch, warm-up, queue and clusters of a recipe, made smaller where the images or the memory are too few for them."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from raysl.config.component import type_hints
from raysl.config.dump import show
from raysl.config.ranges import Adapts, marks_of
from raysl.config.schema import RunConfig
from raysl.data.order import epoch_length
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.backbones.shapes import pass_shapes
from raysl.optim.course import peak_lr
from raysl.plan.reference import for_workers
from raysl.schedule import Duration
from raysl.transforms.view_recipe import ViewRecipe

BATCH = "train.batch_size"
MOST_OUTPUTS = 4000
"""More outputs of layers than any backbone has for a pixel; a batch that fits with them is not looked at closer."""


def adapt(config: RunConfig, num_samples: int, most_rows: int | None = None) -> RunConfig:
    """Return settings whose batch, warm-up, queue and clusters fit the images, where `config.adapt` allows it.

    * A batch of more images than there are becomes the largest power of two (for each worker) of which an epoch has
      two, at least 16 where there are as many images. The learning rate follows by `optim.lr_scaling`.
    * A warm-up that is longer than the run becomes a tenth of it.
    * A queue that is longer than the dataset, or does not hold whole batches of an adapted size, becomes the largest
      multiple of the batch that is not.
    * Clusters of which there are more than images become the largest power of two up to a tenth of the images.

    The result is final: adapting it again changes nothing.

    Args:
        most_rows: images of a batch that each worker's memory holds, or None for any number.
    """
    batch_size = config.train.batch_size
    # the batch comes first: warm-up and queue are fitted to the adapted one
    for role in ("batch", "warmup", "queue", "clusters"):
        for key in config.adapt:
            node, name = key.split(".")
            value = getattr(getattr(config, node), name)
            if role != _role(config, key) or not value:
                continue
            if role == "batch":
                value = _batch(config, num_samples, most_rows)
            elif role == "warmup":
                value = _warmup(config, num_samples)
            elif role == "queue":
                value = _queue(value, num_samples, config.train.batch_size, config.train.batch_size != batch_size)
            else:
                value = _each(value, lambda num: num if num <= num_samples else max(1, power_of_two(num_samples // 10)))
            config = dataclasses.replace(config, **{node: dataclasses.replace(getattr(config, node), **{name: value})})
    return dataclasses.replace(config, adapt=()) if config.adapt else config


def describe_adapted(before: RunConfig, after: RunConfig, num_samples: int) -> str | None:
    """Return what `adapt` has changed as a sentence, or None where it has changed nothing."""
    changes = []
    for key in sorted(before.adapt, key=lambda key: key != BATCH):
        node, name = key.split(".")
        old, new = (getattr(getattr(config, node), name) for config in (before, after))
        if old == new:
            continue
        changes.append(f"{key} {_shown(old)} -> {_shown(new)}")
        if key == BATCH:
            lrs = [f"{peak_lr(config.optim, config.train.batch_size):.4g}" for config in (before, after)]
            is_same, scaling = lrs[0] == lrs[1], f"optim.lr_scaling={before.optim.lr_scaling}"
            changes.append(f"peak learning rate {lrs[0] if is_same else ' -> '.join(lrs)} ({scaling})")
    if not changes:
        return None
    is_by_memory = adapt(before, num_samples).train.batch_size != after.train.batch_size
    what = "images and the memory of this machine" if is_by_memory else "images"
    return f"settings adapted to {num_samples:,} {what}: {', '.join(changes)}; adapt=[] keeps those of the recipe"


def batch_for(num_samples: int) -> int:
    """Return the largest power of two of which an epoch has two, at least 16 where there are as many images.

    >>> batch_for(800), batch_for(40), batch_for(3)
    (256, 16, 2)
    """
    return power_of_two(max(num_samples // 2, min(16, num_samples)))


def power_of_two(number: int) -> int:
    """Return the largest power of two up to a number, 0 below 1.

    >>> power_of_two(800), power_of_two(64), power_of_two(0)
    (512, 64, 0)
    """
    return 1 << number.bit_length() - 1 if number > 0 else 0


def rows_in_memory(config: RunConfig, kind: type[Backbone], recipe: ViewRecipe, num_bytes: float) -> int | None:
    """Return how many images a worker's memory holds at once in training, or None where a batch fits with certainty.

    The estimate counts what the layers of the backbone put out for all views of an image, which the backward pass
    needs; half of the memory is for everything else.
    """
    train, network = config.train, config.backbone
    if train.recompute or train.parallel == "fsdp":
        return None
    sides = [view.size for group in recipe.groups.values() for view in group for _ in range(view.num_images)]
    width = 2 if torch.cuda.is_available() and train.device != "cpu" and train.precision != "fp32" else 4
    rows = math.ceil(train.batch_size / train.most_workers / train.accumulate)
    if rows * sum(side * side for side in sides) * MOST_OUTPUTS * width < num_bytes / 2:
        return None
    outputs = {side: _num_outputs(kind, network, side) for side in set(sides)}
    return int(num_bytes / 2 / width / sum(outputs[side] for side in sides)) * train.accumulate


def _num_outputs(kind: type[Backbone], config: Any, side: int) -> int:
    network, count = kind.without_weights(config).to("meta").eval(), 0

    def add(_: nn.Module, __: Any, output: Any) -> None:
        nonlocal count
        count += output.numel() if isinstance(output, torch.Tensor) else 0

    # only modules without children, as an outer module returns an inner one's output again
    for module in network.modules():
        if not any(module.children()):
            module.register_forward_hook(add)
    pass_shapes(network, network.in_channels, side)
    return count


def _role(config: RunConfig, key: str) -> str | None:
    """Return what a setting counts, or None of one that the present components do not have."""
    node, name = key.split(".")
    kind: Any = type(getattr(config, node))
    marks = marks_of(type_hints(kind).get(name))
    return next((mark.role for mark in marks if isinstance(mark, Adapts)), None)


def _batch(config: RunConfig, num_samples: int, most_rows: int | None) -> int:
    """Return the batch, with equal parts for `train.reference_workers` or else for the workers."""
    train = config.train
    batch, workers = train.batch_size, train.most_workers
    parts = train.reference_workers or workers
    # the batch is multiplied by the ratio of the two numbers afterwards
    num_images = num_samples * parts // workers
    most = batch_for(num_images) if batch > num_images and config.data.drop_last else batch
    if most_rows is not None:
        most = min(most, max(most_rows, 1) * parts)
    return batch if most == batch else parts * power_of_two(most // parts) or batch


def _warmup(config: RunConfig, num_samples: int) -> Duration:
    scaled = for_workers(config)
    total, epoch_len = course_length(scaled, num_samples)
    is_longer = not config.optim.phases and scaled.optim.warmup.steps(total, epoch_len) > total > 0
    return Duration(10.0, "%") if is_longer else config.optim.warmup


def course_length(config: RunConfig, num_samples: int) -> tuple[int, int]:
    """Return the number of updates of a run and of an epoch, both 0 where the images fill no batch."""
    train = config.train
    epoch_len = epoch_length(num_samples, train.batch_size, config.data.drop_last)
    total = epoch_len * train.epochs
    if train.end is not None and total:
        total = max(1, min(total, train.end.steps(total, epoch_len)))
    return total, epoch_len


def _queue(length: int, num_samples: int, batch_size: int, is_batch_adapted: bool) -> int:
    is_whole = not is_batch_adapted or length % batch_size == 0
    if length <= num_samples and is_whole:
        return length
    return max(1, min(length, num_samples) // batch_size) * batch_size


def _each(value: Any, change: Callable[[int], int]) -> Any:
    return tuple(map(change, value)) if isinstance(value, tuple) else change(value)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else show(value)
