"""The state of a trial, read from its run's folder."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Literal

from raysl.benchmarks.suite.code import code_of
from raysl.benchmarks.suite.fitting import benchmark_class
from raysl.benchmarks.suite.protocols import digest_of
from raysl.components import resolve
from raysl.config.dump import plain
from raysl.config.schema import RunConfig
from raysl.leaderboard.entry import Objective
from raysl.leaderboard.logged import Logged
from raysl.redact import redact_uri
from raysl.report.stored import plain as jsonable
from raysl.storage.folder import Folder, outlast
from raysl.storage.records import check_types, kinds_of, read_record
from raysl.sweeps.judging import Course, Verdict
from raysl.sweeps.trial import Trial
from raysl.train.callbacks.logs import parse_metrics
from raysl.train.files import METRICS_FILE

NOTE_FILE = "trial.json"
FORMAT = 1


@dataclass(frozen=True)
class Note:
    """The note that a trial leaves in its run's folder when it ends.

    Args:
        status: finished, or failed for good; a trial that was asked to stop, paused, or is tried again, has "paused".
        until: epoch that it was to train to.
        epoch: epoch of its newest checkpoint; of a trial that failed, of its last line, to which its metrics belong.
        metrics: newest number of each name, measured ones among them.
        intervals, units: intervals and units of measured numbers, by the same names.
        costs: seconds of all its starts, step_s, memory_gb, gpu_hours.
        measures: digests of settings and code of what was measured, by benchmark.
        checkpoint: URI of its newest one.
        started, ended: seconds since 1970, of the first start and of the last end.
    """

    status: Literal["finished", "paused", "failed"]
    until: int
    epoch: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    measures: dict[str, list[str]] = field(default_factory=dict)
    checkpoint: str | None = None
    started: float = 0.0
    ended: float = 0.0

    @classmethod
    def read(cls, folder: Folder) -> "Note | None":
        """Read the note in a run's folder; None if there is none in this format."""
        try:
            text = outlast(partial(folder.read_if_there, NOTE_FILE))
            content = read_record(text, folder.uri_of(NOTE_FILE), {"format": int, "status": str, "until": int})
            if content.pop("format") != FORMAT:
                return None
            kinds = (
                kinds_of(cls)
                | dict.fromkeys(("metrics", "costs"), dict[str, float | None])
                | {"intervals": dict[str, list[float | None]]}
            )
            check_types(content, folder.uri_of(NOTE_FILE), optional=kinds)
            content["metrics"] = {name: value for name, value in content["metrics"].items() if value is not None}
            content["intervals"] = {name: tuple(ends) for name, ends in content["intervals"].items()}
            return cls(**content)
        except (ValueError, KeyError, TypeError):
            return None

    def write(self, folder: Folder) -> None:
        """Write it into a run's folder, replacing an earlier one."""
        content = {"format": FORMAT, **asdict(self)}
        content["checkpoint"] = None if self.checkpoint is None else redact_uri(self.checkpoint)
        outlast(partial(folder.write, NOTE_FILE, (json.dumps(jsonable(content), indent=1) + "\n").encode()))


@dataclass(eq=False)
class Record:
    """A trial and the state of its run.

    Args:
        epochs: epochs to train.
        course: curve of the number that it is judged by.
        logged: lines of its run, without those behind `epochs`.
        note: note of its end; None where that is still to come.
        last: note of the newest start that ended, whatever its end.
        failure: why it failed in this process, for good.
        verdict: why and where it was stopped, if it was.
    """

    trial: Trial
    epochs: int
    course: Course = field(default_factory=Course)
    logged: Logged = field(default_factory=Logged)
    note: Note | None = None
    last: Note | None = None
    draws: int = 1
    is_running: bool = False
    failure: str | None = None
    verdict: Verdict | None = None

    @property
    def has_ended(self) -> bool:
        """Whether all of it has run."""
        return not self.is_running and (self.note is not None or self.failure is not None)

    @property
    def has_failed(self) -> bool:
        """Whether its newest start failed for good, and no later start has got further."""
        if self.failure is not None:
            return True
        if self.note is not None or self.last is None or self.last.status != "failed":
            return False
        return not self.is_running or self.course.reached <= self.last.epoch

    def fail(self, reason: str) -> None:
        """Record that it has failed for good."""
        self.failure = reason
        self.course.has_ended = True

    @property
    def metrics(self) -> dict[str, float]:
        """The newest number of each name; for a stopped trial, those at the epoch of its verdict."""
        if self.verdict is not None:
            return self.logged.newest(self.verdict.epoch)
        return self.logged.newest() | (self.note.metrics if self.note is not None else {})

    @property
    def epoch(self) -> float | None:
        """Epochs that it has reached; for a stopped trial, that of its verdict."""
        if self.verdict is not None:
            return self.verdict.epoch
        if self.has_ended and self.note is not None:
            return self.note.epoch
        return self.logged.reached or None

    def metric(self, objective: Objective) -> float | None:
        """Its result; None if it has none, or failed."""
        if self.failure is not None or self.note is None:
            return None
        value = self.note.metrics.get(objective.metric, self.note.costs.get(objective.metric))
        return None if value is None or math.isnan(value) else value


def look(record: Record, folder: Folder, judged_by: Objective, measures: Mapping[str, list[str]]) -> None:
    """Update a record from its run's folder; it stays as it is while the storage fails.

    Args:
        judged_by: number of the course.
        measures: digests that are asked for now, see `measures_of`: a note of something else counts as unfinished.
    """
    logged = _logged(folder, record.epochs)
    note = None if record.is_running else Note.read(folder)
    record.logged, course = logged, record.course
    course.epochs = list(logged.epochs.get(judged_by.metric, ()))
    course.values = list(logged.values.get(judged_by.metric, ()))
    course.reached = logged.reached
    record.note = note if note is not None and _is_of_now(note, record, measures) else None
    record.last = note or record.last
    if record.last is not None and record.last.status != "failed":  # which may have logged nothing since
        course.reached = max(course.reached, min(record.last.epoch, record.epochs))
    course.has_ended = record.has_ended


def _is_of_now(note: Note, record: Record, measures: Mapping[str, list[str]]) -> bool:
    """Whether a note marks the trial's end, with all measurements of the sweep."""
    if record.trial.until is not None:  # a part of a run that may have been gone on with since
        return note.status != "failed" and note.epoch >= record.trial.until
    is_measured = all(note.measures.get(name) == digests for name, digests in measures.items())
    return note.status == "finished" and is_measured and note.until == record.epochs


def _logged(folder: Folder, until: int) -> Logged:
    lines = parse_metrics(outlast(partial(folder.read_if_there, METRICS_FILE)), folder.uri_of(METRICS_FILE))
    return Logged([line for line in lines if "epoch" in line and line["epoch"] <= until])


def measures_of(config: RunConfig) -> dict[str, list[str]]:
    """Return digests of settings and code of a run's benchmarks, by name."""
    backbone = resolve("backbone", config.backbone.name)
    return {
        name: [digest_of(plain(settings)), code_of(benchmark_class(settings), backbone)]
        for name, settings in config.benchmarks.items()
    }
