"""A disk that is full: named once, by whoever is refused first, and the end of the run."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raysl.storage.reads import full_disk


class Disk:
    """What the writes of a process have found out about the disks below them.

    Attributes:
        failure: which folder is on a full disk and how much is free there; None while nothing was refused.
    """

    def __init__(self) -> None:
        self.failure: str | None = None

    def is_full(self, folder: Path, error: BaseException | None) -> bool:
        """Whether an error, or one behind it, is that of a full disk (or of a quota that is used up); remembers it."""
        if (full := full_disk(error)) is None:
            return False
        self.failure = self.failure or _words(folder, full)
        return True

    @contextmanager
    def writing(self, folder: Path) -> Iterator[None]:
        """Have a write into a folder that the full disk refuses be remembered, not raised."""
        try:
            yield
        except OSError as error:
            if not self.is_full(folder, error):
                raise


def _words(folder: Path, error: OSError) -> str:
    there = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    free = shutil.disk_usage(there).free
    what = "the quota is used up" if error.errno == errno.EDQUOT else "the disk is full"
    return f"{what}: {folder} has {_size(free)} free; make room there, then the same command goes on"


def _size(num_bytes: int) -> str:
    """For people."""
    size = float(num_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.0f} TB"
