"""The state of a trial, from the events of Ray Tune and the files in its run's folder."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from raysl.checkpoint.lineage import read_parents
from raysl.leaderboard.entry import Entry, Objective, Status
from raysl.leaderboard.leaderboard import MOST_POINTS, thinned
from raysl.leaderboard.logged import Logged
from raysl.storage.folder import Folder
from raysl.train.callbacks.logs import read_metrics
from raysl.tune.trial import Note, Trial

STARTING = "starting"


@dataclass(eq=False)
class Record:
    """A trial and the state of its run.

    Args:
        epochs: epochs of the whole trial; 0 of one that is only measured.
        measures: digests of the benchmarks, see `measures_of`; a note with other digests does not end the trial.
        draws: number of equal choices.
        failure: reason for which it failed for good in this process, or None.
        is_further: whether it is a further seed of settings whose first run finished.
        began: time of its start in this process, in seconds since 1970.
        before: epochs that it had done by then.
        nodes: nodes on which its workers run.
        parents: runs whose weights it went on from, and their epochs, the newest first.
    """

    trial: Trial
    epochs: int
    measures: Mapping[str, list[str]]
    logged: Logged = field(default_factory=Logged)
    note: Note | None = None
    draws: int = 1
    is_running: bool = False
    failure: str | None = None
    is_further: bool = False
    began: float = 0.0
    before: float = 0.0
    nodes: tuple[str, ...] = ()
    parents: list[tuple[str, float]] = field(default_factory=list)

    @property
    def status(self) -> Status:
        """Whether it waits, runs, or how it ended."""
        if self.is_running:
            return "running"
        if self.failure is not None:
            return "failed"
        if self.note is not None and self.note.status == "stopped":
            return "stopped"
        is_end = self.note is not None and self.note.is_of_now(self.epochs, self.measures)
        return "finished" if is_end else "waiting"

    @property
    def has_ended(self) -> bool:
        """Whether all of it has run."""
        return self.status in ("finished", "stopped", "failed")

    @property
    def reason(self) -> str:
        """Why it was stopped or failed; empty if neither."""
        if self.status in ("stopped", "failed"):
            return self.failure or (self.note.reason if self.note is not None else "")
        return ""

    @property
    def until(self) -> float:
        """The epoch whose numbers are the newest that count."""
        return self.note.epoch if self.note is not None and self.status == "stopped" else math.inf

    @property
    def metrics(self) -> dict[str, float]:
        """The newest number of each name."""
        measured = self.note.metrics if self.note is not None and self.has_ended else {}
        return self.logged.newest(self.until) | measured

    @property
    def whole(self) -> float:
        """Epochs of the whole trial; 1 of one that is only measured."""
        return self.epochs or 1.0

    @property
    def done(self) -> float:
        """Epochs done; of a trial that is only measured 1 at its end."""
        return (self.epoch or 0.0) if self.epochs else float(self.has_ended)

    @property
    def epoch(self) -> float | None:
        """Epochs that it has reached."""
        if self.note is not None and self.has_ended:
            return self.note.epoch
        return self.logged.reached or None

    @property
    def progress(self) -> str:
        """Where a running trial is, in words."""
        reached = self.logged.reached
        if reached <= self.before:
            return STARTING
        return "ending" if reached >= self.epochs else f"epoch {reached:.3g}/{self.epochs}"

    def describe(self, metric: str) -> str:
        """Return its newest number of a name, with the name; empty where there is none."""
        value = ({} if self.note is None else self.note.costs).get(metric, self.metrics.get(metric))
        return "" if value is None else f"{metric} {value:.4g}"

    def metric(self, objective: Objective) -> float | None:
        """Its result; None if it has none, or did not finish."""
        if self.note is None or self.status != "finished":
            return None
        value = self.note.metrics.get(objective.metric, self.note.costs.get(objective.metric))
        return None if value is None or math.isnan(value) else value

    def begin(self) -> None:
        """Record that it has started."""
        self.is_running, self.failure, self.nodes = True, None, ()
        self.began, self.before = time.time(), self.logged.reached

    def refresh(self, folder: Folder) -> None:
        """Update the record from the folder of its run; it stays as it is if the storage fails.

        Raises:
            StorageError: if the storage fails.
        """
        lines = read_metrics(folder)
        note = self.note if self.is_running else Note.read(folder)
        most = self.epochs or math.inf
        if self.trial.parent is not None and not self.parents:
            self.parents = [(parent.run, parent.epoch) for parent in read_parents(folder)]
        self.logged = Logged([line for line in lines if "epoch" in line and line["epoch"] <= most])
        self.note = note

    def entry(self, index: int, folder: Folder, protocols: Mapping[str, str]) -> Entry:
        """Return its row of the leaderboard; that of a stopped one ends at the epoch at which it was stopped."""
        trial, nothing = self.trial, Note("paused", 0)
        note, last = self.note if self.note is not None and self.has_ended else nothing, self.note or nothing
        return Entry(
            trial=trial.name,
            index=index,
            status=self.status,
            config=trial.config,
            settings=dict(trial.settings),
            seed=trial.seed,
            epochs=self.epochs,
            epoch=self.epoch,
            metrics={name: value for name, value in self.metrics.items() if not math.isnan(value)},
            intervals=note.intervals,
            units=note.units,
            protocols=dict(protocols),
            course={name: thinned(curve, MOST_POINTS) for name, curve in self.logged.curves(self.until).items()},
            costs=last.costs,
            draws=self.draws,
            reason=self.reason or note.reason,
            parents=self.parents,
            path=folder.uri_of(trial.name),
            checkpoint=last.checkpoint,
            started=last.started or None,
            ended=last.ended or None,
        )
