"""TensorBoard events."""

from pathlib import Path

from raysl import dist
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run


class TensorBoard(Callback):
    """Writes logged numbers to event files in a local folder; a resume hides what lies behind the restored step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_start(self, run: Run) -> None:
        """See `Callback.on_train_start`."""
        if dist.is_main():
            from tensorboardX import SummaryWriter

            purge = run.state.step + 1 if run.state.step else None
            self.writer = SummaryWriter(str(self.folder), purge_step=purge, write_to_disk=True)

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """See `Callback.on_log`."""
        if dist.is_main():
            for name, value in line.items():
                self.writer.add_scalar(f"train/{name}", value, step.index)

    def on_checkpoint(self, run: Run, folder: Path) -> None:
        """See `Callback.on_checkpoint`."""
        self.writer.flush()

    def on_train_end(self, run: Run) -> None:
        """See `Callback.on_train_end`."""
        if dist.is_main():
            self.writer.close()
