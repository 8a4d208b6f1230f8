"""Temporary folders. Those that a killed process left behind are deleted when the next one is made.

Their names tell which process made them: `raysl_<kind>_<machine>-<pid>-<start>_<random>`.
"""

import re
import shutil
import tempfile
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
