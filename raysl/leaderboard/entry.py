"""What a leaderboard is made of: the runs of a sweep, and what ranks them."""

from dataclasses import dataclass, field
from typing import Any, Literal

from raysl.report.contents import ONLINE_KNN

Status = Literal["waiting", "running", "finished", "stopped", "failed"]
State = Literal["running", "stopped", "done"]
Kind = Literal["sweep", "runs"]


@dataclass(frozen=True)
class Objective:
    """A number that ranks, and which way.

    Args:
        metric: name of a number that runs log or that a benchmark measures: knn_k20_top1, loss, linear/top1, step_s.
        mode: "max" where more of it is better, "min" where less is.
    """

    metric: str
    mode: Literal["max", "min"] = "max"

    def key(self, value: float | None) -> tuple[bool, float]:
        """Return a sort key: the best first, missing values and NaN last."""
        if value is None or value != value:
            return True, 0.0
        return False, -value if self.mode == "max" else value


@dataclass(frozen=True)
class Entry:
    """One run of a sweep.

    Args:
        trial: name of its folder, which is that of its settings: trial_1f3a2c4d.
        index: place in the order in which the sweep draws.
        status: a stopped one was ended before its last epoch by the sweep, which judged it.
        config: configuration that it departs from; empty where all trials have the same.
        settings: varied settings by dotted key, without the seed; one that only exists for other choices is not there.
        epochs: epochs of a whole run.
        epoch: epoch that it has reached; of a stopped one, that at which it was judged.
        metrics: newest number of each name, of a stopped one those of that epoch: logged while training (loss,
            knn_k20_top1) and measured (knn/k20/top1, knn/k20/top1/untrained, geometry/rank).
        intervals: 95 % intervals of measured numbers that have one.
        units: units of measured numbers, "%" or empty.
        dataset: images that it was trained on, a name that no others of the leaderboard have; empty where all have the
            same.
        protocols: protocol of each benchmark, and of the online kNN as `online_knn`, where it is not that of the
            defaults, see `raysl.report.contents.Score.protocol`.
        course: logged numbers by name: [epoch, value] in order. One called seconds is the time of training so far,
            which the page may draw all others against.
        costs: seconds (wall clock, in all), step_s (median of a step), memory_gb, gpu_hours: those that are known.
        draws: trials of these settings, which are one run.
        reason: why it failed or was stopped, in words.
        parents: runs that it has taken weights from, the newest first: trial_1f3a2c4d at epoch 4.
        path: URI of the run's folder, without credentials.
        checkpoint: URI of its newest checkpoint, or None.
        started, ended: seconds since 1970, or None.
    """

    trial: str
    index: int = 0
    status: Status = "waiting"
    config: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    epochs: int = 0
    epoch: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    dataset: str = ""
    protocols: dict[str, str] = field(default_factory=dict)
    course: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    draws: int = 1
    reason: str = ""
    parents: list[tuple[str, float]] = field(default_factory=list)
    path: str = ""
    checkpoint: str | None = None
    started: float | None = None
    ended: float | None = None

    def protocol(self, metric: str) -> str:
        """Return the protocol that a number was measured by; empty for that of the defaults, and for what is no
        measurement.

        >>> Entry("a", protocols={"knn": "temperature=0.1"}).protocol("knn/k20/top1")
        'temperature=0.1'
        """
        return self.protocols.get("online_knn" if ONLINE_KNN.fullmatch(metric) else metric.partition("/")[0], "")


@dataclass(frozen=True)
class SweepFacts:
    """What a leaderboard says about its sweep.

    Args:
        objectives: numbers that rank; the first one orders the table, several have a Pareto front.
        path: URI of the sweep's folder, without credentials.
        command: command that starts it again; empty where that is not known.
        space: varied settings, as YAML.
        search: random, grid, optuna, population; without a sweep it says nothing.
        scheduler: rule that stops trials early, or none; without a sweep it says nothing.
        trials: runs that it comes to in all, where that is known.
        state: "done" where nothing is left to run; a stopped one goes on when it is started again, and one that was
            killed still has "running".
        written: seconds since 1970.
        kind: "sweep", or "runs": all runs under a storage, whatever started them.
    """

    name: str
    objectives: tuple[Objective, ...]
    path: str = ""
    command: str = ""
    space: str = ""
    search: str = "random"
    scheduler: str = "none"
    trials: int | None = None
    state: State = "running"
    written: float = 0.0
    kind: Kind = "sweep"
