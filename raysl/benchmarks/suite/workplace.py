"""The folders for features and trainings of a process that measures a checkpoint; no two processes share them.

The first one at a checkpoint has `features/` and `work/` beside the results, and goes on there with what a start that
was cut off has left. One that comes while it is at work has a folder of its own, which goes when it ends.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from raysl.errors import RunFailed, RunInUse, log
from raysl.storage.folder import Folder, outlast
from raysl.storage.owner import own_folder

FEATURES_FOLDER, WORK_FOLDER = "features", "work"
OWN = "process-"
"""Prefix of the folder of a process that starts while another one measures the same checkpoint."""
YOUNG_S = 60.0


@dataclass
class Workplace:
    """The folders of one process.

    Args:
        is_lost: whether another process has taken them over, whose they are then.
        used: names of the folders in `features/` that this process has asked for.
    """

    folder: Folder
    is_lost: bool = False
    used: set[str] = field(default_factory=set)

    @property
    def work(self) -> Folder:
        """The folder for trainings."""
        return self.folder.child(WORK_FOLDER)

    def features(self, name: str) -> Folder:
        """Return the folder for the features of some images, by a name for these."""
        self.used.add(name)
        return self.folder.child(FEATURES_FOLDER).child(name)

    def begin_anew(self) -> None:
        """Delete features and trainings of earlier starts."""
        for name in (FEATURES_FOLDER, WORK_FOLDER):
            outlast(partial(self.folder.remove_folder, name))

    def forget_features(self) -> None:
        """Delete the features of this process."""
        if self.is_lost:
            return
        features = self.folder.child(FEATURES_FOLDER)
        for name in sorted(self.used):
            outlast(partial(features.remove_folder, name))
        if not outlast(lambda: features.exists() and features.names()):
            outlast(lambda: self.folder.remove_folder(FEATURES_FOLDER))


@contextmanager
def workplace(folder: Folder) -> Iterator[Workplace]:
    """Yield the folders of this process, which holds them until the end."""
    outlast(folder.make)
    with ExitStack() as held:
        work = Workplace(folder)
        try:
            held.enter_context(_owned(work))
        except RunInUse as error:
            holder = str(error).partition(";")[0]
            work = Workplace(folder.child(f"{OWN}{uuid.uuid4().hex[:8]}"))
            outlast(work.folder.make)
            # callbacks run in reverse order: the folder is removed after its lock is given up
            held.callback(partial(outlast, partial(work.folder.remove_folder, "")))
            held.enter_context(_owned(work))
            log.info("%s: this command keeps its features in a folder of its own, %s", holder, work.folder.uri)
        else:
            _clear(folder)
        yield work


@contextmanager
def _owned(work: Workplace) -> Iterator[None]:
    """Own the folder of a workplace. A process that loses a remote one continues without touching it.

    Raises:
        RunInUse: if another process owns it.
    """

    def lost(message: str) -> None:
        work.is_lost = True
        log.warning("another process has taken over the features in %s: %s", work.folder.uri, message)

    is_done = False
    try:
        with own_folder(work.folder, lost):
            yield
            is_done = True
    except RunFailed:
        if not is_done:
            raise


def _clear(folder: Folder) -> None:
    """Delete the own folders that killed processes have left on local disks."""
    for entry in folder.entries() if folder.is_local else ():
        is_new = time.time() - entry.mtime_ns / 1e9 < YOUNG_S  # its process may be about to lock it
        if entry.base_name.startswith(OWN) and not is_new:
            with suppress(RunInUse), own_folder(folder.child(entry.base_name)):
                folder.remove_folder(entry.base_name)
