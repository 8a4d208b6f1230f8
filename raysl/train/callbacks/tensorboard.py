"""TensorBoard events."""

from pathlib import Path

from raysl import distributed as dist
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.callbacks.event_file import EventFile


class TensorBoard(Callback):
    """Writes logged numbers to event files in a local folder; a resume hides what lies behind the restored step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file: EventFile | None = None

    def on_train_start(self, run: Run) -> None:
        """See `Callback.on_train_start`."""
        if dist.is_main():
            self.file = EventFile(self.folder, run.state.step)

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """See `Callback.on_log`."""
        if self.file is not None:
            from tensorboardX.summary import scalar

            self.file.add(step.index, *(scalar(f"train/{name}", value) for name, value in line.items()))

    def on_train_end(self, run: Run) -> None:
        """See `Callback.on_train_end`."""
        if self.file is not None:
            self.file.close()
