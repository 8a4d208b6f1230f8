"""Reporting through Ray Train: metrics to its controller, checkpoints to the run's own folder."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray.train
from ray.train.collective import broadcast_from_rank_zero
from typing_extensions import override

from raysl import distributed as dist
from raysl.checkpoint.checkpoint_folder import KEPT_FILE, META_FILE, STATE_FILE, checkpoint_name, newest_whole, sweep
from raysl.errors import StorageError
from raysl.process.temporary import make_temporary_folder, temporary_folder
from raysl.runs.folder import RunFolder
from raysl.storage.folder import outlast
from raysl.storage.owner import Owner
from raysl.train.disk import Disk
from raysl.train.file_names import (
    CORRUPT_FILE,
    EVENTS_FILE,
    METRICS_FILE,
    PROJECTOR_FILE,
    TRACKERS_FILE,
    TRACKING_DATABASE,
)
from raysl.train.reporter import Reporter, Save
from raysl.train.store import LocalStore, RemoteStore


class RayReporter(Reporter):
    """Reports to Ray Train's controller; checkpoints of remote runs are uploaded while training goes on.

    Args:
        disk: the run's logs on this node, and whether they may be written.
        owner: owner of the run's folder, if remote; nothing is stored once another driver owns it.
    """

    def __init__(self, folder: RunFolder, disk: Disk, keep: int, owner: Owner | None = None) -> None:
        self.folder = folder
        self.disk = disk
        self.store: RemoteStore | None = None
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self.is_saving = False
        if dist.is_main():
            self.store = (LocalStore if folder.is_local else RemoteStore)(folder, disk, keep, owner)

    @override
    def restore(self) -> Path | None:
        # one rank cleans up and chooses, so that all ranks load the same checkpoint
        name: str | None = broadcast_from_rank_zero(outlast(self._newest) if dist.is_main() else None)
        if name is None:
            return None
        if self.folder.is_local:
            return Path(self.folder.path) / name
        self._copy = temporary_folder("restored")
        target = Path(self._copy.name)
        outlast(lambda: self.folder.child(name).download(target, [META_FILE, STATE_FILE]))
        return target

    @override
    def report(self, metrics: dict[str, Any], save: Save | None) -> None:
        if save is not None and self.store is not None:
            self.is_saving = True  # an error in it makes the store save again later
            try:
                self.store.put(checkpoint_name(int(metrics["step"])), save)
            finally:
                self.is_saving = False
        ray.train.report(metrics)

    @override
    @contextmanager
    def writing(self) -> Iterator[Path | None]:
        if not self.is_saving:
            self.disk.settle()
        try:
            with self.disk.writing():
                yield self.disk.logs
        except StorageError as error:
            if self.is_saving:  # the store then saves again
                raise
            self.disk.note(f"a callback's files are left out: {error}")

    def put_logs(self) -> None:
        """Store the logs as they are now, soon."""
        if self.store is not None:
            self.store.put_logs()

    def finish(self) -> None:
        """Wait until everything is stored, and delete what a remote run has kept on this node.

        Raises:
            StorageError: if the newest checkpoint or the logs could not be stored for half an hour.
        """
        if self.store is not None:
            self.disk.settle()
            self.store.finish()
            self.disk.settle()  # the note of the last checkpoint
            if not self.folder.is_local:
                shutil.rmtree(self.disk.logs, ignore_errors=True)
        if self._copy is not None:
            self._copy.cleanup()

    def _newest(self) -> str | None:
        """Name the newest whole checkpoint, after removing what an earlier start left half-written."""
        sweep(self.folder)
        newest = newest_whole(self.folder)
        for reason in newest.passed_over:
            self.disk.note(f"passed over {reason}")
        return newest.name


def local_logs(folder: RunFolder) -> Path:
    """Return the local folder for logs: the run's own if local, else a new one with a copy of the earlier logs."""
    if folder.is_local:
        return Path(folder.path)
    logs = make_temporary_folder("logs")

    def download() -> None:
        own = {METRICS_FILE, EVENTS_FILE, CORRUPT_FILE, KEPT_FILE, PROJECTOR_FILE, TRACKERS_FILE, TRACKING_DATABASE}
        folder.download(logs, own & set(folder.names()))

    outlast(download)
    return logs
