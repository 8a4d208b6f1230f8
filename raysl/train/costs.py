"""The costs of a run over all its starts, kept in `costs.json` of its folder.

The file is written again while a start goes on, so that one that is killed counts up to its last seconds.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial

from raysl.errors import ConfigError, log
from raysl.storage.folder import Folder, outlast
from raysl.storage.records import Damaged, read_as

COSTS_FILE = "costs.json"
WRITE_EVERY_S, WRITE_EVERY_REMOTE_S = 10.0, 60.0
LAST_WRITE_S = 2.0
"""Seconds for which the end of a start waits for a storage that does not answer."""


@dataclass(frozen=True)
class Costs:
    """The costs of a run up to a moment.

    Args:
        gpu_hours: hours of all GPUs that its training workers held.
        began: time of the first start, in seconds since 1970; 0 before it.
    """

    seconds: float = 0.0
    gpu_hours: float = 0.0
    began: float = 0.0

    @classmethod
    def read(cls, folder: Folder) -> "Costs":
        """Read the costs in a run's folder; zeros without any, and where the file is damaged, with a warning."""
        content = folder.read_if_there(COSTS_FILE)
        try:
            return read_as(cls, content, folder.uri_of(COSTS_FILE)) if content else cls()
        except Damaged as error:
            log.warning("%s; the costs of its earlier starts are not counted", error)
            return cls()

    def numbers(self) -> dict[str, float]:
        """Return the costs by name, for tables; those that are 0 are left out."""
        rounded = {"seconds": round(self.seconds, 2), "gpu_hours": round(self.gpu_hours, 4)}
        return {name: value for name, value in rounded.items() if value}


class CostCounter(threading.Thread):
    """Adds the costs of a start to those of earlier starts.

    Args:
        since: beginning of the start, in seconds since 1970; default: now.
    """

    def __init__(self, folder: Folder, since: float | None = None) -> None:
        super().__init__(name="raysl-costs", daemon=True)
        self.folder = folder
        self.since = time.time() if since is None else since
        self.earlier = outlast(partial(Costs.read, folder))
        self.gpu_hours = 0.0
        self._held = (0.0, self.since)
        self._is_over = threading.Event()

    @property
    def costs(self) -> Costs:
        """The costs of the run up to now."""
        now, (gpus, held_since) = time.time(), self._held
        return Costs(
            seconds=self.earlier.seconds + now - self.since,
            gpu_hours=self.earlier.gpu_hours + self.gpu_hours + gpus * (now - held_since) / 3600,
            began=self.earlier.began or self.since,
        )

    @contextmanager
    def holding(self, gpus: float) -> Iterator[None]:
        """Count the hours of GPUs that are held inside."""
        self._held = gpus, time.time()
        try:
            yield
        finally:
            gpus, since = self._held
            self.gpu_hours, self._held = self.gpu_hours + gpus * (time.time() - since) / 3600, (0.0, since)

    def run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_over.wait(WRITE_EVERY_S if self.folder.is_local else WRITE_EVERY_REMOTE_S)
            self.write()

    def write(self) -> None:
        """Write the costs up to now; a storage that fails gets them at the next call."""
        try:
            self.folder.write(COSTS_FILE, json.dumps(asdict(self.costs)).encode())
        except ConfigError as error:
            log.debug("the costs of the run are not written: %s", error)

    def end(self) -> None:
        """Write the costs for the last time."""
        self._is_over.set()
        self.join(LAST_WRITE_S)


@contextmanager
def counting_costs(folder: Folder, since: float | None = None) -> Iterator[CostCounter]:
    """Count the time inside, and write it into a run's folder; arguments as of `CostCounter`."""
    counter = CostCounter(folder, since)
    counter.write()
    counter.start()
    try:
        yield counter
    finally:
        counter.end()
