"""Temporary folders: those of one process, and those that the processes of a node share."""

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from raysl.hashing import hash_text
from raysl.process.proc import ProcessIdentity

_NAME = re.compile(r"raysl_[a-z]+_([0-9a-f]{8})-(\d+)-(\d+)_.+")


def temporary_folder(kind: str) -> "tempfile.TemporaryDirectory[str]":
    """Return a new folder that is deleted at the end of its `with` block, or with the object.

    Args:
        kind: purpose, in lower case letters.

    >>> with temporary_folder("notes") as folder:
    ...     Path(folder).is_dir()
    True
    """
    return tempfile.TemporaryDirectory(prefix=_prefix(kind))


def make_temporary_folder(kind: str) -> Path:
    """Make a folder that the caller deletes; `kind` is as in `temporary_folder`."""
    return Path(tempfile.mkdtemp(prefix=_prefix(kind)))


def _prefix(kind: str) -> str:
    """Delete what ended processes have left, and return the beginning of this process's names."""
    current = ProcessIdentity.current()
    if current is None:
        return f"raysl_{kind}_"
    machine = f"{hash_text(current.boot + current.space) & 0xFFFFFFFF:08x}"
    for path in Path(tempfile.gettempdir()).glob("raysl_*"):
        match = _NAME.fullmatch(path.name)
        # the folders of another container or machine may be in use, however their processes look from here
        if match and match[1] == machine:
            maker = ProcessIdentity(current.boot, current.space, int(match[2]), match[3])
            if maker.has_ended():
                shutil.rmtree(path, ignore_errors=True)
    return f"raysl_{kind}_{machine}-{current.pid}-{current.started}_"


PREFIX = "raysl_shared_"
YOUNG_S = 600.0
"""Seconds for which folders stay after their last use began or ended, because a next task may be about to start."""
_LOCK = "lock"


class NodeFolder:
    """A folder that stays while it is in use; `close` ends the use by this process."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    def close(self) -> None:
        """End the use; the content may be deleted from now on."""
        if self._lock >= 0:
            with suppress(OSError):
                os.utime(self.path.parent / _LOCK)
            os.close(self._lock)
            self._lock = -1


def node_folder(token: str, name: str, make: Callable[[Path], None]) -> NodeFolder:
    """Return a folder of this node, which the first process to ask for it makes while others wait.

    Args:
        token: name of a command, hard to guess, because the temporary folder belongs to all users.
        make: fills an empty folder; if it fails or is killed, the next process to ask begins again.
    """
    root = _root(token)
    if not root.exists():
        delete_abandoned()
    with _making(root):
        path = root / name
        if not path.exists():
            draft = root / f"{name}.draft"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            (draft / _LOCK).touch()
            make(draft)
            # renamed when it is whole, so that a maker that is killed leaves only a draft
            draft.rename(path)
        os.utime(root / _LOCK)
        # processes that use the folder share this lock; while one holds it, nobody counts the folder as abandoned
        lock = os.open(path / _LOCK, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_SH)
    return NodeFolder(path, lock)


def forget_node_folders(token: str) -> None:
    """Delete the folders of a command on this node, also those that are in use; files that are open stay readable."""
    shutil.rmtree(_root(token), ignore_errors=True)


def delete_abandoned() -> None:
    """Delete the folders of commands that no process has used or made lately."""
    for root in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(FileNotFoundError):  # its command deletes it now
            is_ours, used = root.stat().st_uid == os.getuid(), (root / _LOCK).stat().st_mtime
            if is_ours and time.time() - used > YOUNG_S and all(map(_is_free, root.rglob(_LOCK))):
                shutil.rmtree(root, ignore_errors=True)


def _root(token: str) -> Path:
    return Path(tempfile.gettempdir()) / f"{PREFIX}{token}"


@contextmanager
def _making(root: Path) -> Iterator[None]:
    """Hold the lock of a command's folders, which are created if they are missing."""
    while True:
        root.mkdir(mode=0o700, exist_ok=True)
        try:
            lock = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # another process has just deleted the folder
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # while this process waited for the lock, another one may have deleted the folder and its lock
            if _is_at(lock, root / _LOCK):
                yield
                return
        finally:
            os.close(lock)


def _is_at(lock: int, path: Path) -> bool:
    """Whether an open file still has its name."""
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False


def _is_free(path: Path) -> bool:
    """Whether nobody holds a lock."""
    lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
