"""Which runs are at work on the connected cluster, by notes that their drivers renew."""

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import ray
from ray.exceptions import RayError, RpcError

from raysl.cluster.board import Board
from raysl.process.environment import submission_id

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
