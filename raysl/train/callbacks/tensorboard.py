"""TensorBoard events."""

import time
from pathlib import Path
from typing import Any

from raysl import dist
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run


class TensorBoard(Callback):
    """Writes logged numbers to event files in a local folder; a resume hides what lies behind the restored step.

    They are written by the thread that logs: tensorboardX's own thread dies of a full disk, and what feeds it hangs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer: Any = None

    def on_train_start(self, run: Run) -> None:
        """See `Callback.on_train_start`."""
        if dist.is_main():
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event, SessionLog

            self.folder.mkdir(parents=True, exist_ok=True)
            self.writer = EventsWriter(str(self.folder / "events"))
            if run.state.step:
                start = SessionLog(status=SessionLog.START)
                self.writer.write_event(Event(step=run.state.step + 1, wall_time=time.time(), session_log=start))
            self.writer.flush()

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """See `Callback.on_log`."""
        if self.writer is not None:
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.summary import scalar

            for name, value in line.items():
                summary = scalar(f"train/{name}", value)
                self.writer.write_event(Event(step=step.index, wall_time=time.time(), summary=summary))
            self.writer.flush()

    def on_train_end(self, run: Run) -> None:
        """See `Callback.on_train_end`."""
        if self.writer is not None:
            self.writer.close()
