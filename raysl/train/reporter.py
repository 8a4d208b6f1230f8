"""Where checkpoints and metrics go. Every rank calls a reporter at the same steps."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from raysl import distributed as dist
from raysl.checkpoint.files import checkpoint_name, checkpoint_names, newest_whole, remove_old, write_local
from raysl.storage.folder import Folder

log = logging.getLogger("raysl")

Save = Callable[[Path], None]


class Reporter(Protocol):
    """Takes what `fit` has to report."""

    def restore(self) -> Path | None:
        """Local folder of the newest checkpoint, or None at a first start."""

    def report(self, metrics: dict[str, float], save: Save | None) -> None:
        """Record metrics; with `save`, have the main rank write a checkpoint and store it. A barrier of all ranks."""

    def writing(self) -> AbstractContextManager[Path | None]:
        """A local folder for the run's files, None where nothing is kept; for the main rank alone. A full disk that
        refuses what is written inside is told of where the run is told of."""


class LocalReporter:
    """Keeps the newest checkpoints in a local folder; without a folder it keeps nothing.

    A checkpoint appears under its name when it is whole, so a kill leaves the one before it.
    """

    def __init__(self, folder: str | Path | None = None, keep: int = 2) -> None:
        self.folder = None if folder is None else Path(folder)
        self.keep = keep
        self.has_warned = False

    def restore(self) -> Path | None:
        """See `Reporter.restore`."""
        if self.folder is None:
            return None
        name = newest_whole(Folder(str(self.folder))).name
        return None if name is None else self.folder / name

    def report(self, metrics: dict[str, float], save: Save | None) -> None:
        """See `Reporter.report`."""
        if save is not None and self.folder is not None and dist.is_main():
            name = checkpoint_name(int(metrics["step"]))
            self._warn_of_later(name)
            write_local(self.folder, name, save)
            remove_old(Folder(str(self.folder)), name, self.keep)
        dist.barrier()

    @contextmanager
    def writing(self) -> Iterator[Path | None]:
        """See `Reporter.writing`; a full disk raises its error."""
        yield self.folder

    def _warn_of_later(self, name: str) -> None:
        """Say where the folder holds a checkpoint that counts as newer than the one that is about to be saved."""
        assert self.folder is not None
        later = [other for other in checkpoint_names(Folder(str(self.folder))) if other > name]
        if later and not self.has_warned:
            log.warning(
                "%s has %s of an earlier training, which counts as newer than %s: load_backbone would take it; delete "
                "it, or give this training another folder",
                self.folder,
                later[-1],
                name,
            )
            self.has_warned = True
