"""Callbacks that write files, on a disk that may be full."""

from collections.abc import Callable, Sequence
from pathlib import Path

from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.disk import Disk


class OnDisk(Callback):
    """Calls others that write into a run's folder, until the disk is full: then it is for `Disk` to say so.

    Args:
        writers: callbacks without a state, called in this order.
        logs: local folder that they write to.
        disk: remembers that it is full.
    """

    def __init__(self, writers: Sequence[Callback], logs: Path, disk: Disk) -> None:
        self.writers = writers
        self.logs = logs
        self.disk = disk

    def on_train_start(self, run: Run) -> None:
        """See `Callback.on_train_start`."""
        self._each(lambda writer: writer.on_train_start(run))

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        self._each(lambda writer: writer.on_step_end(run, step, out))

    def on_epoch_end(self, run: Run, step: Step) -> None:
        """See `Callback.on_epoch_end`."""
        self._each(lambda writer: writer.on_epoch_end(run, step))

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """See `Callback.on_log`."""
        self._each(lambda writer: writer.on_log(run, step, line))

    def on_train_end(self, run: Run) -> None:
        """See `Callback.on_train_end`."""
        self._each(lambda writer: writer.on_train_end(run))

    def _each(self, call: Callable[[Callback], None]) -> None:
        for writer in self.writers:
            if self.disk.failure is None:
                with self.disk.writing(self.logs):
                    call(writer)
