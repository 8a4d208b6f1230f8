"""Where a process keeps features and trainings while it measures a checkpoint; no two processes share them.

The first one at a checkpoint has `features/` and `work/` beside the results, and goes on there with what a start that
was cut off has left. One that comes while it is at work has a folder of its own, which goes when it ends.
"""

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from raysl.errors import RunFailed, RunInUse
from raysl.storage.folder import Folder, outlast
from raysl.storage.owner import own_folder

log = logging.getLogger("raysl")

FEATURES_FOLDER, WORK_FOLDER = "features", "work"
OWN = "process-"
"""What the folder of a process begins with that came while another one was at work."""
YOUNG_S = 60.0


@dataclass
class Workplace:
    """The folders of one process.

    Args:
        folder: that they lie in.
        is_lost: whether another process has taken them over, whose they are then.
        used: names of the folders in `features/` that this process has asked for.
    """

    folder: Folder
    is_lost: bool = False
    used: set[str] = field(default_factory=set)

    @property
    def work(self) -> Folder:
        """For trainings."""
        return self.folder.child(WORK_FOLDER)

    def features(self, name: str) -> Folder:
        """For the features of some images, by a name for these."""
        self.used.add(name)
        return self.folder.child(FEATURES_FOLDER).child(name)

    def begin_anew(self) -> None:
        """Delete features and trainings that earlier starts have left."""
        for name in (FEATURES_FOLDER, WORK_FOLDER):
            outlast(partial(self.folder.remove_folder, name))

    def forget_features(self) -> None:
        """Delete the features that this process has used."""
        if self.is_lost:
            return
        kept = self.folder.child(FEATURES_FOLDER)
        for name in sorted(self.used):
            outlast(partial(kept.remove_folder, name))
        if not outlast(lambda: kept.exists() and kept.names()):
            outlast(lambda: self.folder.remove_folder(FEATURES_FOLDER))


@contextmanager
def workplace(folder: Folder) -> Iterator[Workplace]:
    """The folders of this process for as long as it is inside.

    Args:
        folder: of the results of a checkpoint.
    """
    outlast(folder.make)
    with ExitStack() as held:
        place = Workplace(folder)
        try:
            held.enter_context(_owned(place))
        except RunInUse as error:
            holder = str(error).partition(";")[0]
            place = Workplace(folder.child(f"{OWN}{uuid.uuid4().hex[:8]}"))
            outlast(place.folder.make)
            held.callback(partial(outlast, partial(place.folder.remove_folder, "")))
            held.enter_context(_owned(place))
            log.info("%s: this command keeps its features in a folder of its own, %s", holder, place.folder.uri)
        else:
            _clear(folder)
        yield place


@contextmanager
def _owned(place: Workplace) -> Iterator[None]:
    """Own the folder of a workplace. A process that loses a remote one goes on, and leaves what lies there alone.

    Raises:
        RunInUse: if another process owns it.
    """

    def lost(message: str) -> None:
        place.is_lost = True
        log.warning("another process has taken over the features in %s: %s", place.folder.uri, message)

    is_done = False
    try:
        with own_folder(place.folder, lost):
            yield
            is_done = True
    except RunFailed:
        if not is_done:
            raise


def _clear(folder: Folder) -> None:
    """Delete what processes that were killed have left in local folders of their own."""
    for entry in folder.entries() if folder.is_local else ():
        is_new = time.time() - entry.mtime_ns / 1e9 < YOUNG_S  # its process may be about to lock it
        if entry.base_name.startswith(OWN) and not is_new:
            with suppress(RunInUse), own_folder(folder.child(entry.base_name)):
                folder.remove_folder(entry.base_name)
