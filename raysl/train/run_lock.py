"""The lock of a run's folder: one driver at a time.

On a local disk it is the operating system's, and ends with the process however that ends. A remote folder has only
files: the holder of the highest `.lock-<number>` is the driver, and renews a file of its own for as long as it is at
work. Whoever finds a lock that is not renewed any more takes it over by creating the next number, which the storage
lets only one do. A driver that cannot renew its lock stops before others may take it over, so two are never at work.
No clock of another machine is trusted by more than `LockTimes.clock_error_s`.
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
from raysl.family import descendants
from raysl.storage import Folder, join, telling
from raysl.train.lock_files import Lock, LockFiles

log = logging.getLogger("raysl")

ATTEMPTS = 10


@dataclass(frozen=True)
class LockTimes:
    """Seconds of a remote lock.

    Args:
        beat_s: between two renewals.
        give_up_s: without a renewal after which the holder stops.
        stale_s: without a renewal after which others may take over; more than `give_up_s` and `say_s` together.
        clock_error_s: that clocks of two machines may be apart.
        look_s: between two looks of one who waits.
        settle_s: in which other contenders' writes arrive, on a storage without exclusive ones.
        say_s: that a holder who comes too late may take to find out who has the lock now.
    """

    beat_s: float = 15.0
    give_up_s: float = 50.0
    stale_s: float = 60.0
    clock_error_s: float = 300.0
    look_s: float = 2.0
    settle_s: float = 5.0
    say_s: float = 2.0


@contextmanager
def run_lock(folder: Folder) -> Iterator[None]:
    """Be the only driver that works in a folder.

    A process that loses the lock of a remote folder while inside ends at once, with exit code 1 and a message.

    Raises:
        RunInUse: if another one is at work there.
    """
    with local_lock(Path(folder.path), folder.uri) if folder.is_local else remote_lock(folder):
        yield


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
        file.truncate(0)
        file.write(_me())
        file.flush()
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
) -> Iterator[None]:
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
    holder = _Holder(files, *_acquire(files, times), times, on_lost)
    try:
        yield
    finally:
        holder.end()
    if holder.lost is not None:
        raise RunFailed(holder.lost)


def _acquire(files: LockFiles, times: LockTimes) -> tuple[Lock, float]:
    """The lock, and when taking it began by `_clock`."""
    uri = files.folder.uri
    for _ in range(ATTEMPTS):
        before = files.highest()
        if before is not None and not _is_left_behind(files, before, times):
            continue
        began = _clock()
        lock = Lock(before.generation + 1 if before else 1, uuid.uuid4().hex, _me(), time.time())
        if not files.create(lock, times.settle_s):
            winner = files.highest()
            if winner is not None:
                raise _in_use(uri, f"{winner.who}, which came first")
        elif files.is_heir(lock, before):
            files.remove_others(lock)
            return lock, began
        else:
            files.remove(lock)
    raise _in_use(uri, "other processes that come and go")


def _is_left_behind(files: LockFiles, lock: Lock, times: LockTimes) -> bool:
    """Whether a lock is not renewed any more, which may take `stale_s` to find out; false if it was given back.

    Raises:
        RunInUse: if it is.
    """
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
    """Renews a lock in one thread; another one sees to it that the renewals are never late."""

    def __init__(
        self, files: LockFiles, lock: Lock, renewed: float, times: LockTimes, on_lost: Callable[[str], object]
    ) -> None:
        self.files = files
        self.lock = lock
        self.times = times
        self.on_lost = on_lost
        self.renewed = renewed  # when the last renewal that came in time began, by `_clock`
        self.lost: str | None = None
        self._ended, self._wake, self._told = threading.Event(), threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._renew, self._watch)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Give the lock back, if it is still held."""
        self._ended.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(self.times.give_up_s)  # a storage that hangs must not keep the driver
        if self.lost is not None:
            return
        try:
            taker = self._taker()
            if taker is not None:
                self.lost = self._loss(taker)
            else:
                self.files.remove_others(self.lock)
                self.files.remove(self.lock)
        except (ConfigError, RunFailed) as error:
            log.warning("the lock of the run stays behind, and the next start has to wait: %s", error)

    def _renew(self) -> None:
        number, pause = 0, 0.0
        while not self._ended.is_set() and self.lost is None:
            self._wake.wait(pause)
            self._wake.clear()
            try:
                number += 1
                self._renew_once(number)
                pause = self.times.beat_s
            except (ConfigError, RunFailed) as error:
                log.warning("cannot renew the lock of the run, trying again: %s", error)
                pause = self.times.beat_s / 3

    def _renew_once(self, number: int) -> None:
        began = _clock()
        taker = self._taker()
        if taker is not None:
            self._lose(taker)
        if not self._is_late():
            self.files.renew(self.lock, number)
        if self._is_late():
            self._lose()
        else:
            self.renewed = began

    def _watch(self) -> None:
        while not self._ended.wait(min(1.0, self.times.give_up_s / 20)) and self.lost is None:
            if self._is_late():  # this process or its network slept: the other thread may find out who has the lock
                self._wake.set()
                self._ended.wait(self.times.say_s)
                self._lose()

    def _is_late(self) -> bool:
        return _clock() - self.renewed > self.times.give_up_s

    def _taker(self) -> str | None:
        """Who holds the lock in place of this process; None while that has it."""
        found = self.files.highest()
        if found is None:
            return "no one (its files were removed)"
        return None if found == self.lock else found.who

    def _lose(self, taker: str | None = None) -> None:
        with self._told:
            if self.lost is not None or self._ended.is_set():
                return
            self.lost = self._loss(taker)
        self.on_lost(self.lost)

    def _loss(self, taker: str | None) -> str:
        uri = self.files.folder.uri
        if taker is None:
            seconds = _clock() - self.renewed
            why = f"the lock of the run in {uri} could not be renewed for {seconds:.0f} s, so others may take it over"
        else:
            why = f"the run in {uri} is held by {taker} now"
        return f"{why}; this process stops, and the same command goes on from the newest checkpoint"


def _clock() -> float:
    """Seconds that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


def _me() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _in_use(uri: str, who: str) -> RunInUse:
    return RunInUse(f"the run in {uri} is in use by {who}; wait for it, stop it, or give this one another name=")
