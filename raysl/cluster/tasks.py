"""What tasks share: errors of raysl as they were raised, and objects that a process fetches once."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayTaskError

from raysl.errors import ConfigError, RunFailed


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
