"""The driver's view of a run that trains in other processes: its logs, shown as they grow."""

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from raysl.errors import StorageError
from raysl.plan.plan import TrainPlan
from raysl.process.waiting import Waiting
from raysl.runs.folder import RunFolder
from raysl.train.callbacks.logs import parse_metrics
from raysl.train.callbacks.progress import ProgressView
from raysl.train.files import EVENTS_FILE, METRICS_FILE, STARTUP_FILE

log = logging.getLogger("raysl")


@contextmanager
def showing_progress(folder: RunFolder, plan: TrainPlan, waits: Waiting, first: int = 0) -> Iterator[None]:
    """Follow the run's logs: show new events and the newest line of metrics.

    Args:
        folder: of the run.
        plan: of the run.
        waits: shows what the start waits for; its `show` decides whether anything is shown.
        first: steps done before this start.
    """
    if not waits.show:
        yield
        return
    follower, ended = _Follower(folder, plan, waits, first), threading.Event()

    def follow() -> None:
        while not ended.wait(folder.look_every_s):
            follower.look()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        follower.look()
        follower.close()


class _Follower:
    def __init__(self, folder: RunFolder, plan: TrainPlan, waits: Waiting, first: int) -> None:
        self.folder, self.plan, self.waits, self.first = folder, plan, waits, first
        self.num_events = len(read_events(folder))
        self.view: ProgressView | None = None
        self.shown = first
        self.is_storage_fine = True

    def look(self) -> None:
        """Show new lines; warn once while the storage fails."""
        try:
            self._show_new()
            self.is_storage_fine = True
        except StorageError as error:
            if self.is_storage_fine:
                log.warning("cannot follow the run: %s; training goes on", error)
            self.is_storage_fine = False

    def close(self) -> None:
        self.waits.end()
        if self.view is not None:
            self.view.close()

    def _show_new(self) -> None:
        new = read_events(self.folder)[self.num_events :]
        if new and self.view is None:
            self.waits.enter("making the first batch")
        for event in new:
            log.info(event)
            self.num_events += 1
        if self.view is None and self.folder.exists(STARTUP_FILE):
            self.waits.end()
            log.info(_startup_text(self.folder))
            self.view = ProgressView(self.plan.total_steps, self.first)
        lines = parse_metrics(self.folder.last_lines(METRICS_FILE))
        if lines and self.view is not None and lines[-1]["step"] != self.shown:
            self.shown = int(lines[-1]["step"])
            self.view.show(self.shown, lines[-1])


def read_events(folder: RunFolder, with_saves: bool = True) -> list[str]:
    """Return the noted events of a run in order: starts, resumes and, by default, saved checkpoints."""
    content = folder.read_if_there(EVENTS_FILE).decode()
    notes = [json.loads(line) for line in content.splitlines(keepends=True) if line.endswith("\n")]
    return [note["event"] for note in notes if with_saves or note.get("kind") != "save"]


def _startup_text(folder: RunFolder) -> str:
    seconds: dict[str, float] = json.loads(folder.read(STARTUP_FILE))
    parts = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items() if name != "total")
    return f"first step after {seconds['total']:.1f} s: {parts}"
