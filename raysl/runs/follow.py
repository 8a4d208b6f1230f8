"""The driver's view of a run that trains in other processes: its logs, shown as they grow."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from raysl.errors import StorageError, log
from raysl.plan.plan import TrainPlan
from raysl.process.waiting import Waiting
from raysl.runs.folder import RunFolder
from raysl.storage.folder import Folder, Version
from raysl.train.callbacks.logs import parse_metrics
from raysl.train.file_names import EVENTS_FILE, METRICS_FILE, STARTUP_FILE, parse_events, parse_startup
from raysl.train.progress import ProgressView


@contextmanager
def showing_progress(folder: RunFolder, plan: TrainPlan, waits: Waiting, first: int = 0) -> Iterator[None]:
    """Follow the run's logs: show new events and the newest line of metrics.

    Args:
        waits: shows what the start waits for; its `show` decides whether anything is shown.
        first: steps done before this start.
    """
    if not waits.show:
        yield
        return
    follower, ended = _Follower(folder, plan, waits, first), threading.Event()

    def follow() -> None:
        while not ended.wait(folder.look_every_s):
            follower.poll()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        follower.poll()
        follower.close()


class _Follower:
    def __init__(self, folder: RunFolder, plan: TrainPlan, waits: Waiting, first: int) -> None:
        self.folder, self.plan, self.waits, self.first = folder, plan, waits, first
        self.num_events = len(read_events(folder))
        self.view: ProgressView | None = None
        self.shown = first
        self.is_storage_fine = True
        self.read: dict[str, Version] = {}  # what was read of each file

    def poll(self) -> None:
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
        versions = self.folder.versions()
        self._show_events(versions)
        if self.view is None and STARTUP_FILE in versions:
            self.waits.end()
            log.info(_startup_text(self.folder))
            self.view = ProgressView(self.plan.total_steps, self.first)
        if self.view is not None and self._has_changed(METRICS_FILE, versions):
            lines = parse_metrics(self.folder.last_lines(METRICS_FILE), self.folder.uri_of(METRICS_FILE))
            step = int(lines[-1]["step"]) if lines else self.shown
            if step > self.shown:
                self.view.show(step, lines[-1])
            # A start cuts off the lines after its checkpoint: the newest that is left is of an earlier start.
            self.shown = step
            self.read[METRICS_FILE] = versions[METRICS_FILE]

    def _show_events(self, versions: Mapping[str, Version]) -> None:
        if not self._has_changed(EVENTS_FILE, versions):
            return
        new = _notes(self.folder)[self.num_events :]
        if new and self.view is None:
            self.waits.enter("making the first batch")
        for note in new:
            if note.get("kind") != "failure":  # the driver has told it already
                log.info(note["event"])
            self.num_events += 1
        self.read[EVENTS_FILE] = versions[EVENTS_FILE]

    def _has_changed(self, name: str, versions: Mapping[str, Version]) -> bool:
        return name in versions and versions[name] != self.read.get(name)


def read_events(folder: RunFolder, with_saves: bool = True) -> list[str]:
    """Return the noted events of a run in order: starts, resumes, failures and, by default, saved checkpoints."""
    return [note["event"] for note in _notes(folder) if with_saves or note.get("kind") not in ("save", "finished")]


def read_nodes(folder: Folder) -> tuple[str, ...]:
    """Return the addresses of the nodes on which the workers of a run's newest start are; empty if not known."""
    noted = next((note["nodes"] for note in reversed(_notes(folder)) if "nodes" in note), ())
    return tuple(dict.fromkeys(noted))


def _notes(folder: Folder) -> list[dict[str, Any]]:
    return parse_events(folder.read_if_there(EVENTS_FILE))


def _startup_text(folder: RunFolder) -> str:
    seconds = parse_startup(folder.read(STARTUP_FILE))
    parts = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items() if name != "total")
    return f"first step after {seconds['total']:.1f} s: {parts}"
