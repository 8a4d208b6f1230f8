"""Progress of a run: a bar on a terminal; elsewhere a line each tenth of the run and each minute."""

import logging
import time
from collections import deque

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from raysl.process.screen import console, duration

log = logging.getLogger("raysl")

RECENT = 20  # logged lines whose step times are averaged


class ProgressView:
    """Shows logged lines of a run of `total` steps: loss, images a second, time left.

    Args:
        total: steps of the run.
        first: steps done before this start.
        every_s: seconds between plain lines.
    """

    def __init__(self, total: int, first: int = 0, every_s: float = 60.0) -> None:
        self.total = total
        self.every_s = every_s
        self.last_shown = time.monotonic()
        self.last_tenth = -1
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
        numbers = " ".join(text.format(line[name]) for name, text in _SHOWN.items() if name in line)
        left = self._left(step, line)
        if self.is_live:
            self.bar.update(self.task, completed=step, numbers=numbers, left=left)
        elif step * 10 // self.total != self.last_tenth or time.monotonic() - self.last_shown >= self.every_s:
            self.last_tenth, self.last_shown = step * 10 // self.total, time.monotonic()
            log.info("step %d/%d %s", step, self.total, f"{numbers} {left}".rstrip())

    def close(self) -> None:
        """Restore the terminal."""
        if self.is_live:
            self.bar.stop()

    def _left(self, step: int, line: dict[str, float]) -> str:
        """Return the time left in words; empty until a step after the warm-up has been timed."""
        if "step_s" in line:
            self.step_s.append(line["step_s"])
        if not self.step_s or step == self.total:
            return ""
        return f"left {duration((self.total - step) * sum(self.step_s) / len(self.step_s))}"


_SHOWN = {
    "epoch": "epoch {:.1f}",
    "loss": "loss {:.4f}",
    "knn_top1": "kNN {:.1f} %",
    "images_per_s": "{:,.0f} images/s",
    "data_wait": "data wait {:.0%}",
}
