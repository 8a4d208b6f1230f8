"""The files by which processes agree on the owner of a remote folder, and their creation by one process alone.

fsspec has that creation as the mode `create` of `pipe_file`. pyarrow's own clients do not have it: botocore sends the
request to S3 (`raysl.storage.s3`), and gcsfs does to Google's buckets.
"""

import json
import math
import os
import re
import socket
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from fsspec import AbstractFileSystem
from pyarrow import fs

from raysl.errors import log
from raysl.process.environment import submission_id
from raysl.process.proc import ProcessIdentity
from raysl.storage.folder import Folder, Version, delete_file, put, storage_errors
from raysl.storage.reads import fsspec_client
from raysl.storage.records import Damaged, from_record, read_record
from raysl.storage.s3 import NoClient, endpoint, put_new

OWNER_FILE = re.compile(r"\.lock-(\d{6,})")
BEAT_PREFIX = ".beat-"


@dataclass(frozen=True)
class Owner:
    """The content of an owner file; the fields are its keys.

    Args:
        generation: number of the file; a process that takes the folder over creates the next one.
        token: random, of this owner alone.
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


class OwnerFiles:
    """The owner files of a remote folder.

    Each file is read or written in a single try, for callers that come back soon, and as other processes have just
    written it. The methods raise ConfigError while the storage fails: a StorageError where that may pass.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
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
        versions = self.folder.versions()
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
        versions = self.folder.versions()
        last, beat = self._last(versions), versions.get(owner.beat_name)
        if last is None:
            return None
        return last, versions[last], beat if beat is None or beat.time is not None else self.beat(owner)

    def beat(self, owner: Owner) -> bytes:
        """Return what an owner wrote last; it is at work while this changes."""
        return self._read(owner.beat_name) or b""

    def renew(self, owner: Owner) -> None:
        """Write the next beat of an owner."""
        self._write(owner.beat_name, json.dumps({"time": time.time()}).encode())

    def create(self, owner: Owner, settle_s: float) -> bool:
        """Write an owner file unless its generation exists; return whether it is this owner's.

        The storage is asked for that in one request, and once more, which it must refuse. Where it has no such request,
        or ignores the condition, the file is written, others get `settle_s` seconds to write theirs, and it is read.
        """
        is_written = False
        with suppress(Unconditional):
            is_written = self._create(owner.name, owner.content)
            if not is_written or not self._create(owner.name, owner.content):
                return self._is_of(owner)  # after a lost answer the client may have asked again, and met its own file
        log.warning(
            "%s has no writes that only one process can make (s3:// needs boto3 for them, gs:// gcsfs): "
            "the run is safe from a second driver unless both start in the same few seconds",
            self.folder.uri,
        )
        if not is_written:
            if self._read(owner.name) is not None:
                return False
            self._write(owner.name, owner.content)
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
        self._delete(owner.name)
        self._delete(owner.beat_name)

    def remove_others(self, owner: Owner) -> None:
        """Delete the files of earlier owners."""
        names = self.folder.versions()
        # from the lowest number on, as `is_heir` expects
        for generation in self._generations(names):
            if generation < owner.generation:
                self._delete(f".lock-{generation:06d}")
        for name in names:
            if name.startswith(BEAT_PREFIX) and name != owner.beat_name:
                self._delete(name)

    def _generations(self, names: Iterable[str] | None = None) -> list[int]:
        matches = map(OWNER_FILE.fullmatch, self.folder.versions() if names is None else names)
        return sorted(int(match[1]) for match in matches if match)

    def _last(self, names: Iterable[str]) -> str | None:
        return max(filter(OWNER_FILE.fullmatch, names), key=lambda name: int(name[len(".lock-") :]), default=None)

    def _read_owner(self, generation: int) -> Owner | None:
        content = self._read(f".lock-{generation:06d}")
        return None if content is None else Owner.parse(content, generation)

    def _is_of(self, owner: Owner) -> bool:
        created = self._read_owner(owner.generation)
        return created is not None and created.token == owner.token

    def _create(self, name: str, content: bytes) -> bool:
        with storage_errors("write", self.folder.uri_of(name)):
            return create_new(self.folder.system, f"{self.folder.path}/{name}", content)

    def _read(self, name: str) -> bytes | None:
        with storage_errors("read", self.folder.uri_of(name)):
            try:
                with self.folder.system.open_input_stream(f"{self.folder.path}/{name}") as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def _write(self, name: str, content: bytes) -> None:
        with storage_errors("write", self.folder.uri_of(name)):
            put(self.folder.system, content, f"{self.folder.path}/{name}")

    def _delete(self, name: str) -> None:
        with storage_errors("delete", self.folder.uri_of(name)):
            delete_file(self.folder.system, f"{self.folder.path}/{name}")


class Unconditional(Exception):
    """No installed client of this storage can create a file only where there is none."""


def create_new(system: fs.FileSystem, path: str, content: bytes) -> bool:
    """Create a file unless there is one, in a single request to the storage; return whether it was created.

    A storage may ignore the condition; then a second call for the same path returns True again.

    Raises:
        Unconditional: if there is no such request.
        OSError: if the network or the storage fails.
    """
    client = fsspec_client(system)
    if client is not None:
        return _pipe(client, path, content)
    if system.type_name not in ("s3", "gcs"):
        raise Unconditional(system.type_name)
    try:
        return put_new(system, path, content) if system.type_name == "s3" else _pipe(_gcsfs(system), path, content)
    except (ImportError, NoClient) as error:
        raise Unconditional(str(error)) from error


def _pipe(client: Any, path: str, content: bytes) -> bool:
    if type(client).pipe_file is AbstractFileSystem.pipe_file:  # it looks first and then writes, so two may write
        raise Unconditional(type(client).__name__)
    try:
        client.pipe_file(path, content, mode="create")
    except FileExistsError:
        return False
    except (TypeError, ValueError, NotImplementedError) as error:  # a file system that does not know the mode
        raise Unconditional(str(error)) from error
    return True


def _gcsfs(system: fs.FileSystem) -> Any:
    import gcsfs

    options = system.__reduce__()[1][0]
    return gcsfs.GCSFileSystem(token="anon" if options["anonymous"] else None, endpoint_url=endpoint(options))
