"""Small files about trials, written as soon as their storage takes them."""

from collections.abc import Callable

from raysl.errors import ConfigError, log
from raysl.storage.folder import without_waiting


class Outbox:
    """Writes that are tried again, so that a storage that fails, or a full disk, delays nobody."""

    def __init__(self) -> None:
        self._waiting: dict[str, Callable[[], None]] = {}
        self._failed: set[str] = set()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def put(self, what: str, write: Callable[[], None]) -> None:
        """Write something now, or else at a later `flush`.

        Args:
            what: name of what is written, for messages; a later write of the same name replaces an earlier one.
            write: may be called more than once; raises ConfigError while the storage fails.
        """
        self._waiting[what] = write
        self._try(what)

    def flush(self) -> None:
        """Try all writes that have failed once more."""
        for what in list(self._waiting):
            self._try(what)

    def close(self) -> None:
        """Try a last time, and log what is lost."""
        self.flush()
        for what in self._waiting:
            log.warning("%s is lost: its storage has failed until the end", what)

    def _try(self, what: str) -> None:
        try:
            with without_waiting():
                self._waiting[what]()
        except ConfigError as error:
            if what not in self._failed:
                log.warning("%s waits to be written: %s", what, error)
            self._failed.add(what)
        else:
            del self._waiting[what]
            if what in self._failed:
                log.info("%s is written now", what)
                self._failed.remove(what)
