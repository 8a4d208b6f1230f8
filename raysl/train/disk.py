"""A full disk: remembered at the first write that it refuses, to end the run."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raysl.storage.reads import full_disk


class Disk:
    """The disks that this process writes to, and whether one is full.

    Attributes:
        failure: message with the folder on the full disk and its free space, or None.
    """

    def __init__(self) -> None:
        self.failure: str | None = None

    def is_full(self, folder: Path, error: BaseException | None) -> bool:
        """Whether an error, or its cause, means a full disk or an exhausted quota; remember it if so."""
        if (full := full_disk(error)) is None:
            return False
        self.failure = self.failure or _describe(folder, full)
        return True

    @contextmanager
    def writing(self, folder: Path) -> Iterator[None]:
        """While inside, remember a write that a full disk refuses in place of raising it."""
        try:
            yield
        except OSError as error:
            if not self.is_full(folder, error):
                raise


def _describe(folder: Path, error: OSError) -> str:
    existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    free = shutil.disk_usage(existing).free
    what = "the quota is used up" if error.errno == errno.EDQUOT else "the disk is full"
    return f"{what}: {folder} has {_size(free)} free; make room there, then the same command goes on"


def _size(num_bytes: int) -> str:
    """Return a size in the unit that suits it."""
    size = float(num_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.0f} TB"
