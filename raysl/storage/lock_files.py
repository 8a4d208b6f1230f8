"""The files of the lock of a remote folder: looked at, created by one process alone, renewed and removed.

`.lock-000007` says who holds the lock. It is written once, by the process that creates it, and the highest number
counts. `.beat-<token>` is written again and again by that process for as long as it is at work.
"""

import json
import logging
import math
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

from raysl.process.descendants import PROC
from raysl.storage.addresses import telling
from raysl.storage.exclusive import Unconditional, create_new, forget_listings
from raysl.storage.folder import Folder

log = logging.getLogger("raysl")

LOCK = re.compile(r"\.lock-(\d{6,})")
BEAT_PREFIX = ".beat-"


@dataclass(frozen=True)
class Place:
    """Where a process runs, exactly enough to tell on the same machine that it has ended.

    Args:
        boot: of the machine, since it was switched on.
        space: of process ids, which containers have of their own.
        pid: in that space.
        started: when, in ticks since the boot.
    """

    boot: str
    space: str
    pid: int
    started: str

    @classmethod
    def here(cls) -> "Place | None":
        """Of this process; None where the system does not tell."""
        try:
            boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
            return cls(boot, os.readlink(PROC / "self/ns/pid"), os.getpid(), _started(os.getpid()))
        except OSError:
            return None

    def has_ended(self) -> bool:
        """Whether the process is known to be no more; False where it cannot be seen from here."""
        here = Place.here()
        if here is None or (here.boot, here.space) != (self.boot, self.space):
            return False
        try:
            return _started(self.pid) != self.started
        except (FileNotFoundError, ProcessLookupError):
            return True


def _started(pid: int) -> str:
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]


@dataclass(frozen=True)
class Lock:
    """Who holds a lock.

    Args:
        generation: its number; whoever takes over a lock left behind creates the next one.
        token: of this holder alone.
        who: in words.
        time: when it was taken, seconds since the epoch by the clock of its holder.
        place: of the holder; None where it is not known.
    """

    generation: int
    token: str
    who: str
    time: float
    place: Place | None = None

    @property
    def name(self) -> str:
        """Of the file."""
        return f".lock-{self.generation:06d}"

    @property
    def beat_name(self) -> str:
        """Of the file that its holder renews."""
        return f"{BEAT_PREFIX}{self.token}"


class LockFiles:
    """The locks of one folder.

    Its methods raise ConfigError, or what else `raysl.storage.addresses.telling` raises, while the storage fails.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.system = folder.system

    def highest(self) -> Lock | None:
        """The lock that counts; None where there is none."""
        while True:
            generations = self._generations()
            if not generations:
                return None
            lock = self.read(max(generations))
            if lock is not None:  # it may have been removed since the listing
                return lock

    def read(self, generation: int) -> Lock | None:
        """The lock of a generation; None where there is none."""
        content = self._content(f".lock-{generation:06d}")
        if content is None:
            return None
        try:
            written = json.loads(content)
            place = Place(**written["place"]) if written.get("place") else None
            return Lock(**(written | {"generation": generation, "place": place}))
        except (ValueError, TypeError):  # not written whole yet
            return Lock(generation, "", "another process", math.inf)

    def taker(self, lock: Lock) -> str | None:
        """Who holds the folder in place of `lock`, in words; None while that is the one that counts."""
        found = self.highest()
        if found is None or found.generation < lock.generation:
            found = self.read(lock.generation)  # a listing made while others' files come and go may lack files
        if found is None:
            return "no one (its files were removed)"
        return None if found == lock else found.who

    def beat(self, lock: Lock) -> bytes:
        """What the holder of a lock wrote last; other bytes tell that it is at work."""
        return self._content(lock.beat_name) or b""

    def renew(self, lock: Lock, number: int) -> None:
        """Write the next beat."""
        self._write(lock.beat_name, json.dumps({"time": time.time(), "number": number}).encode())

    def create(self, lock: Lock, settle_s: float, sleep: Callable[[float], object] = time.sleep) -> bool:
        """Write the file of a lock unless its generation exists; whether it is the caller's from now on.

        The storage is asked for that in one request, and then once more, which it must refuse. Where it has no such
        request, or ignores it, the file is written, given `settle_s` seconds in which others may write theirs, and
        read again.
        """
        content = json.dumps(asdict(lock)).encode()
        is_written = False
        with suppress(Unconditional):
            is_written = self._create(lock.name, content)
            if not is_written or not self._create(lock.name, content):
                return self._is_ours(lock)  # after a lost answer the client may have asked again, and met its own file
        log.warning(
            "%s has no writes that only one process can make (s3:// needs boto3 for them, gs:// gcsfs): "
            "the run is safe from a second driver unless both start in the same few seconds",
            self.folder.uri,
        )
        if not is_written:
            if self._content(lock.name) is not None:
                return False
            self._write(lock.name, content)
        sleep(settle_s)
        return self._is_ours(lock)

    def is_heir(self, lock: Lock, before: Lock | None) -> bool:
        """Whether a lock just created counts: nobody has a higher one, and the one before it is still the one seen.

        A lock is removed only after all lower ones, so where the one before is still there nobody has taken it over.
        """
        if max(self._generations(), default=0) != lock.generation:
            return False
        return before is None or self.read(before.generation) == before

    def remove(self, lock: Lock) -> None:
        """Delete the files of a lock."""
        self._delete(lock.name)
        self._delete(lock.beat_name)

    def remove_others(self, lock: Lock) -> None:
        """Delete what the holders before `lock` have left."""
        for name in self._names():
            if name.startswith(BEAT_PREFIX) and name != lock.beat_name:
                self._delete(name)
        for generation in self._generations():
            if generation < lock.generation:
                self._delete(f".lock-{generation:06d}")

    def _is_ours(self, lock: Lock) -> bool:
        found = self.read(lock.generation)
        return found is not None and found.token == lock.token

    def _generations(self) -> list[int]:
        return sorted(int(found[1]) for found in map(LOCK.fullmatch, self._names()) if found)

    def _names(self) -> list[str]:
        forget_listings(self.system)
        return self.folder.names()

    def _create(self, name: str, content: bytes) -> bool:
        with telling("write", self.folder.uri_of(name)):
            return create_new(self.system, f"{self.folder.path}/{name}", content)

    def _write(self, name: str, content: bytes) -> None:
        with (
            telling("write", self.folder.uri_of(name)),
            self.system.open_output_stream(f"{self.folder.path}/{name}") as stream,
        ):
            stream.write(content)

    def _content(self, name: str) -> bytes | None:
        with telling("read", self.folder.uri_of(name)):
            try:
                with self.system.open_input_stream(f"{self.folder.path}/{name}") as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def _delete(self, name: str) -> None:
        with telling("delete", self.folder.uri_of(name)), suppress(FileNotFoundError):
            self.system.delete_file(f"{self.folder.path}/{name}")
