"""The status of a sweep, for any process: its leaderboard as last written."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from raysl.config.places import SWEEP_FILE
from raysl.errors import ConfigError
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.process.screen import duration
from raysl.storage.folder import Folder
from raysl.storage.owner import is_at_work

POLL_S = 5.0
MOST_NAMED = 8
"""Running trials that the line names."""


@dataclass(frozen=True)
class Status:
    """The status of a sweep.

    Args:
        board: leaderboard; None where none was written yet.
        is_running: whether a process has it in hand.
    """

    board: Leaderboard | None
    is_running: bool

    def line(self) -> str:
        """Return the status in one line."""
        if self.board is None:
            return "no trial has been looked at yet" + ("" if self.is_running else "; no process runs it")
        facts, entries = self.board.facts, self.board.entries
        num = {name: sum(entry.status == name for entry in entries) for name in _NAMES}
        counts = ", ".join(f"{count} {name}" for name, count in num.items() if count) or "no trials"
        total = f" of {facts.trials}" if facts.trials is not None else ""
        running = [entry for entry in entries if entry.status == "running" and self.is_running]
        where = ", ".join(f"{run.trial} at epoch {run.epoch or 0:.3g} of {run.epochs}" for run in running[:MOST_NAMED])
        more = f" and {len(running) - MOST_NAMED} more" if len(running) > MOST_NAMED else ""
        age = duration(max(0.0, time.time() - facts.written))
        if facts.state == "done":
            end = "it is done"
        elif self.is_running:
            end = f"{where}{more}; it is running" if running else "it is running"
        else:
            end = "no process runs it; the command that started it runs the trials that are left"
        return f"{facts.name}: {counts}{total}, as of {age} ago; {end}"


_NAMES = ("finished", "stopped", "failed", "running", "waiting")


def status_of(uri: str) -> Status:
    """Read the status of the sweep in a folder."""
    folder = Folder(uri)
    if not folder.exists(SWEEP_FILE):
        raise ConfigError(f"no sweep in {folder.uri}; give its name and the storage= that it was started with")
    try:
        board = Leaderboard.load(folder.uri) if folder.exists("leaderboard.json") else None
    except ConfigError as error:
        raise ConfigError(f"{error}; the next start of the sweep writes it again") from error
    return Status(board, is_at_work(folder, folder.versions()))


def watch(uri: str, tell: Callable[[Status], None], sleep: Callable[[float], object] = time.sleep) -> Status:
    """Print the status whenever it changes, until the sweep is done or no process runs it."""
    seen = None
    while True:
        status = status_of(uri)
        now = status.board and [(entry.trial, entry.status, entry.epoch) for entry in status.board.entries]
        if now != seen:
            tell(status)
            seen = now
        if not status.is_running:
            return status
        sleep(POLL_S)
