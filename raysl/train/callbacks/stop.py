"""A way to ask a run from outside to save and stop."""

import time
from collections.abc import Callable

import torch

from raysl import dist
from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.late import Late, is_late

LOOK_EVERY_S = 1.0


class StopRequest(Callback):
    """Stops the run with a checkpoint when it is asked to; on a GPU one step after the ranks have agreed on it.

    Args:
        is_asked: whether someone wants the run to stop; called on the main rank, at most once a second.
        every: steps between two times at which the ranks agree on it.
    """

    def __init__(self, is_asked: Callable[[], bool], every: int) -> None:
        self.is_asked = is_asked
        self.every = max(1, every)
        self.last_look = 0.0
        self.unread: Late | None = None

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        if self.unread is not None:
            self._heed(run)
        if step.index % self.every == 0:
            goes_on = torch.full((1,), float(not self._look()), device=run.state.device)
            self.unread = Late(dist.all_least(goes_on))
            if not is_late(run.state.device):
                self._heed(run)

    def _heed(self, run: Run) -> None:
        assert self.unread is not None
        (goes_on,) = self.unread.read()
        self.unread = None
        if not goes_on:
            run.stop("asked to")

    def _look(self) -> bool:
        if not dist.is_main() or time.monotonic() - self.last_look < LOOK_EVERY_S:
            return False
        self.last_look = time.monotonic()
        return self.is_asked()
