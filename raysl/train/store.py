"""Storing the checkpoints and logs of a run, from its main rank, also while the storage fails.

Training goes on if a checkpoint cannot be stored: the next one replaces it, and the last one of a run is tried again
for half an hour. A local disk that is full or read-only is remembered instead, and ends the run.
"""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from typing_extensions import override

from raysl.checkpoint.checkpoint_folder import remove_old, upload, write_local
from raysl.errors import ConfigError, StorageError
from raysl.process.temporary import make_temporary_folder
from raysl.storage.folder import Folder, outlast
from raysl.storage.owner import Owner, OwnerFiles
from raysl.storage.reads import short_reason
from raysl.train.disk import Disk
from raysl.train.reporter import Save


class RemoteStore:
    """Uploads checkpoints and logs in the background, one after the other. One thread of the main rank calls it.

    `put` waits for the upload of the checkpoint before; if that fails, the older one is given up for the newer one.
    Stored checkpoints, and those that cannot be stored, are noted in the run's events.

    Args:
        disk: the run's logs, and whether the local disk is full.
        keep: number of newest checkpoints to keep.
        owner: owner of the run's folder; nothing more is stored once another driver owns it.
    """

    def __init__(self, folder: Folder, disk: Disk, keep: int, owner: Owner | None = None) -> None:
        self.folder = folder
        self.disk = disk
        self.keep = keep
        self.owner = owner
        self.owners = OwnerFiles(folder)
        self.is_overtaken = False
        self._change = threading.Condition()
        self._waiting: tuple[str, Path] | None = None
        self._are_logs_due = False
        self._is_busy = False
        self._stored_logs: dict[str, tuple[int, int]] = {}
        self._failure: StorageError | None = None  # of the current or the last upload
        self._unstored: StorageError | None = None  # why the newest checkpoint is not stored
        threading.Thread(target=self._work, name="raysl-store", daemon=True).start()

    def put(self, name: str, save: Save) -> None:
        """Store under a name what `save` writes into a local folder; a failing storage is noted, not raised."""
        draft = make_temporary_folder("checkpoint")
        try:
            save(draft)
        except (OSError, StorageError) as error:
            shutil.rmtree(draft, ignore_errors=True)
            self._unstored = StorageError(f"cannot write {name} to {draft}: {short_reason(error)}")
            if not self.disk.refuses(draft.parent, error):
                self.disk.note(f"{self._unstored}; training goes on without it")
            return
        with self._change:
            # at most one draft waits: the one before is taken up first, or replaced where uploads fail
            self._change.wait_for(lambda: self._waiting is None or self._failure is not None)
            if self._waiting is not None:
                shutil.rmtree(self._waiting[1], ignore_errors=True)
            self._waiting, self._unstored = (name, draft), None
            self._change.notify_all()

    def put_logs(self) -> None:
        """Store the logs as they are now, soon."""
        with self._change:
            self._are_logs_due = True
            self._change.notify_all()

    def finish(self) -> None:
        """Wait until the newest checkpoint and the logs are stored.

        Raises:
            StorageError: if that fails for half an hour.
        """
        self.put_logs()
        with self._change:
            self._change.wait_for(lambda: self._waiting is None and not self._are_logs_due and not self._is_busy)
            error = self._unstored or self._failure
        if error is not None:
            raise error

    def _work(self) -> None:
        while True:
            with self._change:
                self._is_busy = False
                self._change.notify_all()
                self._change.wait_for(lambda: self._waiting is not None or self._are_logs_due)
                task, self._waiting = self._waiting, None
                self._is_busy, self._are_logs_due, self._failure = True, False, None
                self._change.notify_all()
            try:
                outlast(partial(self._store, task), self._goes_on, sleep=self._pause)
            except StorageError as error:
                self._failure = error
                if task is not None:
                    # a newer checkpoint that already waits makes up for this one
                    self._unstored = error if self._waiting is None else None
                    self.disk.note(f"gave up {task[0]}: {error}")
            if task is not None:
                shutil.rmtree(task[1], ignore_errors=True)

    def _store(self, task: tuple[str, Path] | None) -> None:
        """Try once: the logs first, so that they reach at least to the checkpoint's step."""
        try:
            self._check_owner()
            self._store_logs()
            if task is not None:
                name, draft = task
                self._upload(draft, name)
                self._note_saved(name)
                self._are_logs_due = True  # they now name this checkpoint
                remove_old(self.folder, name, self.keep)
        except (ConfigError, OSError) as error:  # also errors that look permanent, such as expired credentials
            if self._failure is None:
                self.disk.note(f"{error}; training goes on, and it is tried again")
            self._failure = error if isinstance(error, StorageError) else StorageError(str(error))
            raise self._failure from error
        self._failure = None

    def _store_logs(self) -> None:
        """Upload the log files that have changed since their last upload."""
        logs = self.disk.logs
        for path in sorted(path for path in logs.rglob("*") if path.is_file() and path.suffix != ".part"):
            status, name = path.stat(), path.relative_to(logs).as_posix()
            version = status.st_mtime_ns, status.st_size
            if self._stored_logs.get(name) != version:
                self.folder.copy_in(path, name) if "/" in name else self.folder.upload(path, name)
                self._stored_logs[name] = version

    def _upload(self, draft: Path, name: str) -> None:
        upload(draft, self.folder, name)

    def _note_saved(self, name: str) -> None:
        self.disk.note(f"saved {name}", "save")

    def _check_owner(self) -> None:
        successor = None if self.owner is None else self.owners.successor(self.owner)
        if successor is not None:
            self.is_overtaken = True
            raise StorageError(f"nothing more is stored in {self.folder.uri}, which is now held by {successor}")

    def _goes_on(self) -> bool:
        return self._waiting is None and not self.is_overtaken

    def _pause(self, seconds: float) -> None:
        with self._change:
            self._change.notify_all()
            self._change.wait_for(lambda: self._waiting is not None, seconds)


class LocalStore(RemoteStore):
    """Keeps the newest checkpoints in a local folder, where the logs already are.

    Each is written there at once. If that fails for the moment, it is written to a temporary folder, and moved from
    there in the background.
    """

    _newest: tuple[str, Save] | None = None

    @override
    def put(self, name: str, save: Save) -> None:
        self._newest, self._unstored = (name, save), None
        if self._is_busy:  # with the one before, which this one replaces
            super().put(name, save)
            return
        try:
            self._write(name, save)
        except StorageError as error:
            self._unstored = error
            if self.disk.failure is None:
                super().put(name, save)

    @override
    def put_logs(self) -> None:
        pass

    @override
    def finish(self) -> None:
        if self._unstored is not None and self.disk.failure is None:  # nor in the temporary folder
            assert self._newest is not None
            outlast(partial(self._write, *self._newest), goes_on=lambda: self.disk.failure is None)
            self._unstored = None
        super().finish()

    @override
    def _store_logs(self) -> None:
        pass

    @override
    def _upload(self, draft: Path, name: str) -> None:
        self._place(name, partial(shutil.copytree, draft, dirs_exist_ok=True))

    def _write(self, name: str, save: Save) -> None:
        self._place(name, save)
        self._note_saved(name)
        with self._failing(name):
            remove_old(self.folder, name, self.keep)

    def _place(self, name: str, fill: Save) -> None:
        with self._failing(name):
            self.folder.check_there()  # the draft would make it anew
            write_local(Path(self.folder.path), name, fill)

    @contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ConfigError) as error:
            self.disk.refuses(Path(self.folder.path), error)
            reason = error if isinstance(error, StorageError) else short_reason(error)
            raise StorageError(f"cannot write {self.folder.uri_of(name)!r}: {reason}") from error
