"""A way to ask a run from outside to save and stop."""

import time
from collections.abc import Callable

from raysl import dist
from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run

LOOK_EVERY_S = 1.0


class StopRequest(Callback):
    """Stops the run with a checkpoint when it is asked to.

    Args:
        is_asked: whether someone wants the run to stop; called on the main rank, at most once a second.
        every: steps between two times at which the ranks agree on it.
    """

    def __init__(self, is_asked: Callable[[], bool], every: int) -> None:
        self.is_asked = is_asked
        self.every = max(1, every)
        self.last_look = 0.0

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        if step.index % self.every == 0 and not dist.all_true(not self._look(), run.state.device):
            run.stop("asked to")

    def _look(self) -> bool:
        if not dist.is_main() or time.monotonic() - self.last_look < LOOK_EVERY_S:
            return False
        self.last_look = time.monotonic()
        return self.is_asked()
