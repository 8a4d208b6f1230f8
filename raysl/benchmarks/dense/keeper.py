"""Where the training of a benchmark keeps its newest checkpoint: in its own folder, local or remote."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raysl import distributed as dist
from raysl.checkpoint.files import (
    META_FILE,
    STATE_FILE,
    checkpoint_name,
    newest_whole,
    remove_old,
    sweep,
    upload,
    write_local,
)
from raysl.storage.folder import Folder
from raysl.train.reporter import Save


class Keeper:
    """A `Reporter` that keeps one checkpoint, so that a training goes on where a start before this one was ended.

    A checkpoint appears under its name when it is whole, so a kill leaves the one before it.

    Args:
        folder: of this training alone.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.copy: tempfile.TemporaryDirectory[str] | None = None

    def restore(self) -> Path | None:
        """See `Reporter.restore`; what an earlier start left half-written is swept up."""
        self.folder.make()
        if dist.is_main():
            sweep(self.folder)
        dist.barrier()
        name = newest_whole(self.folder).name
        if name is None:
            return None
        if self.folder.is_local:
            return Path(self.folder.path) / name
        self.copy = tempfile.TemporaryDirectory(prefix="raysl_restored_")
        self.folder.child(name).download(Path(self.copy.name), [META_FILE, STATE_FILE])
        return Path(self.copy.name)

    def report(self, metrics: dict[str, float], save: Save | None) -> None:
        """See `Reporter.report`."""
        if save is not None and dist.is_main():
            name = checkpoint_name(int(metrics["step"]))
            if self.folder.is_local:
                write_local(Path(self.folder.path), name, save)
            else:
                with tempfile.TemporaryDirectory(prefix="raysl_checkpoint_") as made:
                    save(Path(made))
                    upload(Path(made), self.folder, name)
            remove_old(self.folder, name, keep=1)
        dist.barrier()

    @contextmanager
    def writing(self) -> Iterator[Path | None]:
        """See `Reporter.writing`; nothing is kept beside checkpoints."""
        yield None
