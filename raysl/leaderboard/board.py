"""The files of a sweep's leaderboard, written while it runs."""

import time
from collections.abc import Callable
from functools import partial

from raysl.errors import ConfigError, log
from raysl.leaderboard.board_files import LeaderboardFiles
from raysl.leaderboard.entry import State
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.storage.folder import Folder, outlast, without_waiting

WRITE_EVERY_S = 5.0
"""Seconds between two writings at least; of a remote folder, two of its looks."""
MOST_OF_THE_TIME = 0.05
"""Share of the driver's time that writing the leaderboard may take."""


class Board:
    """Writes a leaderboard regularly, and at the end."""

    def __init__(self, folder: Folder, make: Callable[[State], Leaderboard]) -> None:
        self.make = make
        self.files = LeaderboardFiles(folder)
        self.every_s = max(WRITE_EVERY_S, 2 * folder.look_every_s)
        self.written = 0.0
        self.took = 0.0
        self.is_failing = False

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
        outlast(partial(self.files.write, board))
        self.written = time.monotonic()
        self.took = self.written - begun
        return board
