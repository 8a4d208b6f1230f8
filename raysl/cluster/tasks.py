"""A function on numbers as plain tasks, spread over the cluster, with errors that a user can read."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

import ray
from ray.exceptions import RayTaskError

from raysl.errors import ConfigError, RunFailed
from raysl.process.code_errors import explaining_code

T = TypeVar("T")
MOST_TASKS = 1000
"""Tasks that run or wait for a CPU at a time."""


def over_numbers(work: Callable[[int], T], numbers: Sequence[int]) -> Iterator[T]:
    """Yield what `work` returns for each number, in any order; each call is a task of one CPU.

    Ray repeats the task of a lost node elsewhere. What plain tasks return is small, and an execution of Ray Data would
    take some seconds to start.

    Raises:
        ConfigError, RunFailed: raised by `work`, or for code of the user that fails in it.
    """
    task, reference = ray.remote(num_cpus=1)(_call), [ray.put(work)]
    rest = iter(numbers)
    submitted = [task.remote(reference, number) for number in islice(rest, MOST_TASKS)]
    try:
        while submitted:
            (done,), submitted = ray.wait(submitted)
            with raising_as_there():
                result = ray.get(done)
            submitted += [task.remote(reference, number) for number in islice(rest, 1)]
            yield result
    finally:
        for each in submitted:
            ray.cancel(each)


@explaining_code(of_users=True)
def _call(work: list[Any], number: int) -> Any:
    """Call a function for a number.

    Args:
        work: reference to the function, in a list, so that a process fetches it once.
    """
    return fetch_once(work[0])(number)


@contextmanager
def raising_as_there() -> Iterator[None]:
    """Raise an error of raysl in a task as it was raised there."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, ConfigError | RunFailed):
            # Ray adds lines about its retries.
            raise type(error.cause)(str(error.cause).splitlines()[0]) from error
        raise


_FETCHED: dict[str, Any] = {}


def fetch_once(reference: Any) -> Any:
    """Return an object of Ray's store; a process fetches it once, and keeps the last one."""
    key = reference.hex()
    if key not in _FETCHED:
        _FETCHED.clear()
        _FETCHED[key] = ray.get(reference)
    return _FETCHED[key]
