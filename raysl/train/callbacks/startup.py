"""How long the start took."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from raysl import distributed as dist
from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.files import STARTUP_FILE


class Startup(Callback):
    """Writes `startup.json` after the first step: seconds from the command to that step, and where they went.

    Args:
        folder: local folder to write into.
        marks: moments passed so far, seconds since the epoch by name; "command" is the first.
        put_logs: called when it is written, to have the driver see it soon.
    """

    def __init__(self, folder: Path, marks: dict[str, float], put_logs: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self.marks = marks
        self.put_logs = put_logs
        self.is_written = False

    def on_train_start(self, run: Run) -> None:
        """See `Callback.on_train_start`."""
        self.marks = self.marks | {"method": time.time()}

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        if self.is_written or not dist.is_main():
            return
        self.is_written = True
        moments = {**self.marks, "first step": time.time()}
        names, times = list(moments), list(moments.values())
        parts = {
            name: round(after - before, 2) for name, before, after in zip(names[1:], times, times[1:], strict=False)
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"{STARTUP_FILE}.part"
        draft.write_text(json.dumps({"total": round(times[-1] - times[0], 2), **parts}))
        draft.rename(self.folder / STARTUP_FILE)
        self.put_logs()
