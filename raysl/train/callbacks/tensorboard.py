"""Event files of TensorBoard: the numbers of a run, and its settings for the HPARAMS tab."""

import json
import math
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from raysl import distributed as dist
from raysl.process.temporary import temporary_folder
from raysl.redact import bare_tree
from raysl.storage.folder import Folder, outlast
from raysl.train.callbacks.callback import Callback, Run, Step


class EventFile:
    """A file of TensorBoard events. Each file needs its own folder, which TensorBoard shows as a run.

    TensorBoard hides events that an earlier start wrote for steps after `first`. The calling thread writes: the writer
    thread of tensorboardX dies of a full disk, and its callers then hang.
    """

    def __init__(self, folder: Path, first: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        self.writer: Any = EventsWriter(str(folder / "events"))
        if first:
            start = SessionLog(status=SessionLog.START)
            self.writer.write_event(Event(step=first + 1, wall_time=time.time(), session_log=start))
        self.writer.flush()

    def add(self, step: int, *summaries: Any) -> None:
        """Write summaries of a step, made by `tensorboardX.summary`."""
        from tensorboardX.proto.event_pb2 import Event

        for summary in summaries:
            self.writer.write_event(Event(step=step, wall_time=time.time(), summary=summary))
        self.writer.flush()

    def close(self) -> None:
        """Close the file."""
        self.writer.close()


class EventCallback(Callback):
    """Base of callbacks that write events to a folder of their own, which TensorBoard shows as a run."""

    folder: str | Path
    """Name of the folder in that of the run, or a path."""
    file: EventFile | None = None

    @override
    def on_train_start(self, run: Run) -> None:
        if dist.is_main():
            with run.writing() as folder:
                self.file = EventFile(folder / self.folder, run.state.step)

    @override
    def on_train_end(self, run: Run) -> None:
        if self.file is not None:
            self.file.close()


class TensorBoard(EventCallback):
    """Writes logged numbers to event files in a local folder."""

    folder: Path

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @override
    def on_train_start(self, run: Run) -> None:
        if dist.is_main():
            self.file = EventFile(self.folder, run.state.step)

    @override
    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        if not dist.is_main():
            return
        from tensorboardX.summary import scalar

        file, self.file = self.file or EventFile(self.folder, step.index - 1), None
        file.add(step.index, *(scalar(f"train/{name}", value) for name, value in line.items()))
        self.file = file  # one that has failed is not gone on with


HPARAMS_FOLDER = "hparams"
HPARAMS_FILE = "events.out.tfevents.hparams"


def write_hparams(folder: Folder, settings: Mapping[str, Any], metrics: Mapping[str, float], step: int = 0) -> None:
    """Write the settings and final numbers of a run for the HPARAMS tab of TensorBoard, in place of former ones.

    They go into `hparams/` of the run's folder, apart from the numbers of training. Which settings the runs share is
    left to TensorBoard: a list written here would be taken from the first run, and some runs may have other settings.

    Args:
        settings: values by dotted key; booleans, numbers and text as they are, other values as JSON, without
            credentials.
        metrics: numbers by name; those that are not finite are left out.
    """
    from tensorboardX.summary import hparams, scalar

    values = {key: _plain(value) for key, value in bare_tree(dict(settings)).items()}
    _, start, end = hparams(values, {})
    numbers = [scalar(name, value) for name, value in metrics.items() if math.isfinite(value)]
    with temporary_folder("hparams") as draft:
        file = EventFile(Path(draft), 0)
        file.add(step, start, *numbers, end)
        file.close()
        (path,) = Path(draft).iterdir()
        content = path.read_bytes()
    target = folder.child(HPARAMS_FOLDER)
    outlast(target.make)
    outlast(partial(target.write, HPARAMS_FILE, content))


def _plain(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)
