"""How long a run takes, by a few of its steps."""

import time

import torch
from typing_extensions import override

from raysl.config.schema import RunConfig
from raysl.data.stream.loader import LocalBatches
from raysl.methods.method import Method, StepOutput
from raysl.process.screen import only_errors
from raysl.schedule import Step
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.loop import fit
from raysl.train.prepare import prepare
from raysl.train.reporter import LocalReporter
from raysl.train.state import TrainState

TIMED_STEPS = 3
MOST_S = 30.0


class _Timed(Callback):
    """Ends a run after a few steps, or when they take too long."""

    def __init__(self) -> None:
        self.times = [time.monotonic()]

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        self.times.append(time.monotonic())
        if len(self.times) > TIMED_STEPS + 1 or self.times[-1] - self.times[0] > MOST_S:
            run.stop("timed")


def seconds_of(config: RunConfig) -> float | None:
    """Seconds of training of a run, by a few of its steps in this process, one of them left out as the first; None of
    a method that goes through all images before them.
    """
    with only_errors(), torch.random.fork_rng(devices=[]):
        run = prepare(config)
        state = TrainState.create(run.setup, "cpu", run.classes)
        if type(state.method).before_epoch is not Method.before_epoch:
            return None
        timed = _Timed()
        stream = LocalBatches(run.loader, 0, 1, torch.device("cpu"))
        fit(state, state.method, run.setup.plan, stream, callbacks=[timed], reporter=LocalReporter(show_progress=False))
    spent = timed.times[1:] if len(timed.times) > 2 else timed.times
    step_s = (spent[-1] - spent[0]) / max(1, len(spent) - 1)
    return step_s * run.setup.plan.total_steps / config.train.most_workers
