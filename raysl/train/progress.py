"""The progress of a run on the screen: a bar on a terminal; else a line each minute, the first and the last one."""

import math
import sys
import time
from collections import deque

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from raysl.errors import log
from raysl.process.screen import console, duration
from raysl.report.contents import describe_online

RECENT = 20  # logged lines whose step times are averaged


class ProgressView:
    """Shows logged lines of a run of `total` steps: loss, images a second, time left.

    Args:
        every_s: seconds between plain lines; the last step, and in a notebook each epoch, has one at once.
    """

    def __init__(self, total: int, first: int = 0, every_s: float = 60.0) -> None:
        self.total = total
        self.every_s = every_s
        self.last_shown, self.epoch = -math.inf, 0
        self.by_epoch = "ipykernel" in sys.modules  # a notebook, whose reader looks on
        self.step_s: deque[float] = deque(maxlen=RECENT)
        screen = console()
        self.is_live = screen.is_terminal
        self.bar = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=screen,
            transient=False,
            redirect_stdout=False,
        )
        self.task = self.bar.add_task("training", total=total, completed=first, numbers="", left="")
        if self.is_live:
            self.bar.start()

    def show(self, step: int, line: dict[str, float]) -> None:
        """Show a logged line."""
        first, rest = ([text.format(line[name]) for name, text in shown.items() if name in line] for shown in _SHOWN)
        numbers = " ".join([*first, *describe_online(line), *rest])
        time_left = self._time_left(step, line)
        if self.is_live:
            self.bar.update(self.task, completed=step, numbers=numbers, left=time_left)
        elif step == self.total or self._is_due(line):
            self.last_shown, self.epoch = time.monotonic(), int(line.get("epoch", 0))
            log.info("step %d/%d %s", step, self.total, f"{numbers} {time_left}".rstrip())

    def _is_due(self, line: dict[str, float]) -> bool:
        """Whether a minute is over, or in a notebook an epoch."""
        is_new_epoch = self.by_epoch and int(line.get("epoch", 0)) > self.epoch
        return is_new_epoch or time.monotonic() - self.last_shown >= self.every_s

    def close(self) -> None:
        """Restore the terminal."""
        if self.is_live:
            self.bar.stop()

    def _time_left(self, step: int, line: dict[str, float]) -> str:
        """Return the time left in words; empty until a step after the warm-up has been timed."""
        if "step_s" in line:
            self.step_s.append(line["step_s"])
        if not self.step_s or step == self.total:
            return ""
        return f"left {duration((self.total - step) * sum(self.step_s) / len(self.step_s))}"


_SHOWN = (
    {"epoch": "epoch {:.1f}", "loss": "loss {:.4f}"},
    {"images_per_s": "{:,.0f} images/s", "data_wait": "data wait {:.0%}"},
)
"""Numbers of a line before and behind the online kNN."""
