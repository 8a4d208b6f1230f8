"""Estimates of the time that a sweep takes, from trials that have ended or else from a few steps."""

import logging
import os
import time
from collections.abc import Mapping, Sequence

import torch
from typing_extensions import override

from raysl.cluster.connection import count_gpus
from raysl.config.schema import RunConfig
from raysl.data.stream.loader import LocalBatches
from raysl.methods.method import Method, StepOutput
from raysl.process.screen import only_errors
from raysl.runs.prepare import prepare
from raysl.schedule import Step
from raysl.sweeps.record import Record
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.loop import fit
from raysl.train.reporter import LocalReporter
from raysl.train.state import TrainState

log = logging.getLogger("raysl")

TIMED_STEPS = 3
MOST_S = 30.0
START_S = 15.0
"""Seconds from the start of a trial to its first step, and from its last to its end."""


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

    Raises:
        ConfigError: if the run could not work.
    """
    with only_errors(), torch.random.fork_rng(devices=[]):
        run = prepare(config)
        state = TrainState.create(run.setup, "cpu", run.classes)
        if type(state.method).before_epoch is not Method.before_epoch:
            return None
        timed = _Timed()
        stream = LocalBatches(run.loader, 0, 1, torch.device("cpu"))
        fit(state, state.method, run.setup.plan, stream, callbacks=[timed], reporter=LocalReporter())
    spent = timed.times[1:] if len(timed.times) > 2 else timed.times
    step_s = (spent[-1] - spent[0]) / max(1, len(spent) - 1)
    return step_s * run.setup.plan.total_steps / config.train.most_workers


def hours_left(records: Sequence[Record], num_left: float, concurrent: int) -> float | None:
    """Return the hours for further trials, estimated from those that have ended; None if none has.

    Args:
        records: trials so far.
        num_left: trials that are still to come, those that run counted by what is left of them.
        concurrent: trials at a time.
    """
    spent = [record.last.costs["seconds"] for record in records if record.last and "seconds" in record.last.costs]
    if not spent:
        return None
    return sum(spent) / len(spent) * num_left / concurrent / 3600


def hours_ahead(
    records: Sequence[Record], bases: Mapping[str, RunConfig], num_left: float, concurrent: int
) -> tuple[float | None, str]:
    """Return the hours for further trials, and the basis of the estimate in words; None without one.

    Args:
        records: trials so far.
        bases: what trials depart from that are trained, of which the first one's steps are timed where no trial has
            ended.
        num_left: trials that are still to come.
        concurrent: trials at a time.
    """
    hours = hours_left(records, num_left, concurrent)
    name, base = next(iter(bases.items()), ("", None))
    if hours is not None or base is None or not is_like_here(base):
        return hours, ""
    try:
        seconds = seconds_of(base)
    except Exception as error:  # noqa: BLE001 - the trials have other settings, and tell of their own failures
        log.debug("no steps are timed: %s", error)
        seconds = None
    if seconds is None:
        return None, ""
    which = f" of {name}" if name else ""
    how = f", by a few steps{which}; measurements, and what is stopped early, not counted"
    return (seconds + START_S) * num_left / concurrent / 3600, how
