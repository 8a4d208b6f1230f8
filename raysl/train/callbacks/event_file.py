"""A file of TensorBoard events."""

import time
from pathlib import Path
from typing import Any


class EventFile:
    """Takes summaries of steps. Several writers need folders of their own, which TensorBoard shows as runs; it hides
    those that an earlier start wrote behind the step of this one.

    Each is written by the thread that calls: tensorboardX's own thread dies of a full disk, and what feeds it hangs.

    Args:
        folder: local one, made where it is missing.
        first: updates done before this start.
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
        """Write tensorboardX's summaries of a step."""
        from tensorboardX.proto.event_pb2 import Event

        for summary in summaries:
            self.writer.write_event(Event(step=step, wall_time=time.time(), summary=summary))
        self.writer.flush()

    def close(self) -> None:
        """Close the file."""
        self.writer.close()
