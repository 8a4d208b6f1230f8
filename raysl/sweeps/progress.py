"""Progress of a sweep: trials that have ended and are to come, and their lines in the log."""

import time
from collections.abc import Mapping, Sequence

from raysl.config.schema import RunConfig
from raysl.leaderboard.entry import Objective
from raysl.process.screen import counted, duration
from raysl.sweeps.estimate import hours_by_steps, mean_seconds, whole_seconds
from raysl.sweeps.ledger import Ledger
from raysl.sweeps.listing import time_left
from raysl.sweeps.record import Record
from raysl.sweeps.view import ENDING, STARTING, TrialRow


class Progress:
    """Counts the trials of a ledger.

    Args:
        planned: number of trials; the largest possible where that depends on results.
        seeds: seeds of each choice that comes to its end.
        is_exact: whether `num_trials` depends on no result.
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
        """Trials that have ended or were stopped."""
        return sum(record.has_ended for record in self.records)

    @property
    def num_dropped(self) -> int:
        """Number of choices that were stopped early or failed, so that their further seeds are not run."""
        return sum(not record.is_further and record.status in ("stopped", "failed") for record in self.records)

    @property
    def num_trials(self) -> int:
        """The number of trials; an upper bound while it depends on results."""
        return max(self.planned - self.num_dropped * (self.seeds - 1), len(self.records))

    def outlook(self, bases: Mapping[str, RunConfig], concurrent: int) -> str:
        """Describe the trials to come, before they start."""
        left = self.num_trials - self.num_ended
        most = "" if self.is_exact else "at most "
        hours, how = (None, "") if left == 1 else self.hours(left, bases, concurrent)
        return f"{most}{counted(left, 'trial')} to run, {concurrent} at a time; {time_left(hours, how)}"

    def hours(self, left: int, bases: Mapping[str, RunConfig], concurrent: int) -> tuple[float | None, str]:
        """Return the hours for a number of further trials, and the basis of the estimate in words.

        The basis is what the trials took that have ended; without any, a few steps, see `hours_by_steps`.
        """
        seconds = mean_seconds(self.records)
        if seconds is not None:
            return seconds * left / concurrent / 3600, ""
        return hours_by_steps(bases, left, concurrent)

    def line(self, record: Record, concurrent: int) -> str:
        """Describe a trial that has ended, and the rest of the sweep."""
        number = self._number(record)
        shown = f": {number}" if number and record.status == "finished" else ""
        ends = {"stopped": f"stopped: {record.reason}", "failed": "failed", "finished": "ended"}
        end = ends.get(record.status, f"is paused at epoch {record.epoch or 0:g}")
        return f"{record.trial.name} {end}{shown} ({self.num_ended} of {self.num_trials}{self._rest(concurrent)})"

    def state(self, concurrent: int) -> str:
        """Describe how many trials have ended and run, the best one, and the time left."""
        records = self.records
        num_running = sum(record.is_running for record in records)
        num_failed = sum(record.status == "failed" for record in records)
        failed = f", {num_failed} failed" if num_failed else ""
        text = f"{self.num_ended} of {self.num_trials} trials ended{failed}, {num_running} running"
        numbered = [record for record in records if record.metric(self.objective) is not None]
        if numbered:
            best = min(numbered, key=lambda record: self.objective.key(record.metric(self.objective)))
            text += f"; best {best.trial.name}: {self._number(best)}"
        return text + self._rest(concurrent)

    def rows(self) -> list[TrialRow]:
        """Return the running trials."""
        now, rows = time.time(), []
        for record in (own for own in self.records if own.is_running):
            reached = record.logged.reached
            phase = STARTING if reached <= record.before else ENDING if reached >= record.epochs else ""
            rows.append(
                TrialRow(
                    name=record.trial.name,
                    settings=record.trial.words(),
                    nodes=record.nodes,
                    epoch=reached,
                    epochs=record.epochs,
                    value=self._number(record),
                    seconds=now - record.began,
                    phase=phase,
                )
            )
        return rows

    def seconds_left(self, concurrent: int) -> float | None:
        """Return the seconds until the last trial ends; None while no trial has got on."""
        now = time.time()
        running = [own for own in self.records if own.is_running]
        expected = [whole_seconds(own, now - own.began, 0.0) if own.before == 0 else None for own in running]
        known = [seconds for seconds in expected if seconds is not None]
        mean = mean_seconds(self.records) or (sum(known) / len(known) if known else None)
        if mean is None:
            return None
        num_waiting = max(0, self.num_trials - self.num_ended - len(running))
        ahead = [max(0.0, (own or mean) - now + each.began) for own, each in zip(expected, running, strict=True)]
        return max((sum(ahead) + num_waiting * mean) / concurrent, *ahead, 0.0)

    def _rest(self, concurrent: int) -> str:
        left = self.seconds_left(concurrent) if self.num_trials > self.num_ended else None
        return f"; about {duration(left)} left" if left else ""

    def _number(self, record: Record) -> str:
        costs, name = {} if record.note is None else record.note.costs, self.objective.metric
        value = costs.get(name, record.metrics.get(name))
        return "" if value is None else f"{name} {value:.4g}"
