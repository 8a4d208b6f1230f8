"""The driver's side of a run that trains elsewhere: show what its logs say, and pass on a wish to stop."""

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

from raysl.errors import StorageError
from raysl.storage import outlast
from raysl.train.callbacks.metrics_log import parse_metrics
from raysl.train.callbacks.progress import ProgressView
from raysl.train.folder.run_folder import EVENTS_FILE, METRICS_FILE, STARTUP_FILE, STOP_FILE, RunFolder
from raysl.train.plan import TrainPlan

log = logging.getLogger("raysl")


@contextmanager
def progress_of(folder: RunFolder, plan: TrainPlan, show: bool) -> Iterator[None]:
    """Follow the run's logs: show new events and the newest line of metrics."""
    if not show:
        yield
        return
    view, ended = ProgressView(plan.total_steps), threading.Event()
    num_events = len(events_of(folder))
    is_started, is_telling = False, True

    def look() -> None:
        nonlocal is_telling
        try:
            show_new()
            is_telling = True
        except StorageError as error:
            if is_telling:
                log.warning("cannot follow the run: %s; training goes on", error)
            is_telling = False

    def show_new() -> None:
        nonlocal num_events, is_started
        for event in events_of(folder)[num_events:]:
            log.info(event)
            num_events += 1
        if not is_started and folder.exists(STARTUP_FILE):
            is_started = True
            log.info(_startup_text(folder))
        lines = parse_metrics(folder.last_lines(METRICS_FILE))
        if lines and is_started:
            view.show(int(lines[-1]["step"]), lines[-1])

    def follow() -> None:
        while not ended.wait(0.5 if folder.is_local else 5.0):
            look()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        look()
        view.close()


def events_of(folder: RunFolder) -> list[str]:
    """What has been noted of the run's starts and resumes, in order."""
    content = folder.read_if_there(EVENTS_FILE).decode()
    return [json.loads(line)["event"] for line in content.splitlines(keepends=True) if line.endswith("\n")]


def _startup_text(folder: RunFolder) -> str:
    seconds: dict[str, float] = json.loads(folder.read(STARTUP_FILE))
    parts = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items() if name != "total")
    return f"first step after {seconds['total']:.1f} s: {parts}"


@contextmanager
def stop_on_signal(folder: RunFolder) -> Iterator[Callable[[], bool]]:
    """While inside, SIGTERM (a stopped job) asks the workers to save and stop; a second one ends this process."""
    asked = threading.Event()

    def ask(signum: int, frame: FrameType | None) -> None:
        if asked.is_set():
            os._exit(128 + signum)
        asked.set()
        print("raysl: saving a checkpoint and stopping; once more to end at once", file=sys.stderr, flush=True)
        threading.Thread(target=outlast, args=(partial(folder.write, STOP_FILE, b""),), daemon=True).start()

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGTERM, before)
