"""Reporters take the checkpoints and metrics of a training. Every rank calls them at the same steps."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from raysl import distributed as dist
from raysl.checkpoint.checkpoint_folder import checkpoint_name, checkpoint_names, newest_whole, remove_old, write_local
from raysl.errors import log
from raysl.storage.folder import Folder

Save = Callable[[Path], None]


class Reporter(Protocol):
    """Takes the metrics and checkpoints of `fit`."""

    def restore(self) -> Path | None:
        """Return the local folder of the newest checkpoint, or None at a first start."""

    def report(self, metrics: dict[str, float], save: Save | None) -> None:
        """Record metrics; with `save`, the main rank writes a checkpoint and stores it. A barrier of all ranks."""

    def writing(self) -> AbstractContextManager[Path | None]:
        """Yield the local folder for the run's files, or None where none are kept. For the main rank alone.

        A reporter of a run on Ray remembers a full disk; another one raises its error."""


class LocalReporter(Reporter):
    """Keeps the newest checkpoints in a local folder, or none without a folder.

    A checkpoint gets its name when it is whole, so a kill leaves the one before it.

    Args:
        folder: folder of the checkpoints; None for none.
        keep: number of newest checkpoints to keep.
        show_progress: whether `fit` shows a line an epoch.
    """

    def __init__(self, folder: str | Path | None = None, keep: int = 2, show_progress: bool = True) -> None:
        self.show_progress = show_progress
        self.folder = None if folder is None else Path(folder)
        self.keep = keep
        self.has_warned = False

    @override
    def restore(self) -> Path | None:
        if self.folder is None:
            return None
        name = newest_whole(Folder(str(self.folder))).name
        return None if name is None else self.folder / name

    @override
    def report(self, metrics: dict[str, float], save: Save | None) -> None:
        if save is not None and self.folder is not None and dist.is_main():
            name = checkpoint_name(int(metrics["step"]))
            self._warn_of_later(name)
            write_local(self.folder, name, save)
            remove_old(Folder(str(self.folder)), name, self.keep)
        dist.barrier()

    @override
    @contextmanager
    def writing(self) -> Iterator[Path | None]:
        yield self.folder

    def _warn_of_later(self, name: str) -> None:
        """Warn if the folder holds a checkpoint with a later step than the one about to be saved."""
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
