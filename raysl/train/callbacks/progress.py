"""Progress on a terminal: a bar, or a plain line now and then where there is no terminal."""

import logging

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from raysl import dist
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run

log = logging.getLogger("raysl")


class ProgressView:
    """Shows logged lines of a run of `total` steps: loss, images a second, time left."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.last_tenth = -1
        self.bar = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            transient=False,
        )
        self.is_live = self.bar.console.is_terminal
        self.task = self.bar.add_task("training", total=total, numbers="")
        if self.is_live:
            self.bar.start()

    def show(self, step: int, line: dict[str, float]) -> None:
        """Show a logged line."""
        numbers = " ".join(text.format(line[name]) for name, text in _SHOWN.items() if name in line)
        if self.is_live:
            self.bar.update(self.task, completed=step, numbers=numbers)
        elif step * 10 // self.total != self.last_tenth:
            self.last_tenth = step * 10 // self.total
            left = (self.total - step) * line["step_s"] if "step_s" in line else None
            log.info("step %d/%d %s%s", step, self.total, numbers, "" if left is None else f" left {left:.0f} s")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.is_live:
            self.bar.stop()


class ProgressBar(Callback):
    """Shows progress from inside the process that trains."""

    def on_train_start(self, run: Run) -> None:
        """See `Callback.on_train_start`."""
        self.view = ProgressView(run.plan.total_steps) if dist.is_main() else None

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """See `Callback.on_log`."""
        if self.view is not None:
            self.view.show(step.index, line)

    def on_train_end(self, run: Run) -> None:
        """See `Callback.on_train_end`."""
        if self.view is not None:
            self.view.close()


_SHOWN = {
    "epoch": "epoch {:.1f}",
    "loss": "loss {:.4f}",
    "knn_top1": "kNN {:.1f} %",
    "images_per_s": "{:,.0f} images/s",
    "data_wait": "data wait {:.0%}",
}
