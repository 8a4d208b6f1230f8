"""Shares of a cluster: what each worker, data task, benchmark and concurrent trial of it may have; Ray is not asked."""

import math
from dataclasses import dataclass, replace

from raysl.config.schema import TrainConfig
from raysl.errors import ConfigError

TASK_CPUS = 0.5  # two data tasks a CPU: Ray Data starts the next one up to 0.1 s after one has ended
TRIAL_CPUS = 0.01  # of the process that drives a trial; its workers and data tasks have their own
SWEEP_CPUS = 0.05  # stay free for those processes, or more where there are more of them
LEAST_CPUS = 0.01  # of a worker


@dataclass(frozen=True)
class Resources:
    """CPUs and GPUs that a cluster has, or that its autoscaler can add.

    Args:
        cpus, gpus: all of them.
        trials: of a Ray Tune, that have them at the same time; 0: one run has them, and nothing else does.
    """

    cpus: float
    gpus: float
    trials: int = 0

    def shared(self, trials: int) -> "Resources":
        """The same for each of so many concurrent trials: `worker_shape` gives each no more than its part.

        Their workers and the processes that drive them leave CPUs to data tasks and, where there are 2 or more, a
        whole one to benchmarks of trials that have trained.
        """
        return replace(self, trials=trials)

    @property
    def own_gpus(self) -> float:
        """GPUs that one of the trials has once its workers have ended; others may never be free."""
        return self.gpus / max(1, self.trials)

    @property
    def benchmark_cpus(self) -> float:
        """CPUs that tasks may ask for once the workers of a run have ended; more of them may never be free."""
        if self.trials == 0:
            return self.cpus
        return self.cpus - self._driver_cpus if self.trials == 1 else min(1.0, self.cpus / 2)

    @property
    def kept_cpus(self) -> float:
        """CPUs that no worker gets: those of data tasks, benchmarks, and the processes that drive trials."""
        tasks = min(1.0, self.cpus / 2)  # a whole one where that can be: Ray Data rounds its share down
        if self.trials > 1 and self.cpus >= 4:
            tasks += TASK_CPUS  # of those that train, while the benchmarks of another one have the whole CPU
        return tasks + self._driver_cpus

    @property
    def _driver_cpus(self) -> float:
        return max(SWEEP_CPUS, self.trials * TRIAL_CPUS)

    def most_cpus(self, workers: int) -> float:
        """CPUs that each worker of each trial can have, where every trial has so many workers."""
        return _floor((self.cpus - self.kept_cpus) / (max(1, self.trials) * workers))


@dataclass(frozen=True)
class WorkerShape:
    """What each training worker gets.

    Args:
        device: `cpu` or `cuda`.
        cpus: CPUs that Ray reserves for it.
        task_cpus: CPUs that each data task takes.
        gpus: GPUs that Ray reserves for it where the device is one: 1, or a share.
    """

    device: str
    cpus: float
    task_cpus: float
    gpus: float = 1.0

    @property
    def resources(self) -> dict[str, float]:
        """As Ray Train takes it."""
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.device == "cuda" else {})


def worker_shape(train: TrainConfig, cluster: Resources) -> WorkerShape:
    """Share the cluster's CPUs between training workers, of all trials at a time, and data tasks.

    Raises:
        ConfigError: if the cluster can never hold so many workers.
    """
    device = train.device
    if device == "auto":
        device = "cuda" if cluster.gpus >= 1 else "cpu"
    if device == "cuda":
        _check_gpus(train, cluster)
    most, cpus = cluster.most_cpus(train.workers), train.cpus_per_worker
    if cpus is not None and cpus > most >= LEAST_CPUS:
        raise ConfigError(
            f"{_who(train, cluster)} of {cpus:g} CPUs leave no CPU for data tasks: this cluster can never have more "
            f"than {cluster.cpus:g}; set train.cpus_per_worker={most:g}" + _or_fewer(train, cluster)
        )
    if cpus is None and train.workers > cluster.cpus:
        raise ConfigError(
            f"{train.workers} workers are more than the {cluster.cpus:g} CPUs that this cluster can ever have; "
            f"set train.workers={int(cluster.cpus)}, or train.cpus_per_worker to let them share CPUs"
        )
    if most < LEAST_CPUS:
        raise ConfigError(
            f"{_who(train, cluster)} do not fit the {cluster.cpus:g} CPUs that this cluster can ever have beside data "
            f"tasks{_or_fewer(train, cluster).replace(', or run', '; run') or '; set train.workers to less'}"
        )
    return WorkerShape(
        device, min(1.0, most) if cpus is None else cpus, min(TASK_CPUS, cluster.cpus / 2), train.gpus_per_worker
    )


def most_trials(train: TrainConfig, cluster: Resources) -> int:
    """How many runs the cluster holds at a time, each with as much as it would have alone; at least one.

    Raises:
        ConfigError: if it can never hold one.
    """
    shape = worker_shape(train, cluster)
    num = int(cluster.cpus // (train.workers * shape.cpus + shape.task_cpus))
    if shape.device == "cuda":
        num = min(num, _most_workers(train, cluster) // train.workers)
    return max(1, num)


def _most_workers(train: TrainConfig, cluster: Resources) -> int:
    """Workers that the GPUs hold; one that has a share of a GPU has it of one GPU alone."""
    return int(cluster.gpus) * int(1 / train.gpus_per_worker + 1e-6)


def _check_gpus(train: TrainConfig, cluster: Resources) -> None:
    """Refuse more workers than the GPUs hold."""
    fit = _most_workers(train, cluster)
    if max(1, cluster.trials) * train.workers <= fit:
        return
    have = f"this cluster can never have more than {cluster.gpus:g}"
    if cluster.trials <= 1:
        raise ConfigError(
            f"{train.workers} workers need as many GPUs, and {have}; set train.workers={max(1, int(cluster.gpus))}"
            + ("" if cluster.gpus >= 1 else " and train.device=cpu")
        )
    ways = [f"run {fit // train.workers} at a time"] if fit >= train.workers else []
    if train.workers == 1 and cluster.gpus >= 1:
        each = _floor(1 / math.ceil(cluster.trials / int(cluster.gpus)))
        ways.append(f"set train.gpus_per_worker={each:g}")
    need = f"{train.gpus_per_worker:g} of a GPU each" if train.gpus_per_worker < 1 else "a GPU each"
    raise ConfigError(f"{_who(train, cluster)} need {need}, and {have}; {', or '.join(ways) or 'set train.device=cpu'}")


def _who(train: TrainConfig, cluster: Resources) -> str:
    workers = f"{train.workers} workers" if train.workers > 1 or cluster.trials <= 1 else "1 worker"
    return workers if cluster.trials <= 1 else f"{cluster.trials} trials at a time of {workers}"


def _or_fewer(train: TrainConfig, cluster: Resources) -> str:
    """How many trials at a time would fit, as the end of a sentence; empty where not even two do."""
    wanted = LEAST_CPUS if train.cpus_per_worker is None else train.cpus_per_worker
    for trials in range(cluster.trials - 1, 0, -1):
        if cluster.shared(trials).most_cpus(train.workers) >= wanted:
            return f", or run {trials} at a time"
    return ""


def _floor(cpus: float) -> float:
    """Rounded down to hundredths, so that shares add up to no more than the whole."""
    return math.floor(cpus * 100) / 100
