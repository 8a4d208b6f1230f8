"""Numbered parts of work as datasets of Ray Data, which spread it over the cluster."""

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import ray.data
from ray.data import DataContext, Dataset

from raysl.cluster.tasks import raising_as_there

Numpy = dict[str, np.ndarray]
NUMBER = "item"


def numbered(numbers: Sequence[int]) -> Dataset:
    """Return a dataset with each number in a block of its own, in the column `NUMBER`."""
    return ray.data.from_items(list(numbers), override_num_blocks=len(numbers))


def blocks(dataset: Dataset, preserve_order: bool = False) -> Iterator[Numpy]:
    """Yield the blocks of a dataset as arrays; an error of raysl in a task is raised as it was there.

    Args:
        preserve_order: whether blocks keep the order of the dataset, not the one in which they become ready.
    """
    context = dataset.context
    before = context.copy()
    quieten(context)
    context.execution_options.preserve_order = preserve_order
    try:
        with raising_as_there():
            yield from dataset.iter_batches(batch_size=None, batch_format="numpy")
    finally:
        vars(context).update(vars(before))


def quieten(context: DataContext) -> None:
    """Let executions show no progress and raise the exceptions of functions as they are."""
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # Ray's own exception has lost what raysl says about the images.
    context.raise_original_map_exception = True
    # Ray also raises what it would log as an error.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
