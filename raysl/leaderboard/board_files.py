"""The files of a sweep's leaderboard, written while it runs."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from raysl.errors import ConfigError, log
from raysl.leaderboard.best import RUN_FILE, best_runs, folder_of, runnable
from raysl.leaderboard.entry import Entry, State
from raysl.leaderboard.leaderboard import CSV, JSON, PAGE, TEX, Leaderboard
from raysl.leaderboard.page.leaderboard_page import neighbours_of, page
from raysl.storage.folder import Folder, outlast, without_waiting

WRITE_EVERY_S = 5.0
"""Seconds between two writings at least; of a remote folder, two of its looks."""
MOST_OF_THE_TIME = 0.05
"""Share of the driver's time that writing the leaderboard may take."""


@dataclass
class Kept:
    """Texts and hashes that one writing of a leaderboard keeps for the next.

    Args:
        texts: contents of runs' files, by run, file and status.
        written: hashes of the leaderboard's own files, by name.
    """

    texts: dict[tuple[str, str, str], str] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)


class Board:
    """Writes a leaderboard regularly, and at the end."""

    def __init__(self, folder: Folder, make: Callable[[State], Leaderboard]) -> None:
        self.folder, self.make = folder, make
        self.every_s = max(WRITE_EVERY_S, 2 * folder.look_every_s)
        self.written = 0.0
        self.took = 0.0
        self.is_failing = False
        self._kept = Kept()

    def write_now_and_then(self, force: bool = False) -> None:
        """Write if enough time has passed, more if writing is slow; log once that a storage fails, and go on."""
        since = time.monotonic() - self.written
        # even a forced writing waits where the last one was slow, so that it does not hold up the trials
        if since < self.took / MOST_OF_THE_TIME or (since < self.every_s and not force):
            return
        try:
            with without_waiting():
                self.write()
        except ConfigError as error:
            # counts as written, so that a failing storage is tried again after a pause, not at every call
            self.written = time.monotonic()
            if not self.is_failing:
                log.warning("the leaderboard is not written, and the trials go on: %s", error)
            self.is_failing = True
            return
        if self.is_failing:
            log.info("the leaderboard is written again")
        self.is_failing = False

    def write(self, state: State = "running") -> Leaderboard:
        """Write all files, and return what was written."""
        begun = time.monotonic()
        board = self.make(state)
        outlast(partial(write, board, self.folder, self._kept))
        self.written = time.monotonic()
        self.took = self.written - begun
        return board


def write(board: Leaderboard, folder: Folder, kept: Kept | None = None) -> None:
    """Write `leaderboard.csv`, `.json`, `.tex` and `.html`, and `best_1.yaml` to `best_3.yaml` into a sweep's folder,
    each only where it has changed.

    It takes a tenth of a second of a small sweep and some seconds of one of a thousand trials: the caller leaves
    pauses that fit.

    Args:
        kept: texts and hashes of earlier calls, to which more are added.
    """
    kept = kept or Kept()
    configs, neighbours = {}, {}
    for best in best_runs(board):
        if text := _of_run(best.run, RUN_FILE, folder, kept.texts):
            configs[best.file] = runnable(best, text, board)
        if picture := _of_run(best.run, "report.html", folder, kept.texts):
            neighbours[best.run.trial] = picture
    texts = {CSV: board.csv(), JSON: board.json(), TEX: board.latex(), **configs}
    for name, text in {**texts, PAGE: page(board, configs, neighbours)}.items():
        content = text.encode(errors="replace")
        if kept.written.get(name) != hash(content):
            folder.write(name, content)
            kept.written[name] = hash(content)


def _of_run(run: Entry, name: str, sweep: Folder, texts: dict[tuple[str, str, str], str]) -> str:
    """Return the text of a run's file, or the neighbours' picture of its page; empty while the file is missing."""
    # a file is read again once the run's status has changed, since it may have been written anew
    key = (run.trial, name, run.status)
    if key not in texts and run.path:
        try:
            content = folder_of(run, sweep).read_if_there(name).decode(errors="replace")
        except ConfigError as error:
            log.warning("%s of %s is left out of the leaderboard: %s", name, run.trial, error)
            return ""
        if text := neighbours_of(content) if name == "report.html" else content:
            texts[key] = text
    return texts.get(key, "")
