"""The owner of a run's folder: the one driver that writes there.

A local folder is locked by the operating system, which frees it when the process ends, however that happens.

A remote folder has only files. `.lock-000007` names an owner; it is written once, by the process that creates it, and
the highest number counts. The owner rewrites `.beat-<token>` every few seconds. When the beat stops, another process
takes the folder over by creating the next number, which the storage lets only one process do. Owner and beat are two
files so that a beat that arrives late, from a process that was paused, cannot bring back an owner that was replaced.

An owner checks that it still counts before each beat, and its worker before each checkpoint. One that was replaced,
because it was paused or its network was cut, writes nothing more and stops. A storage that fails for everybody stops
nobody. Clocks of other machines are trusted to within `OwnerTimes.clock_error_s`.
"""

import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from raysl.errors import ConfigError, RunFailed, RunInUse, log
from raysl.process.signals import end_at_once
from raysl.storage.folder import Folder, Version, storage_errors
from raysl.storage.owner_files import BEAT_PREFIX
from raysl.storage.owner_files import Owner as Owner
from raysl.storage.owner_files import OwnerFiles as OwnerFiles
from raysl.storage.reads import NotRegularFile
from raysl.storage.records import Damaged, read_record

ATTEMPTS = 10
LOOKS, LOOK_S = 5, 0.05  # tries of a local lock, which somebody who looks at it may have for a moment
FRESH_S = 120.0
"""Age of the beat in a bucket up to which a process counts as at work."""

OnLost = Callable[[str], object]


@dataclass(frozen=True)
class OwnerTimes:
    """Seconds of the protocol on a remote folder.

    Args:
        beat_s: between two beats.
        stale_s: without a beat after which others may take over.
        clock_error_s: seconds that the clocks of two machines may differ by.
        look_s: between two looks of a process that waits.
        settle_s: seconds in which other contenders' writes arrive, on a storage without conditional writes.
    """

    beat_s: float = 20.0
    stale_s: float = 60.0
    clock_error_s: float = 300.0
    look_s: float = 5.0
    settle_s: float = 5.0


def end_process(message: str) -> None:
    """End this process and all that it started, now, with exit code 1.

    Nothing milder stops a driver wherever it is: Ray Train's `fit` ignores exceptions of other threads, and only the
    main thread receives Ctrl-C. A private cluster is among what this process started; on another one, and in a trial of
    a sweep, Ray ends the workers of a driver that has gone.
    """
    end_at_once(1, f"\nerror: {message}")


def own_folder(folder: Folder, on_lost: OnLost = end_process) -> AbstractContextManager[Owner | None]:
    """Be the only process that writes to a folder while inside: `own_local` or `own_remote`.

    Raises:
        RunInUse: if another process owns it.
    """
    return own_local(folder) if folder.is_local else own_remote(folder, on_lost)


@contextmanager
def own_local(folder: Folder) -> Iterator[None]:
    """Own a local folder by a lock of the operating system; while it is owned, it counts as gone without that file."""
    path, uri = Path(folder.path) / ".lock", folder.uri_of(".lock")
    with storage_errors("write", uri):
        opened = _open_lock(path)
    with opened as file:
        try:
            # until the lock is held, the file is another process's: it is read for the message, and not written
            _lock(file)
        except OSError as error:
            file.seek(0)
            raise _in_use(folder, Owner.parse(file.read(), 0)) from error
        with storage_errors("write", uri):
            os.ftruncate(file.fileno(), 0)
            # unbuffered: a buffer that a full disk has refused would be written again at the end
            os.write(file.fileno(), Owner(0).content)
        folder.sign = str(path)
        try:
            yield
        finally:
            folder.sign = None


def _lock(file: TextIO) -> None:
    """Lock a file that nobody else has locked; who only looks whether it is locked has it for a moment."""
    for look in range(LOOKS):
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if look == LOOKS - 1:
                raise
            time.sleep(LOOK_S)


def is_owned(folder: Folder) -> bool:
    """Return whether a process owns a folder; of a local one nothing is written for that."""
    if not folder.is_local:
        try:
            with own_remote(folder):
                return False
        except RunInUse:
            return True
    with storage_errors("read", folder.uri_of(".lock")):
        try:
            descriptor = os.open(Path(folder.path) / ".lock", os.O_RDONLY | _UNLINKED)
        except FileNotFoundError:
            return False
        try:
            _check_regular(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def is_at_work(folder: Folder, versions: Mapping[str, Version]) -> bool:
    """Return whether a process works in a folder: by the lock of the system, in a bucket by the age of its beat.

    Nothing is written, and nothing is waited for.
    """
    if folder.is_local:
        return ".lock" in versions and is_owned(folder)
    beats = [version.time for name, version in versions.items() if name.startswith(BEAT_PREFIX)]
    return any(beat is None or time.time() - beat / 1e9 < FRESH_S for beat in beats)


_UNLINKED = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags that refuse a symbolic link, through which a file elsewhere would be locked or overwritten, and wait for no
FIFO."""


def _open_lock(path: Path) -> TextIO:
    """Open or create a lock file to be read and written."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _UNLINKED, 0o666)
    try:
        _check_regular(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return open(descriptor, "a+")


def _check_regular(descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise NotRegularFile("not a regular file")


@contextmanager
def own_remote(folder: Folder, on_lost: OnLost = end_process, times: OwnerTimes | None = None) -> Iterator[Owner]:
    """Own a folder by files in it; yields what `OwnerFiles.successor` takes.

    Args:
        on_lost: called with a message, in another thread, when another process has taken over; must keep this process
            from writing.

    Raises:
        RunInUse: if another process owns it.
        RunFailed: on the way out, if another process has taken over and `on_lost` returned.
    """
    times = times or OwnerTimes()
    files = OwnerFiles(folder)
    beat = _Beat(files, _take(files, times), times, on_lost)
    beat.start()
    try:
        yield beat.owner
    finally:
        beat.end()
    if beat.loss is not None:
        raise RunFailed(beat.loss)


def _take(files: OwnerFiles, times: OwnerTimes) -> Owner:
    for _ in range(ATTEMPTS):
        before = files.newest()
        if before is not None and not _is_abandoned(files, before, times):
            continue
        owner = Owner(before.generation + 1 if before else 1)
        if not files.create(owner, times.settle_s):
            winner = files.newest()
            if winner is not None:
                raise _in_use(files.folder, winner)
        # other owners may have come and gone between the look at `before` and the creation
        elif files.is_heir(owner, before):
            files.remove_others(owner)
            return owner
        else:
            files.remove(owner)
    raise _in_use(files.folder, Owner.parse("", 0))


def _is_abandoned(files: OwnerFiles, owner: Owner, times: OwnerTimes) -> bool:
    """Return whether the beat of an owner has stopped, after up to `stale_s`; False if it gave the folder back.

    Raises:
        RunInUse: if the owner is at work.
    """
    if owner.process is not None and owner.process.has_ended():
        log.info("taking over from %s, which has ended", owner)
        return True
    # read before the owner is looked up again, which shows whether both belong to it
    signs, beat = files.signs(owner), files.beat(owner)
    if files.newest() != owner:  # its file was read half written, or was written over: the signs are not of this owner
        return False
    age = time.time() - _last_seen(owner, beat)
    if age > times.stale_s + times.clock_error_s:
        log.info("taking over from %s, which was last seen %.0f min ago", owner, age / 60)
        return True
    where = files.folder.uri
    log.warning("the run in %s may be in use by %s: waiting up to %.0f s for a sign of it", where, owner, times.stale_s)
    # a wait by this machine's timer needs no agreement between the clocks of two machines
    end = time.monotonic() + times.stale_s
    while (remaining := end - time.monotonic()) > 0:
        time.sleep(min(times.look_s, remaining))
        signs_now = files.signs(owner)
        if signs_now is None:
            return False
        if signs_now != signs:
            raise _in_use(files.folder, files.newest() or owner)
    log.info("taking over from %s, which gave no sign", owner)
    return True


def _last_seen(owner: Owner, beat: bytes) -> float:
    try:
        return max(owner.time, float(read_record(beat, "a beat", {"time": float})["time"]))
    except Damaged:  # no beat yet, or half of one
        return owner.time


def _in_use(folder: Folder, owner: Owner) -> RunInUse:
    way = f" by `ray job stop {owner.job}`" if owner.job else ""
    return RunInUse(
        f"the run in {folder.uri} is in use by {owner}; wait for it, stop it{way}, or give this one another name="
    )


class _Beat(threading.Thread):
    """Renews the beat of an owner until the end, or until another process has taken over."""

    def __init__(self, files: OwnerFiles, owner: Owner, times: OwnerTimes, on_lost: OnLost) -> None:
        super().__init__(name="raysl-owner", daemon=True)
        self.files = files
        self.owner = owner
        self.times = times
        self.on_lost = on_lost
        self.loss: str | None = None
        self._is_over = threading.Event()

    def run(self) -> None:
        pause, has_failed = 0.0, False
        while not self._is_over.wait(pause):
            try:
                loss = self._find_loss()
                if loss is not None:
                    self.on_lost(loss)
                    return
                self.files.renew(self.owner)
                pause, has_failed = self.times.beat_s, False
            except (ConfigError, RunFailed) as error:
                if not has_failed:
                    log.warning("cannot renew the lock of the run, trying again: %s", error)
                # sooner than the next beat, so that several tries fit into the time after which others may take over
                pause, has_failed = self.times.beat_s / 3, True

    def end(self) -> None:
        """Give the folder back, if it is still owned."""
        self._is_over.set()
        self.join(self.times.stale_s)  # a storage that hangs must not keep the driver
        try:
            if not (self.loss or self._find_loss()):
                # its own file goes last, since `is_heir` relies on lower numbers going first
                self.files.remove_others(self.owner)
                self.files.remove(self.owner)
        except (ConfigError, RunFailed) as error:
            log.warning("the lock of the run stays behind, and the next start has to wait: %s", error)

    def _find_loss(self) -> str | None:
        successor = self.files.successor(self.owner)
        if successor is not None:
            self.loss = (
                f"the run in {self.files.folder.uri} is now held by {successor}; this process stops, "
                "and the same command goes on from the newest checkpoint"
            )
        return self.loss
