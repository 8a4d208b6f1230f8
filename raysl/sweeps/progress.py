"""Progress of a sweep: trials that have ended and are to come, and their lines in the log."""

import time
from collections.abc import Mapping

from raysl.config.schema import RunConfig
from raysl.leaderboard.entry import Objective
from raysl.process.screen import counted, duration
from raysl.sweeps.estimate import hours_by_steps, mean_seconds, whole_seconds
from raysl.sweeps.listing import time_left
from raysl.sweeps.record import Record
from raysl.sweeps.replay import Replay
from raysl.sweeps.stage import Stage
from raysl.sweeps.view import ENDING, STARTING, STOPPING, TrialRow

Begun = Mapping[str, tuple[float, float]]


class Progress:
    """Counts the trials of a replay.

    Args:
        parts: parts of a run's training, each a trial: more than one in a population.
        is_exact: whether `num_trials` depends on no result.
    """

    def __init__(self, replay: Replay, parts: int, objective: Objective, is_exact: bool) -> None:
        self.replay = replay
        self.parts = parts
        self.objective = objective
        self.is_exact = is_exact

    @property
    def num_ended(self) -> int:
        """Trials that have ended or were stopped."""
        return sum(record.has_ended or record.verdict is not None for record in self.replay.records)

    @property
    def num_trials(self) -> int:
        """The number of trials; an upper bound while draws depend on results."""
        if self.replay.is_drawn:
            return len(self.replay.records)
        return self.replay.search.num_trials(self.num_dropped)

    @property
    def num_dropped(self) -> int:
        """Number of choices that were stopped early or failed, so that their further seeds are not run."""
        records = enumerate(self.replay.records)
        return sum(not record.trial.is_repeat and self.replay.is_kept(index) is False for index, record in records)

    def num_runs(self, known: int) -> int | None:
        """Return the number of runs, given the number known; None if that is still open."""
        if self.replay.is_drawn:
            return known
        return None if self.parts > 1 else self.num_trials

    def outlook(self, bases: Mapping[str, RunConfig], concurrent: int) -> str:
        """Describe the trials to come, before they start."""
        left = self.num_trials - self.num_ended
        most = "" if self.is_exact or self.replay.is_drawn else "at most "
        what = f"{counted(left, 'part')} of runs" if self.parts > 1 else counted(left, "trial")
        hours, how = (None, "") if left == 1 else self.hours(left, bases, concurrent)
        return f"{most}{what} to run, {concurrent} at a time; {time_left(hours, how)}"

    def hours(self, left: int, bases: Mapping[str, RunConfig], concurrent: int) -> tuple[float | None, str]:
        """Return the hours for a number of further trials, and the basis of the estimate in words.

        The basis is what the trials took that have ended; without any, a few steps, see `hours_by_steps`.
        """
        seconds = self._seconds_per_trial()
        if seconds is not None:
            return seconds * left / concurrent / 3600, ""
        return hours_by_steps(bases, left / self.parts, concurrent)

    def line(self, record: Record, concurrent: int, begun: Begun | None = None) -> str:
        """Describe a trial that has ended, and the rest of the sweep.

        Args:
            begun: argument of `seconds_left`.
        """
        number = self._number(record)
        count = f"{self.num_ended} of {self.num_trials}{' parts' * (self.parts > 1)}"
        verdict = self.replay.verdict_of(record)
        shown = f": {number}" if number and not record.failure and verdict is None else ""
        end = (
            self._end(record) if verdict is None else f"{'waits' if verdict.is_pause else 'stopped'}: {verdict.reason}"
        )
        return f"{record.trial.name} {end}{shown} ({count}{self._rest(concurrent, begun)})"

    def state(self, concurrent: int, begun: Begun | None = None) -> str:
        """Describe how many trials have ended and run, the best one, and the time left; arguments as of `line`."""
        records = self.replay.records
        num_running = sum(record.is_running and record.verdict is None for record in records)
        num_failed = sum(record.failure is not None for record in records)
        what = "parts of runs" if self.parts > 1 else "trials"
        failed = f", {num_failed} failed" if num_failed else ""
        text = f"{self.num_ended} of {self.num_trials} {what} ended{failed}, {num_running} running"
        numbered = [record for record in records if record.metric(self.objective) is not None]
        if numbered:
            best = min(numbered, key=lambda record: self.objective.key(record.metric(self.objective)))
            text += f"; best {best.trial.name}: {self._number(best)}"
        return text + self._rest(concurrent, begun)

    def rows(self, stage: Stage) -> list[TrialRow]:
        """Return the running trials of a stage."""
        now, rows = time.time(), []
        for name, record in stage.running.items():
            since, before = stage.begun[name]
            epochs = stage.until[name] or record.epochs
            is_at_end = record.course.reached >= epochs
            if record.verdict is not None:
                phase = STOPPING
            else:
                phase = STARTING if record.course.reached <= before else ENDING if is_at_end else ""
            rows.append(
                TrialRow(
                    name=name,
                    settings=record.trial.words(),
                    nodes=stage.nodes.get(name, ()),
                    epoch=record.course.reached,
                    epochs=epochs,
                    value=self._number(record),
                    seconds=now - since,
                    phase=phase,
                )
            )
        return rows

    def seconds_left(self, concurrent: int, begun: Begun | None = None) -> float | None:
        """Return the seconds until the last trial ends; None while no trial has got on.

        Args:
            begun: when trials were started, in seconds since 1970, and the epoch that they had come to.
        """
        now, begun = time.time(), begun or {}
        running = [own for own in self.replay.records if own.is_running and own.verdict is None]
        starts = [begun.get(own.trial.name, (now, 0.0)) for own in running]
        elapsed = [now - since for since, _ in starts]
        expected = [  # of those that began in this process
            whole_seconds(own, now - since, before) if before == 0 else None
            for own, (since, before) in zip(running, starts, strict=True)
        ]
        known = [seconds for seconds in expected if seconds is not None]
        mean = self._seconds_per_trial() or (sum(known) / len(known) if known else None)
        if mean is None:
            return None
        num_waiting = max(0, self.num_trials - self.num_ended - len(running))
        ahead = [max(0.0, (own or mean) - seconds) for own, seconds in zip(expected, elapsed, strict=True)]
        return max((sum(ahead) + num_waiting * mean) / concurrent, *ahead, 0.0)

    def _seconds_per_trial(self) -> float | None:
        """Return the mean seconds of a trial that has ended, or of a part of one; None without any."""
        if self.parts == 1:
            return mean_seconds(self.replay.records)
        runs = {record.trial.name: record for record in self.replay.records if record.last is not None}
        spent = sum(record.last.costs.get("seconds", 0.0) for record in runs.values() if record.last is not None)
        return spent / self.num_ended if self.num_ended else None

    def _rest(self, concurrent: int, begun: Begun | None) -> str:
        left = self.seconds_left(concurrent, begun) if self.num_trials > self.num_ended else None
        return f"; about {duration(left)} left" if left else ""

    def _number(self, record: Record) -> str:
        costs, name = {} if record.last is None else record.last.costs, self.objective.metric
        value = costs.get(name, record.metrics.get(name))
        return "" if value is None else f"{name} {value:.4g}"

    def _end(self, record: Record) -> str:
        if record.failure:
            return "failed"
        if not record.has_ended:
            return f"is paused at epoch {record.epoch or 0:g}"
        return "ended" if record.trial.until is None else f"is at epoch {record.trial.until}"
