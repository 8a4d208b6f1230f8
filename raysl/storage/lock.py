"""The lock of a run's folder: one driver at a time.

On a local disk it is the operating system's, and ends with the process however that ends. A remote folder has only
files: the holder of the highest `.lock-<number>` is the driver, and renews a file of its own for as long as it is at
work. Whoever finds a lock that is not renewed any more takes it over by creating the next number, which the storage
lets only one do. A driver looks whether its lock is still its own before it renews it, and its worker before it stores
a checkpoint: one that was overtaken, because it slept or its network was cut, writes no more and stops. A storage that
fails for everybody ends nobody's work. No clock of another machine is trusted by more than `LockTimes.clock_error_s`.
"""

import fcntl
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from raysl.errors import ConfigError, RunFailed, RunInUse
from raysl.process.descendants import descendants
from raysl.storage.addresses import join, telling
from raysl.storage.folder import Folder
from raysl.storage.lock_files import Lock, LockFiles, Place

log = logging.getLogger("raysl")

ATTEMPTS = 10


@dataclass(frozen=True)
class LockTimes:
    """Seconds of a remote lock.

    Args:
        beat_s: between two renewals.
        stale_s: without a renewal after which others may take over.
        clock_error_s: that clocks of two machines may be apart.
        look_s: between two looks of one who waits.
        settle_s: in which other contenders' writes arrive, on a storage without exclusive ones.
    """

    beat_s: float = 15.0
    stale_s: float = 60.0
    clock_error_s: float = 300.0
    look_s: float = 2.0
    settle_s: float = 5.0


@contextmanager
def run_lock(folder: Folder) -> Iterator[Lock | None]:
    """Be the only driver that works in a folder; gives the lock of a remote one, for `LockFiles.taker`.

    A process that loses the lock of a remote folder while inside ends at once, with exit code 1 and a message.

    Raises:
        RunInUse: if another one is at work there.
    """
    if folder.is_local:
        with local_lock(Path(folder.path), folder.uri):
            yield None
    else:
        with remote_lock(folder) as lock:
            yield lock


@contextmanager
def local_lock(folder: Path, uri: str) -> Iterator[None]:
    """A lock of the operating system's, which ends with the process however that ends.

    Raises:
        RunInUse: if another process has it.
    """
    with telling("write", join(uri, ".lock")):
        opened = (folder / ".lock").open("a+")
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise _in_use(uri, file.read().strip() or "another process") from error
        with telling("write", join(uri, ".lock")):
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), _me().encode())  # at once: what a full disk refuses is not tried again at the end
        yield


def end_process(message: str) -> None:
    """End this process and all that it started, now, with exit code 1.

    Nothing milder stops a driver wherever it is: Ray Train's `fit` comes back from no exception of another thread, and
    aborts by Ctrl-C only in the main thread. A private cluster is among what this process started; on another one, and
    in a trial of a sweep, Ray ends the workers of a driver that has gone.
    """
    for pid in descendants(os.getpid()):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    print(f"\nerror: {message}", file=sys.stderr, flush=True)
    os._exit(1)


@contextmanager
def remote_lock(
    folder: Folder, times: LockTimes | None = None, on_lost: Callable[[str], object] = end_process
) -> Iterator[Lock]:
    """A lock of files, renewed while inside.

    Args:
        folder: behind a URI.
        times: in seconds.
        on_lost: called with a message, in another thread, when the lock is lost; must keep this process from writing.

    Raises:
        RunInUse: if another process has it.
        RunFailed: on the way out, if the lock was lost and `on_lost` came back.
    """
    times = times or LockTimes()
    files = LockFiles(folder)
    holder = _Holder(files, _acquire(files, times), times, on_lost)
    try:
        yield holder.lock
    finally:
        holder.end()
    if holder.lost is not None:
        raise RunFailed(holder.lost)


def _acquire(files: LockFiles, times: LockTimes) -> Lock:
    uri = files.folder.uri
    for _ in range(ATTEMPTS):
        before = files.highest()
        if before is not None and not _is_left_behind(files, before, times):
            continue
        lock = Lock(before.generation + 1 if before else 1, uuid.uuid4().hex, _me(), time.time(), Place.here())
        if not files.create(lock, times.settle_s):
            winner = files.highest()
            if winner is not None:
                raise _in_use(uri, f"{winner.who}, which came first")
        elif files.is_heir(lock, before):
            files.remove_others(lock)
            return lock
        else:
            files.remove(lock)
    raise _in_use(uri, "other processes that come and go")


def _is_left_behind(files: LockFiles, lock: Lock, times: LockTimes) -> bool:
    """Whether a lock is not renewed any more, which may take `stale_s` to find out; false if it was given back.

    Raises:
        RunInUse: if it is.
    """
    if lock.place is not None and lock.place.has_ended():
        log.info("taking over the lock of %s, which has ended", lock.who)
        return True
    beat = files.beat(lock)
    age = time.time() - _last_seen(lock, beat)
    if age > times.stale_s + times.clock_error_s:
        log.info("taking over the lock of %s, which was last seen %.0f min ago", lock.who, age / 60)
        return True
    log.warning(
        "the run in %s may be in use by %s: waiting up to %.0f s for a sign of it",
        files.folder.uri,
        lock.who,
        times.stale_s,
    )
    end = time.monotonic() + times.stale_s
    while True:
        left = end - time.monotonic()
        time.sleep(max(0.0, min(times.look_s, left)))
        found = files.highest()
        if found is None:
            return False
        if found != lock or files.beat(lock) != beat:
            raise _in_use(files.folder.uri, found.who)
        if left <= times.look_s:
            log.info("taking over the lock of %s, which gave no sign", lock.who)
            return True


def _last_seen(lock: Lock, beat: bytes) -> float:
    """Seconds since the epoch, by the clock of the lock's holder."""
    try:
        return max(lock.time, float(json.loads(beat)["time"]))
    except (ValueError, TypeError, KeyError):  # no beat yet, or half of one
        return lock.time


class _Holder:
    """Renews a lock in a thread."""

    def __init__(self, files: LockFiles, lock: Lock, times: LockTimes, on_lost: Callable[[str], object]) -> None:
        self.files = files
        self.lock = lock
        self.times = times
        self.on_lost = on_lost
        self.lost: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="raysl-lock", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Give the lock back, if it is still held."""
        self._ended.set()
        self._thread.join(self.times.stale_s)  # a storage that hangs must not keep the driver
        if self.lost is not None:
            return
        try:
            taker = self.files.taker(self.lock)
            if taker is not None:
                self.lost = self._loss(taker)
            else:
                self.files.remove_others(self.lock)
                self.files.remove(self.lock)
        except (ConfigError, RunFailed) as error:
            log.warning("the lock of the run stays behind, and the next start has to wait: %s", error)

    def _renew(self) -> None:
        number, pause, is_told = 0, 0.0, False
        while not self._ended.wait(pause):
            try:
                taker = self.files.taker(self.lock)
                if taker is not None:
                    self.lost = self._loss(taker)
                    self.on_lost(self.lost)
                    return
                number += 1
                self.files.renew(self.lock, number)
                pause, is_told = self.times.beat_s, False
            except (ConfigError, RunFailed) as error:
                if not is_told:
                    log.warning("cannot renew the lock of the run, trying again: %s", error)
                pause, is_told = self.times.beat_s / 3, True

    def _loss(self, taker: str) -> str:
        why = f"the run in {self.files.folder.uri} is held by {taker} now"
        return f"{why}; this process stops, and the same command goes on from the newest checkpoint"


def _me() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _in_use(uri: str, who: str) -> RunInUse:
    return RunInUse(f"the run in {uri} is in use by {who}; wait for it, stop it, or give this one another name=")
