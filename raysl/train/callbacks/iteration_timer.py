"""How long steps take on average, what callbacks cost of it, and when the run will be over."""

import logging
import statistics
import time
from collections import deque
from dataclasses import dataclass

from raysl import distributed as dist
from raysl.config.ranges import Count, Place
from raysl.config.schema import CallbackConfig
from raysl.methods.method import StepOutput
from raysl.process.screen import duration
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run

log = logging.getLogger("raysl")


class IterationTimer(Callback):
    """Logs the average and the median time of a step, the share that callbacks take of it, and the time left.

    Adds to each logged line, for this start and its main rank: `timer/mean_s`, over all steps behind the warm-up;
    `timer/median_s`, over the newest `window` steps; `timer/callbacks`, in [0, 1]; `timer/left_s`. A step is the time
    from the end of the one before to its own: it waits for data, and for a GPU only where something reads from it,
    so single steps on a GPU are no measurement and their mean is one. Says at the end what the run came to.

    Source: IterationTimer of Detectron2.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """Settings of the timer."""

        warm_up: Place = 3
        """First steps of a start that are left out."""
        window: Count = 20
        """Newest steps that the median is of."""

    def on_train_start(self, run: Run) -> None:
        """See `Callback.on_train_start`."""
        self.num_seen = 0
        self.steps: deque[float] = deque(maxlen=self.config.window)
        self.num_steps = 0
        self.last = time.perf_counter()
        self._begin(run)

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        now, self.num_seen = time.perf_counter(), self.num_seen + 1
        if self.num_seen <= self.config.warm_up:
            self._begin(run)
            return
        self.num_steps += 1
        self.steps.append(now - self.last)
        self.last = now
        if run.is_log_due(step):
            mean = self._mean()
            run.log(
                {
                    "timer/mean_s": mean,
                    "timer/median_s": statistics.median(self.steps),
                    "timer/callbacks": self._share(run),
                    "timer/left_s": mean * (step.total - step.index),
                }
            )

    def on_train_end(self, run: Run) -> None:
        """See `Callback.on_train_end`."""
        if self.num_steps and dist.is_main():
            log.info(
                "%d steps in %s, %.4g s each, of which callbacks took %.1f %%",
                self.num_steps,
                duration(self.last - self.start),
                self._mean(),
                100 * self._share(run),
            )

    def _begin(self, run: Run) -> None:
        self.start = self.last = time.perf_counter()
        self.callbacks_before = run.callback_s
        self.num_steps = 0

    def _mean(self) -> float:
        return (self.last - self.start) / self.num_steps

    def _share(self, run: Run) -> float:
        return (run.callback_s - self.callbacks_before) / max(self.last - self.start, 1e-9)
