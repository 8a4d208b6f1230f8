"""A way to ask a run from outside to save and stop."""

import logging
import threading
from collections.abc import Callable

import torch

from raysl import distributed as dist
from raysl.errors import StorageError
from raysl.methods.method import StepOutput
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.late import Late, is_late

log = logging.getLogger("raysl")

LOOK_EVERY_S = 1.0


class StopRequest(Callback):
    """Stops the run with a checkpoint when it is asked to; on a GPU one step after the ranks have agreed on it.

    Args:
        is_asked: whether someone wants the run to stop; called about once a second by a thread of the main rank, so
            that training never waits for a storage that is slow or does not answer.
        every: steps between two times at which the ranks agree on it.
    """

    def __init__(self, is_asked: Callable[[], bool], every: int) -> None:
        self.is_asked = is_asked
        self.every = max(1, every)
        self.was_asked = threading.Event()
        self.has_ended = threading.Event()
        self.unread: Late | None = None

    def on_train_start(self, run: Run) -> None:
        """See `Callback.on_train_start`."""
        if dist.is_main():
            threading.Thread(target=self._look, name="raysl-stop", daemon=True).start()

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        if self.unread is not None:
            self._heed(run)
        if step.index % self.every == 0:
            goes_on = torch.full((1,), float(not self.was_asked.is_set()), device=run.state.device)
            self.unread = Late(dist.all_least(goes_on))
            if not is_late(run.state.device):
                self._heed(run)

    def _heed(self, run: Run) -> None:
        assert self.unread is not None
        (goes_on,) = self.unread.read()
        self.unread = None
        if not goes_on:
            run.stop("asked to")

    def on_train_end(self, run: Run) -> None:
        """See `Callback.on_train_end`."""
        self.has_ended.set()

    def _look(self) -> None:
        is_told = False
        while not self.has_ended.wait(LOOK_EVERY_S):
            try:
                if self.is_asked():
                    self.was_asked.set()
                    return
                is_told = False
            except StorageError as error:
                if not is_told:
                    log.warning("cannot see whether the run is asked to stop: %s", error)
                is_told = True
