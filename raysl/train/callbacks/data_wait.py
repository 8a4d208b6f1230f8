"""A word when training waits for its data."""

from pathlib import Path

from raysl import distributed as dist
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.files import note_event

MUCH = 0.2  # share of the time
LINES = 5  # logged lines in a row, so that a slow start is not taken for starvation


class DataWait(Callback):
    """Says so once when the share of time that training waits for data stays high, with what may help.

    Args:
        logs: local folder of the run's logs.
        augment_in_task: whether the data tasks also augment.
    """

    def __init__(self, logs: Path, augment_in_task: bool) -> None:
        self.logs = logs
        self.augment_in_task = augment_in_task
        self.shares: list[float] = []
        self.is_told = False

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """See `Callback.on_log`."""
        if self.is_told or "data_wait" not in line or not dist.is_main():
            return
        self.shares = [*self.shares, line["data_wait"]][-LINES:]
        if len(self.shares) == LINES and min(self.shares) > MUCH:
            self.is_told = True
            share = sum(self.shares) / LINES
            other = "device" if self.augment_in_task else "task"
            note_event(
                self.logs,
                f"data wait {share:.0%}: training waits for images; add CPU nodes, or set data.augment_on={other}, "
                "or a smaller method.views.size",
            )
