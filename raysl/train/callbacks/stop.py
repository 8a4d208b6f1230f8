"""Checkpoints on request from outside, and ends of a start that leave one: on request, and at a step known before."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from typing_extensions import override

from raysl import distributed as dist
from raysl.errors import StorageError, log
from raysl.train.callbacks.callback import Callback, Run, Step, StepOutput
from raysl.train.late import Answer, is_late

NOTICE_EVERY_S = 5.0

_is_save_asked = threading.Event()


def ask_to_save() -> None:
    """Ask the run that trains in this process, in another thread, to save a checkpoint soon; for the main rank."""
    _is_save_asked.set()


@dataclass(eq=False)
class StopRequest(Callback):
    """Stops the run with a checkpoint on request, or saves one; on a GPU one step after the ranks have agreed on it.

    Args:
        is_requested: whether someone wants the run to stop; called by a thread of the main rank, so that training never
            waits for a storage that is slow or does not answer.
        look_every_s: seconds between two calls of `is_requested`.
        has_failed: whether this process has to stop; called at each step, so it must not wait.
        has_notice: whether this machine or another one of the run is about to be taken away; all ranks call it at the
            same steps, every `NOTICE_EVERY_S` seconds, and the first notice makes the run save a checkpoint.
    """

    is_requested: Callable[[], bool]
    look_every_s: float = 1.0
    has_failed: Callable[[], bool] = lambda: False
    has_notice: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        self.noticed_at = time.monotonic()
        self.was_requested = threading.Event()
        self.has_ended = threading.Event()
        self.unread: Answer | None = None

    @override
    def on_train_start(self, run: Run) -> None:
        if dist.is_main():
            threading.Thread(target=self._look_for_request, name="raysl-stop", daemon=True).start()

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        if self.unread is not None:
            self._do_as_agreed(run)
        requests = [self.was_requested.is_set() or self.has_failed(), _is_save_asked.is_set()]
        if self.has_notice is not None:
            requests.append(time.monotonic() - self.noticed_at > NOTICE_EVERY_S)
        # Filled on the device: a copy of numbers of the host would wait for a GPU.
        are_unset = [torch.full((1,), float(not is_set), device=run.state.device) for is_set in requests]
        self.unread = run.agreement.ask(torch.cat(are_unset))
        if not is_late(run.state.device):
            self._do_as_agreed(run)

    def _do_as_agreed(self, run: Run) -> None:
        assert self.unread is not None
        goes_on, needs_no_save, *needs_no_look = self.unread.read()
        self.unread = None
        if not all(needs_no_look) and self.has_notice is not None:
            self.noticed_at = time.monotonic()
            if self.has_notice():
                self.has_notice, needs_no_save = None, False
        if not needs_no_save:
            _is_save_asked.clear()
            run.save()
        if not goes_on:
            run.stop("asked to")

    @override
    def on_train_end(self, run: Run) -> None:
        self.has_ended.set()

    def _look_for_request(self) -> None:
        has_warned = False
        while not self.has_ended.wait(self.look_every_s):
            try:
                if self.is_requested():
                    self.was_requested.set()
                    return
                has_warned = False
            except StorageError as error:
                if not has_warned:
                    log.warning("cannot look for a request to stop the run: %s", error)
                has_warned = True


class Pause(Callback):
    """Stops the run with a checkpoint after a number of updates; the next start goes on from there."""

    def __init__(self, last: int) -> None:
        self.last = last

    def on_train_start(self, run: Run) -> None:
        # a restart at that point makes no step
        self._stop_if_due(run, run.plan.step(run.state.step))

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        self._stop_if_due(run, step)

    def _stop_if_due(self, run: Run, step: Step) -> None:
        if step.index >= self.last:
            run.stop("paused")
