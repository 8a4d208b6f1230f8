"""A function on numbered parts, spread over the cluster by Ray Data, with errors that a user can read."""

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import ray
import ray.data
from ray.data import DataContext, Dataset
from ray.exceptions import RayTaskError

from raysl.errors import ConfigError, RunFailed
from raysl.process.code_errors import explaining_code

T = TypeVar("T")
Numpy = dict[str, np.ndarray]
NUMBER = "item"


def over_numbers(work: Callable[[int], T], numbers: Sequence[int]) -> Iterator[T]:
    """Yield what `work` returns for each number, in any order; each call is a task of one CPU.

    Ray repeats the task of a lost node elsewhere.

    Raises:
        ConfigError, RunFailed: raised by `work`, or for code of the user that fails in it.
    """
    if not numbers:
        return
    parts = numbered(numbers).map_batches(_Pickled(ray.put(work)), batch_size=None, num_cpus=1)
    for block in blocks(parts):
        yield from map(pickle.loads, block["result"])


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
        yield from dataset.iter_batches(batch_size=None, batch_format="numpy")
    except RayTaskError as error:
        if isinstance(error.cause, ConfigError | RunFailed):
            # Ray adds lines about its retries.
            raise type(error.cause)(str(error.cause).splitlines()[0]) from error
        raise
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


_FETCHED: dict[str, Any] = {}


def fetch_once(reference: Any) -> Any:
    """Return an object of Ray's store; a process fetches it once, and keeps the last one."""
    key = reference.hex()
    if key not in _FETCHED:
        _FETCHED.clear()
        _FETCHED[key] = ray.get(reference)
    return _FETCHED[key]


@dataclass(frozen=True)
class _Pickled:
    """Calls a function for each number of a block; results may be any objects.

    Args:
        work: reference to the function.
    """

    work: Any

    @explaining_code(of_users=True)
    def __call__(self, block: Numpy) -> dict[str, list[bytes]]:
        work = fetch_once(self.work)
        return {"result": [pickle.dumps(work(int(number))) for number in block[NUMBER]]}
