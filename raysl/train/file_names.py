"""Names of the files that training writes into a run's folder, and notes of its events there."""

import json
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from raysl.errors import log
from raysl.redact import redact
from raysl.storage.records import Damaged, check_types, read_record

METRICS_FILE = "metrics.jsonl"
EVENTS_FILE = "events.jsonl"  # starts and resumes
PROJECTOR_FILE = "projector_config.pbtxt"  # where TensorBoard's projector finds features
CORRUPT_FILE = "corrupt.jsonl"  # broken images
TRACKERS_FILE = "trackers.json"  # ids under which trackers of experiments know the run
TRACKING_DATABASE = "mlflow.db"
DATA_STATS_FILE = "data_stats.txt"  # Ray Data's statistics of the images of worker 0
RECONSTRUCTIONS_FOLDER = "reconstructions"  # pictures of what a method predicts
STARTUP_FILE = "startup.json"  # seconds from the command to the first step, by part


def note_event(logs: Path, event: str, kind: str | None = None, nodes: Sequence[str] = ()) -> None:
    """Add a line to the events of a run, which the driver shows.

    Args:
        event: a sentence without a full stop.
        kind: `save` for events that reports leave out, `failure` for what was lost, and `finished`, `stopped` or
            `failed` for the end of a start.
        nodes: addresses of the nodes of the workers that start, in the order of their ranks.
    """
    append(logs / EVENTS_FILE, event_line(event, kind, nodes))


def append(path: Path, content: bytes) -> None:
    """Add lines to a file, all or none of them; its folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size = None
    try:
        with path.open("ab") as file:
            size = file.tell()
            file.write(content)
    except OSError:
        # a part of the lines may be written already, so the file is cut to its former length
        if size is not None:
            with suppress(OSError):  # the first error is the one to raise
                os.truncate(path, size)
        raise


def replace_text(path: Path, content: str) -> None:
    """Write a file in place of another one, which a full disk or a kill leaves as it is."""
    replace_bytes(path, content.encode())


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a file in place of another one, which a full disk or a kill leaves as it is."""
    draft = path.with_name(f"{path.name}.part")
    draft.write_bytes(content)
    draft.rename(path)


def reconstructed_name(step: int) -> str:
    """Return the name of the picture of a step in the folder of reconstructions.

    >>> reconstructed_name(1200)
    '000001200.png'
    """
    return f"{step:09d}.png"


def shown_name(is_held_out: bool) -> str:
    """Return the name of the picture of the images themselves in the folder of reconstructions."""
    return "held_out.png" if is_held_out else "training.png"


def event_line(event: str, kind: str | None = None, nodes: Sequence[str] = (), at: float | None = None) -> bytes:
    """Return a line of the events file, without credentials; arguments as of `note_event`.

    Args:
        event, kind, nodes: arguments of `note_event`.
        at: time of the event, in seconds since 1970; default: now.
    """
    when = time.time() if at is None else at
    line: dict[str, Any] = {"time": when, "event": redact(event)} | ({} if kind is None else {"kind": kind})
    if nodes:
        line["nodes"] = list(nodes)
    return (json.dumps(line) + "\n").encode()


def parse_events(content: bytes, is_strict: bool = False) -> list[dict[str, Any]]:
    """Return the lines of an events file, without a last one that is not whole yet and without damaged ones.

    Raises:
        Damaged: of the first damaged line, if `is_strict`.
    """
    events = []
    for line in content.splitlines(keepends=True):
        if line.endswith(b"\n"):
            with nullcontext() if is_strict else suppress(Damaged):
                events.append(read_record(line, EVENTS_FILE, {"event": str}, _EVENT_KINDS))
    return events


_EVENT_KINDS = {"time": float, "kind": str, "nodes": list[str]}


def parse_startup(content: bytes) -> dict[str, float]:
    """Return the seconds of a startup file by part and as `total`; without parts if it is empty or damaged."""
    try:
        seconds = read_record(content, STARTUP_FILE, {"total": float})
        return check_types(seconds, STARTUP_FILE, dict.fromkeys(seconds, float))
    except Damaged as error:
        if content:
            log.warning("%s", error)
        return {"total": 0.0}


def count_broken(number: int, noun: str = "image") -> str:
    """Say how many images are broken.

    >>> count_broken(1), count_broken(2000, "test image")
    ('1 image is broken', '2,000 test images are broken')
    """
    return f"1 {noun} is broken" if number == 1 else f"{number:,} {noun}s are broken"


def parse_corrupt(content: bytes) -> list[str]:
    """Return the images that a file of broken images lists, without damaged lines."""
    images = []
    for line in content.splitlines():
        with suppress(Damaged):
            images.append(read_record(line, CORRUPT_FILE, {"image": str})["image"])
    return images
