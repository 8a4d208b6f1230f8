"""Estimates of the time that a sweep takes, from trials that have ended or else from a few steps."""

import os
import time
from collections.abc import Mapping, Sequence

import torch
from typing_extensions import override

from raysl.cluster.connection import count_gpus
from raysl.config.schema import RunConfig
from raysl.data.stream.loader import LocalBatches
from raysl.errors import log
from raysl.methods.method import Method, StepOutput
from raysl.process.screen import only_errors
from raysl.schedule import Step
from raysl.sweeps.record import Record
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.loop import fit
from raysl.train.prepare import prepare
from raysl.train.reporter import LocalReporter
from raysl.train.state import TrainState

TIMED_STEPS = 3
MOST_S = 30.0
START_S = 20.0
"""Seconds of a trial that are no steps: before its first one and after its last, where no trial has been measured."""


class _Timed(Callback):
    """Ends a run after a few steps, or when they take too long."""

    def __init__(self) -> None:
        self.times = [time.monotonic()]

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        self.times.append(time.monotonic())
        if len(self.times) > TIMED_STEPS + 1 or self.times[-1] - self.times[0] > MOST_S:
            run.stop("timed")


def is_like_here(config: RunConfig) -> bool:
    """Whether trials train on this machine's CPUs, as a measurement in this process does."""
    is_elsewhere = os.environ.get("RAY_ADDRESS") or count_gpus(config.train)
    return not is_elsewhere and config.train.device != "cuda" and not torch.cuda.is_available()


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


def mean_seconds(records: Sequence[Record]) -> float | None:
    """Return the mean seconds of the trials that have ended, from their start to their end; None if none has."""
    spent = [record.note.costs["seconds"] for record in records if record.note and "seconds" in record.note.costs]
    return sum(spent) / len(spent) if spent else None


def whole_seconds(record: Record, elapsed: float, before: float) -> float | None:
    """Return the seconds of a whole trial by the part of a running one: its start, and its steps on and on.

    Args:
        elapsed: seconds since it was started, start-up included.
        before: epoch that it had come to then.

    Returns:
        None before its first epoch is logged.
    """
    trained = record.logged.seconds()
    if not trained or record.logged.reached <= before:
        return None
    until_before = max((seconds for epoch, seconds in trained if epoch <= before), default=0.0)
    seconds, gained = trained[-1][1] - until_before, trained[-1][0] - before
    if gained <= 0:
        return None
    return max(0.0, elapsed - seconds) + seconds / gained * record.epochs


def hours_by_steps(bases: Mapping[str, RunConfig], num_left: float, concurrent: int) -> tuple[float | None, str]:
    """Return the hours for trials of which none has ended, and the basis of the estimate in words; None without one.

    Args:
        bases: base settings of trials that are trained; the steps of the first one are timed.
        num_left: trials that are still to come.
    """
    name, base = next(iter(bases.items()), ("", None))
    if base is None or not is_like_here(base):
        return None, ""
    try:
        seconds = seconds_of(base)
    except Exception as error:  # noqa: BLE001 - the trials have other settings, and tell of their own failures
        log.debug("no steps are timed: %s", error)
        seconds = None
    if seconds is None:
        return None, ""
    which = f" of {name}" if name else ""
    how = f", estimated from a few steps{which}, without benchmarks and early stops"
    return (seconds + START_S) * num_left / concurrent / 3600, how
