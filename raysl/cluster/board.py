"""Short notes between processes of a cluster, kept by its head: runs at work, and the files of users."""

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.machinery import ModuleSpec
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
from raysl.user_files import NAMED, SENT, UserFile

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


_SOURCES = Board("files")
"""Files by the names of their modules. The name holds a digest, so a note never changes."""


def send_files() -> None:
    """Send the users' files that this process has imported to the head of the cluster that it is connected to."""
    names = _names()
    for name, file in NAMED.copy().items():  # while Ray starts, another thread imports the files of settings
        # the source first: a process that reads the name must find the source
        _SOURCES.write(file.module, asdict(file))
        names.write(name, file.module)


def receive_files() -> None:
    """Have names of users' files in settings mean those that the driver of this process has sent, if there is one."""
    if not _SOURCES.is_there:  # a trial that runs without Ray
        return
    names = _names()
    for name in names.names(""):
        SENT[name] = UserFile(**_SOURCES.read(names.read(name)))


def _names() -> Board:
    """Return the names of the modules of this job's files, by the names of the files in settings."""
    return Board(f"file names of {ray.get_runtime_context().get_job_id()}")


def find_spec(module: str) -> ModuleSpec | None:
    """Return the specification of a module from a user's file; None if no driver has sent it."""
    note = _SOURCES.read(module) if _SOURCES.is_there else None
    return None if note is None else UserFile(**note).spec()
