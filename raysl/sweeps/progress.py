"""Describe the progress of a sweep in words: trials that have ended, that run and that are to come."""

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch
from typing_extensions import override

from raysl.cluster.connection import count_gpus
from raysl.config.schema import RunConfig
from raysl.data.stream.loader import LocalBatches
from raysl.errors import log
from raysl.leaderboard.entry import Objective
from raysl.methods.method import Method, StepOutput
from raysl.process.screen import counted, duration, only_errors
from raysl.schedule import Step
from raysl.sweeps.ledger import Ledger
from raysl.sweeps.record import Record
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.loop import fit
from raysl.train.prepare import prepare
from raysl.train.reporter import LocalReporter
from raysl.train.state import TrainState
from raysl.tune.trial import Trial

MOST_LISTED = 1000
START_S = 20.0  # assumed seconds of a trial before its first step and after its last


class Progress:
    """Counts the trials of a ledger.

    Args:
        planned: number of trials, or the largest possible number if it depends on results.
        seeds: number of seeds of each choice that finishes.
        objective: number that ranks the trials.
        is_exact: whether `planned` does not depend on results.
    """

    def __init__(self, ledger: Ledger, planned: int, seeds: int, objective: Objective, is_exact: bool) -> None:
        self.is_exact = is_exact
        self.ledger = ledger
        self.planned = planned
        self.seeds = seeds
        self.objective = objective

    @property
    def records(self) -> Sequence[Record]:
        """The trials so far."""
        return list(self.ledger.records.values())

    @property
    def num_ended(self) -> int:
        """Number of trials that finished, were stopped or failed."""
        return sum(record.has_ended for record in self.records)

    @property
    def num_dropped(self) -> int:
        """Number of choices whose further seeds are not run, because they were stopped early or failed."""
        return sum(not record.is_further and record.status in ("stopped", "failed") for record in self.records)

    @property
    def num_trials(self) -> int:
        """Number of trials; an upper bound while it depends on results."""
        return max(self.planned - self.num_dropped * (self.seeds - 1), len(self.records))

    def outlook(self, bases: Mapping[str, RunConfig], concurrent: int) -> str:
        """Describe, before a start, the trials that have ended and those to come, with an estimate of the time.

        The estimate is the mean time of the ended trials. Without any, a few steps are timed in this process.
        """
        counts = Counter(record.status for record in self.records)
        ended = ", ".join(f"{counts[name]} {name}" for name in ("finished", "stopped", "failed") if counts[name])
        before = f" ({ended} before)" if ended else ""
        remaining = self.num_trials - self.num_ended
        text = f"{'' if self.is_exact else 'at most '}{counted(remaining, 'trial')} to run, {concurrent} at a time"
        seconds, how = mean_seconds(self.records), ""
        if seconds is None and remaining > 1:
            seconds, how = _seconds_by_steps(bases)
        if seconds is None:
            return f"{text}{before}; how long they take is known when the first one has ended"
        return f"{text}{before}; about {duration(seconds * math.ceil(remaining / concurrent))}{how}"

    def line(self, record: Record) -> str:
        """Describe a trial that has ended, and the time left for the sweep."""
        number = record.describe(self.objective.metric)
        shown = f": {number}" if number and record.status == "finished" else ""
        ends = {"stopped": f"stopped: {record.reason}", "failed": "failed", "finished": "ended"}
        end = ends.get(record.status, f"is paused at epoch {record.epoch or 0:g}")
        return f"{record.trial.name} {end}{shown} ({self.num_ended} of {self.num_trials}{self._time_left()})"

    def state(self) -> str:
        """Describe how many trials have ended and run, the best one, and the time left."""
        records = self.records
        num_failed = sum(record.status == "failed" for record in records)
        failed = f", {num_failed} failed" if num_failed else ""
        text = f"{self.num_ended} of {self.num_trials} trials ended{failed}, {len(self.running)} running"
        numbered = [record for record in records if record.metric(self.objective) is not None]
        if numbered:
            best = min(numbered, key=lambda record: self.objective.key(record.metric(self.objective)))
            text += f"; best {best.trial.name}: {best.describe(self.objective.metric)}"
        return text + self._time_left()

    @property
    def running(self) -> list[Record]:
        """The running trials."""
        return [record for record in self.records if record.is_running]

    def seconds_left(self) -> float | None:
        """Return the seconds until the last trial ends, at the speed of this start; None before its first epoch."""
        begun = [record for record in self.records if record.began]
        gained = sum(record.done - record.before for record in begun)
        if gained <= 0:
            return None
        ended = [record.done for record in self.records if record.has_ended]
        usual = ended or [record.whole for record in self.records]
        num_waiting = max(0, self.num_trials - self.num_ended - len(self.running))
        epochs_left = num_waiting * sum(usual) / len(usual)
        epochs_left += sum(max(0.0, record.whole - record.done) for record in self.running)
        return (time.time() - min(record.began for record in begun)) * epochs_left / gained

    def _time_left(self) -> str:
        seconds = self.seconds_left() if self.num_trials > self.num_ended else None
        return f"; about {duration(seconds)} left" if seconds and seconds >= 1 else ""


def trial_lines(records: Sequence[Record]) -> list[str]:
    """Return one aligned line per trial: its name, progress and settings."""
    shown = records[:MOST_LISTED]
    epochs = [
        "" if record.epoch is None or record.status == "finished" else f" at {record.epoch:g}" for record in shown
    ]
    states = [f"{record.status}{epoch}" for record, epoch in zip(shown, epochs, strict=True)]
    width = max((len(state) for state in states), default=0)
    lines = [
        f"{record.trial.name}  {state.ljust(width)}  {record.trial.words()}"
        for record, state in zip(shown, states, strict=True)
    ]
    return lines + ([f"... and {len(records) - MOST_LISTED} more"] if len(records) > MOST_LISTED else [])


def outdated(records: Sequence[Record], measures: Callable[[Trial], Mapping[str, list[str]]]) -> list[str]:
    """Return a line for each benchmark that has to be measured again because its code has changed.

    Args:
        measures: function that returns the present digests of a trial's settings and code, by benchmark.
    """
    counts: Counter[str] = Counter()
    for record in records:
        if record.note is None or record.note.status != "finished":
            continue
        for name, (settings, code) in measures(record.trial).items():
            before = record.note.measures.get(name)
            counts[name] += before is not None and before[0] == settings and before[1] != code
    return [
        f"the code of {name} has changed: it will measure {counted(num, 'trial')} again, without training"
        for name, num in counts.items()
        if num
    ]


def mean_seconds(records: Sequence[Record]) -> float | None:
    """Return the mean seconds of the trials that have ended, from their start to their end; None if none has."""
    spent = [record.note.costs["seconds"] for record in records if record.note and "seconds" in record.note.costs]
    return sum(spent) / len(spent) if spent else None


def _seconds_by_steps(bases: Mapping[str, RunConfig]) -> tuple[float | None, str]:
    """Estimate the seconds of a trial from a few steps of the first configuration; return them with a phrase on how.

    The seconds are None unless trials train on the CPUs of this machine, where this process can time them.
    """
    name, base = next(iter(bases.items()), ("", None))
    if base is None or os.environ.get("RAY_ADDRESS") or count_gpus(base.train) or torch.cuda.is_available():
        return None, ""
    try:
        seconds = estimate_seconds(base)
    except Exception as error:  # noqa: BLE001 - the trials have other settings, and report their own failures
        log.debug("no steps are timed: %s", error)
        seconds = None
    which = f" of {name}" if name else ""
    how = f", estimated from a few steps{which}, without benchmarks and early stops"
    return (None, "") if seconds is None else (seconds + START_S, how)


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


def estimate_seconds(config: RunConfig) -> float | None:
    """Estimate the seconds that a run will train from a few steps in this process; the first step is not timed.

    Returns:
        None for a method that goes through all images before its first step.
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
