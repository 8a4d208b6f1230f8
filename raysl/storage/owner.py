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
import json
import math
import os
import re
import socket
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from raysl.errors import ConfigError, RunFailed, RunInUse, log
from raysl.process.environment import submission_id
from raysl.process.proc import ProcessIdentity
from raysl.process.signals import end_at_once
from raysl.storage.folder import Folder, Version, storage_errors
from raysl.storage.notes import Notes, Unconditional
from raysl.storage.reads import NotRegularFile
from raysl.storage.records import Damaged, from_record, read_record

OWNER_FILE = re.compile(r"\.lock-(\d{6,})")
BEAT_PREFIX = ".beat-"
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


@dataclass(frozen=True)
class Owner:
    """The content of an owner file; the fields are its keys.

    Args:
        generation: number of the file; a process that takes the folder over creates the next one.
        token: random, of this owner alone.
        who: process and machine, for messages.
        time: when it became the owner, in seconds since the epoch by its own clock.
        process: identity of its process; None where the system has none.
        job: id by which `ray job stop` stops it; empty outside of a Ray job.
    """

    generation: int
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    who: str = field(default_factory=lambda: f"process {os.getpid()} on {socket.gethostname()}")
    time: float = field(default_factory=time.time)
    process: ProcessIdentity | None = field(default_factory=ProcessIdentity.current)
    job: str = field(default_factory=submission_id)

    def __str__(self) -> str:
        who = f"the Ray job {self.job}, {self.who}" if self.job else self.who
        if math.isinf(self.time):
            return who
        return f"{who} (since {datetime.fromtimestamp(self.time, UTC):%Y-%m-%d %H:%M} UTC)"

    @classmethod
    def parse(cls, content: bytes | str, generation: int) -> "Owner":
        """Read the content of an owner file; of a damaged one only the generation is known."""
        try:
            fields = read_record(content, "an owner", optional={"process": dict | None})
            process = from_record(ProcessIdentity, fields["process"], "an owner") if fields.get("process") else None
            owner = from_record(cls, {"job": "", **fields, "generation": generation, "process": None}, "an owner")
            return replace(owner, process=process)
        except Damaged:  # half written
            return cls(generation, "", "another process", math.inf, None, "")

    @property
    def name(self) -> str:
        """Name of the owner file."""
        return f".lock-{self.generation:06d}"

    @property
    def content(self) -> bytes:
        """Content of the owner file."""
        return json.dumps(asdict(self)).encode()

    @property
    def beat_name(self) -> str:
        """Name of the file that the owner rewrites."""
        return f"{BEAT_PREFIX}{self.token}"


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

    Args:
        versions: names and versions of what is in the folder.
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
        folder: behind a URI.
        on_lost: called with a message, in another thread, when another process has taken over; must keep this process
            from writing.
        times: moments in seconds.

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


def _take(files: "OwnerFiles", times: OwnerTimes) -> Owner:
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


def _is_abandoned(files: "OwnerFiles", owner: Owner, times: OwnerTimes) -> bool:
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

    def __init__(self, files: "OwnerFiles", owner: Owner, times: OwnerTimes, on_lost: OnLost) -> None:
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


class OwnerFiles:
    """The owner files of a remote folder.

    Its methods raise ConfigError while the storage fails: a StorageError where that may pass.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.notes = Notes(folder)
        self._read_version: Version | None = None  # of the file that was this process's when it was last read

    def newest(self) -> Owner | None:
        """Return the owner that counts; None where there is none."""
        while generations := self._generations():
            owner = self._read_owner(max(generations))
            if owner is not None:  # it may have been removed since the listing
                return owner
        return None

    def successor(self, owner: Owner) -> str | None:
        """Describe who owns the folder in place of `owner`; None while that one does.

        This takes one request while the file of `owner` stays as it was when it was read.
        """
        versions = self.notes.versions()
        version = versions.get(owner.name)
        if version is not None and version == self._read_version and self._last(versions) == owner.name:
            return None
        successor = self._read_successor(owner)
        # a version without a time could stay the same while another process writes the file: then read it each time
        self._read_version = None if successor or version is None or version.time is None else version
        return successor

    def _read_successor(self, owner: Owner) -> str | None:
        newest = self.newest()
        if newest is None or newest.generation < owner.generation:
            newest = self._read_owner(owner.generation)  # a listing made while others' files come and go may lack files
        if newest is None:
            return "no one (its files were removed)"
        return None if newest == owner else str(newest)

    def signs(self, owner: Owner) -> tuple[str, Version | None, Version | bytes | None] | None:
        """Return what changes while an owner is at work, or once another one counts; None where there is none."""
        versions = self.notes.versions()
        last, beat = self._last(versions), versions.get(owner.beat_name)
        if last is None:
            return None
        return last, versions[last], beat if beat is None or beat.time is not None else self.beat(owner)

    def beat(self, owner: Owner) -> bytes:
        """Return what an owner wrote last; it is at work while this changes."""
        return self.notes.read(owner.beat_name) or b""

    def renew(self, owner: Owner) -> None:
        """Write the next beat of an owner."""
        self.notes.write(owner.beat_name, json.dumps({"time": time.time()}).encode())

    def create(self, owner: Owner, settle_s: float) -> bool:
        """Write an owner file unless its generation exists; return whether it is this owner's.

        The storage is asked for that in one request, and once more, which it must refuse. Where it has no such request,
        or ignores the condition, the file is written, others get `settle_s` seconds to write theirs, and it is read.
        """
        is_written = False
        with suppress(Unconditional):
            is_written = self.notes.create(owner.name, owner.content)
            if not is_written or not self.notes.create(owner.name, owner.content):
                return self._is_of(owner)  # after a lost answer the client may have asked again, and met its own file
        log.warning(
            "%s has no writes that only one process can make (s3:// needs boto3 for them, gs:// gcsfs): "
            "the run is safe from a second driver unless both start in the same few seconds",
            self.folder.uri,
        )
        if not is_written:
            if self.notes.read(owner.name) is not None:
                return False
            self.notes.write(owner.name, owner.content)
        time.sleep(settle_s)
        return self._is_of(owner)

    def is_heir(self, owner: Owner, before: Owner | None) -> bool:
        """Return whether an owner file just created counts: it is the newest, and the one before it is still there.

        An owner file is removed only after all lower ones, so nobody else has taken over from one that is still there.
        """
        if max(self._generations(), default=0) != owner.generation:
            return False
        return before is None or self._read_owner(before.generation) == before

    def remove(self, owner: Owner) -> None:
        """Delete the files of an owner."""
        self.notes.delete(owner.name)
        self.notes.delete(owner.beat_name)

    def remove_others(self, owner: Owner) -> None:
        """Delete the files of earlier owners."""
        names = self.notes.versions()
        # from the lowest number on, as `is_heir` expects
        for generation in self._generations(names):
            if generation < owner.generation:
                self.notes.delete(f".lock-{generation:06d}")
        for name in names:
            if name.startswith(BEAT_PREFIX) and name != owner.beat_name:
                self.notes.delete(name)

    def _generations(self, names: Iterable[str] | None = None) -> list[int]:
        matches = map(OWNER_FILE.fullmatch, self.notes.versions() if names is None else names)
        return sorted(int(match[1]) for match in matches if match)

    def _last(self, names: Iterable[str]) -> str | None:
        return max(filter(OWNER_FILE.fullmatch, names), key=lambda name: int(name[len(".lock-") :]), default=None)

    def _read_owner(self, generation: int) -> Owner | None:
        content = self.notes.read(f".lock-{generation:06d}")
        return None if content is None else Owner.parse(content, generation)

    def _is_of(self, owner: Owner) -> bool:
        created = self._read_owner(owner.generation)
        return created is not None and created.token == owner.token
