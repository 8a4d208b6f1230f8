"""Progress of a sweep: trials that have ended and are to come, and their lines in the log."""

from collections.abc import Mapping

from raysl.config.schema import RunConfig
from raysl.leaderboard.entry import Objective
from raysl.process.screen import duration
from raysl.sweeps.estimate import hours_ahead, hours_left
from raysl.sweeps.listing import time_left
from raysl.sweeps.record import Record
from raysl.sweeps.replay import Replay


class Progress:
    """Counts the trials of a replay.

    Args:
        replay: which trials there are.
        parts: in which each run is trained, each a trial: more than one in a population.
        objective: number that is logged for each trial.
        is_exact: whether each draw is a trial to run: none equals another, and no scheduler has a say in it.
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
        """The number of trials; an upper bound if draws may be equal or depend on results."""
        return len(self.replay.records) if self.replay.is_drawn else self.replay.search.num_trials()

    def num_runs(self, known: int) -> int | None:
        """Return the number of runs, given the number known; None if that is still open."""
        if self.replay.is_drawn:
            return known
        return None if self.parts > 1 else self.num_trials

    def outlook(self, bases: Mapping[str, RunConfig], concurrent: int) -> str:
        """Describe the trials to come, before they start.

        Args:
            bases: what trials depart from that are trained.
            concurrent: trials at a time.
        """
        left = self.num_trials - self.num_ended
        most = "" if self.is_exact or self.replay.is_drawn else "at most "
        what = f"part{'s' * (left != 1)} of runs" if self.parts > 1 else f"trial{'s' * (left != 1)}"
        hours, how = (None, "") if left == 1 else self.hours(left, bases, concurrent)
        return f"{most}{left} {what} to run, {concurrent} at a time; {time_left(hours, how)}"

    def hours(self, left: int, bases: Mapping[str, RunConfig], concurrent: int) -> tuple[float | None, str]:
        """Return the hours for a number of further trials, and the basis of the estimate; see `hours_ahead`."""
        if self.parts == 1 or not self.num_ended:
            return hours_ahead(self.replay.records, bases, left / self.parts, concurrent)
        runs = {record.trial.name: record for record in self.replay.records if record.last is not None}
        spent = sum(record.last.costs.get("seconds", 0.0) for record in runs.values() if record.last is not None)
        return spent / self.num_ended * left / concurrent / 3600, ""

    def line(self, record: Record, concurrent: int) -> str:
        """Describe a trial that has ended, and the rest of the sweep.

        Args:
            record: of the trial.
            concurrent: trials at a time.
        """
        end, costs = self._end(record), {} if record.last is None else record.last.costs
        value = costs.get(self.objective.metric, record.metrics.get(self.objective.metric))
        number = "" if value is None or record.failure else f": {self.objective.metric} {value:.4g}"
        ended, total = self.num_ended, self.num_trials
        left = None
        if total > ended and self.parts == 1:
            left = hours_left(self.replay.records, total - ended, concurrent)
        rest = f"; about {duration(3600 * left)} left" if left else ""
        count = f"{ended} of {total}{' parts' * (self.parts > 1)}"
        return f"{record.trial.name} {end}{number} ({count}{rest})"

    def _end(self, record: Record) -> str:
        verdict = self.replay.verdict_of(record)
        if verdict is not None:
            return f"{'waits' if verdict.is_pause else 'stopped'} at epoch {verdict.epoch:g}"
        if record.failure:
            return "failed"
        if not record.has_ended:
            return f"is paused at epoch {record.epoch or 0:g}"
        return "ended" if record.trial.until is None else f"is at epoch {record.trial.until}"
