"""Short notes between processes of a cluster, kept by its head; by them, which runs are at work."""

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import RayError, RpcError
from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_initialized,
    _internal_kv_list,
    _internal_kv_put,
)

from raysl.process.environment import submission_id

_NAMESPACE = b"raysl"


class Board:
    """Notes by name, which any process of a cluster writes and reads."""

    def __init__(self, key: str) -> None:
        self.key = key

    def write(self, name: str, value: Any) -> None:
        """Replace a note by a value of JSON."""
        _internal_kv_put(f"{self.key}/{name}", json.dumps(value).encode(), namespace=_NAMESPACE)

    def read(self, name: str) -> Any:
        """Return a note, or None if there is none."""
        content = _internal_kv_get(f"{self.key}/{name}", namespace=_NAMESPACE)
        return None if content is None else json.loads(content)

    def remove(self, name: str) -> None:
        """Remove a note, if it is there."""
        _internal_kv_del(f"{self.key}/{name}", namespace=_NAMESPACE)

    def names(self, prefix: str) -> list[str]:
        """Return the names of notes that begin with a prefix, in order."""
        start = len(f"{self.key}/")
        keys = _internal_kv_list(f"{self.key}/{prefix}", namespace=_NAMESPACE)
        return sorted(key.decode()[start:] for key in keys)

    @property
    def is_there(self) -> bool:
        """Whether this process is connected to a cluster."""
        return bool(_internal_kv_initialized())

    def clear(self) -> None:
        """Remove all notes."""
        _internal_kv_del(f"{self.key}/", del_by_prefix=True, namespace=_NAMESPACE)


RENEW_S, STALE_S = 4.0, 15.0
_RUNS, _SUBMISSIONS = Board("runs at work"), Board("submissions")


def note_submission() -> None:
    """Note the submission id of this driver's job for the processes of its trials, where it has one."""
    if job := submission_id():
        _SUBMISSIONS.write(ray.get_runtime_context().get_job_id(), job)


@contextmanager
def at_work(run: str) -> Iterator[None]:
    """Note a run as at work while inside; after a crash the note counts for `STALE_S` seconds more."""
    note, is_over = uuid.uuid4().hex, threading.Event()
    job = _SUBMISSIONS.read(ray.get_runtime_context().get_job_id())
    text = f"{run} of the Ray job {job}" if job else run

    def renew() -> None:
        while True:
            with suppress(RayError, RpcError):  # the cluster is busy, or gone
                _RUNS.write(note, [text, time.time()])
            if is_over.wait(RENEW_S):
                return

    thread = threading.Thread(target=renew, name="raysl-at-work", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        with suppress(RayError, RpcError):
            _RUNS.remove(note)


def runs_at_work() -> list[str]:
    """Return the runs whose drivers live, by name, each with the Ray job that stops it, if it is one."""
    notes = {name: _RUNS.read(name) for name in _RUNS.names("")}
    return sorted({note[0] for note in notes.values() if note is not None and time.time() - note[1] < STALE_S})
