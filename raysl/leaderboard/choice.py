"""The rows of a leaderboard: each is a choice of configuration and settings, with the runs of its seeds."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any, get_args

from raysl.leaderboard.entry import Entry, Objective, Status
from raysl.report.contents import DEFAULTS

CONFIDENCE = 0.95
"""Confidence of intervals over seeds."""


@dataclass(frozen=True)
class Number:
    """Mean and spread of one metric over the seeds of a row.

    Args:
        n: number of seeds that have the metric; runs of the same seed count once, with their mean.
        deviation: standard deviation over the seeds, divided by n - 1; None for one seed.
        interval: 95 % interval. For several seeds it is Student's t interval of their mean; for one seed it is the
            interval that the benchmark measured over test images, or None.
    """

    mean: float
    n: int
    deviation: float | None = None
    interval: tuple[float, float] | None = None


def number_of(
    values: Sequence[float],
    measured: tuple[float, float] | None = None,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Number:
    """Return mean, deviation and interval of finite values, one for each seed and at least one.

    Args:
        measured: interval that the benchmark measured, used if there is one seed only.
        bounds: least and largest possible value, to which intervals are cut.
    """
    if len(values) == 1:
        return Number(values[0], 1, None, measured)
    from scipy.special import stdtrit

    mean, deviation = fmean(values), stdev(values)
    # half the width of Student's t interval of a mean of n values, with n - 1 degrees of freedom
    reach = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * deviation / math.sqrt(len(values))
    return Number(mean, len(values), deviation, (max(mean - reach, bounds[0]), min(mean + reach, bounds[1])))


COUNTED: tuple[Status, ...] = ("finished", "stopped", "running", "failed", "waiting")
"""Statuses by preference: a row's numbers are those of its runs with the first of these statuses that any run has. So a
half-trained run is never averaged with whole ones."""

STANDINGS: dict[Status, int] = {"finished": 0, "running": 1, "waiting": 1, "stopped": 2, "failed": 3}
"""Order of rows on a leaderboard."""


@dataclass(frozen=True)
class Choice:
    """A row of a leaderboard.

    Args:
        config: configuration that it departs from; empty if all rows have the same.
        settings: varied settings by dotted key, without the seed.
        runs: runs of its seeds in the order of drawing; at least one.
        shared: keys of settings that have the same value in all rows.
    """

    config: str
    settings: dict[str, Any]
    runs: tuple[Entry, ...]
    shared: frozenset[str] = frozenset()

    @property
    def varied(self) -> dict[str, Any]:
        """Its settings without those that all rows share."""
        return {key: value for key, value in self.settings.items() if key not in self.shared}

    @property
    def index(self) -> int:
        """Index of its first run in the order of drawing."""
        return self.runs[0].index

    @property
    def draws(self) -> int:
        """Number of trials that were drawn with these settings."""
        return sum(run.draws for run in self.runs)

    @property
    def status(self) -> str:
        """The status of its runs, or a count of each: `2 finished, 1 failed`."""
        counts = Counter(run.status for run in self.runs)
        if len(counts) == 1:
            return self.runs[0].status
        return ", ".join(f"{counts[status]} {status}" for status in get_args(Status)[::-1] if counts[status])

    @cached_property
    def counted(self) -> tuple[Entry, ...]:
        """The runs behind its numbers, see `COUNTED`."""
        for status in COUNTED:
            runs = tuple(run for run in self.runs if run.status == status and (run.metrics or run.costs))
            if runs:
                return runs
        return ()

    @property
    def is_failed(self) -> bool:
        """Whether its numbers are those that failed runs had before they failed."""
        return bool(self.counted) and self.counted[0].status == "failed"

    @property
    def standing(self) -> int:
        """Rank of its status, see `STANDINGS`: 0 for finished runs, the only ones whose numbers can be compared."""
        return STANDINGS[self.counted[0].status] if self.counted else len(STANDINGS)

    @property
    def epoch(self) -> float | None:
        """Largest epoch that all runs behind its numbers have reached."""
        epochs = [run.epoch for run in self.counted if run.epoch is not None]
        return min(epochs) if epochs else None

    @cached_property
    def numbers(self) -> dict[str, Number]:
        """Metrics and costs by name, over the seeds that have them; values that are not finite count as missing."""
        names = dict.fromkeys(name for run in self.counted for name in (*run.metrics, *run.costs))
        numbers = {name: self._number(name) for name in names}
        return {name: number for name, number in numbers.items() if number is not None}

    def _number(self, name: str) -> Number | None:
        values = [(run, value) for run in self.counted if (value := number_in(run, name)) is not None]
        if not values:
            return None
        by_seed: dict[int, list[float]] = {}
        for run, value in values:
            by_seed.setdefault(run.seed, []).append(value)
        run = values[0][0]
        bounds = (0.0, 100.0) if run.units.get(name) == "%" else (-math.inf, math.inf)
        return number_of([fmean(seed) for seed in by_seed.values()], run.intervals.get(name), bounds)

    def num_seeds(self, metric: str) -> int:
        """Return the number of seeds behind a metric."""
        number = self.numbers.get(metric)
        return 0 if number is None else number.n

    def value(self, metric: str) -> float | None:
        """Return the mean of a metric over the seeds; None if no seed has it."""
        number = self.numbers.get(metric)
        return None if number is None else number.mean

    def best(self, objective: Objective) -> Entry:
        """Return the best of the runs behind its numbers; ties keep the order of drawing."""
        return min(
            self.counted or self.runs, key=lambda run: (objective.key(number_in(run, objective.metric)), run.index)
        )


def number_in(run: Entry, name: str) -> float | None:
    """Return a cost of a run, else the metric of that name; None if there is none or it is not finite."""
    value = run.costs.get(name, run.metrics.get(name))
    return value if value is not None and math.isfinite(value) else None


def choices(entries: Sequence[Entry]) -> list[Choice]:
    """Group runs by configuration and settings, in the order in which the first run of each group was drawn."""
    groups: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.index):
        key = json.dumps([entry.config, entry.settings], sort_keys=True, default=str)
        if entry.parents:  # runs that began with copied weights are rows of their own
            key += f" {entry.parents}"
        groups.setdefault(key, []).append(entry)
    shared = _shared([runs[0].settings for runs in groups.values()])
    return [Choice(runs[0].config, runs[0].settings, tuple(runs), shared) for runs in groups.values()]


def comparable(entries: Sequence[Entry], metric: str) -> dict[str, list[Entry]]:
    """Group runs whose numbers can be compared: runs on the same images, with the same protocol of a metric.

    Returns:
        The runs of each group by its title, the largest group first. A run without the metric is in the largest group
        of its images.
    """
    groups: dict[tuple[str, str], list[Entry]] = {}
    without: list[Entry] = []
    for entry in entries:
        if metric in entry.metrics or metric in entry.costs:
            groups.setdefault((entry.dataset, entry.protocol(metric)), []).append(entry)
        else:
            without.append(entry)
    largest = sorted(groups, key=lambda group: (-len(groups[group]), group))
    for entry in without:
        key = next((group for group in largest if group[0] == entry.dataset), (entry.dataset, ""))
        groups.setdefault(key, []).append(entry)
    order = sorted(groups, key=lambda group: (-len(groups[group]), group))
    protocols = {protocol for _, protocol in order}
    datasets = {dataset for dataset, _ in order}

    def title(dataset: str, protocol: str) -> str:
        parts = [dataset] * (len(datasets) > 1) + [f"{metric}: {protocol or DEFAULTS}"] * (len(protocols) > 1)
        return ", ".join(filter(None, parts))

    return {title(*group): groups[group] for group in order}


def _shared(rows: Sequence[dict[str, Any]]) -> frozenset[str]:
    if len(rows) < 2:
        return frozenset()
    return frozenset(key for key, value in rows[0].items() if all(key in row and row[key] == value for row in rows[1:]))


def ranked(rows: Sequence[Choice], objective: Objective) -> list[Choice]:
    """Return rows in the order of a leaderboard: finished ones first, since only their numbers can be compared.

    Then come running rows, then stopped ones, the longest trained first, then failed ones, and last those without the
    number. Ties keep the order of drawing.
    """

    def key(row: Choice) -> tuple[bool, int, float, float, int]:
        is_missing, value = objective.key(row.value(objective.metric))
        if is_missing:
            return True, 0, 0.0, 0.0, row.index
        trained = -(row.epoch or 0.0) if row.standing == STANDINGS["stopped"] else 0.0
        return False, row.standing, trained, value, row.index

    return sorted(rows, key=key)


def pareto(rows: Sequence[Choice], objectives: Sequence[Objective]) -> list[Choice]:
    """Return the Pareto front: finished rows for which no other row is as good in all objectives and better in one."""
    points = []
    for row in rows:
        keys = [objective.key(row.value(objective.metric)) for objective in objectives]
        if row.standing == 0 and not any(is_missing for is_missing, _ in keys):
            points.append((row, tuple(value for _, value in keys)))
    return [row for row, point in points if not any(_beats(other, point) for _, other in points)]


def _beats(other: tuple[float, ...], point: tuple[float, ...]) -> bool:
    return other != point and all(one <= value for one, value in zip(other, point, strict=True))
